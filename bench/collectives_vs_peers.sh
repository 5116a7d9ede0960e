#!/usr/bin/env bash
# All-reduce of lockstep beside the fastest other libraries for one host, in turns, 2 ranks.
#
#   bench/collectives_vs_peers.sh --python VENV/bin/python [--rounds N] [--build DIR] [--peers DIR]
#
# Peers: Intel MPI, oneCCL (with its default algorithm, and with nreduce), MPICH 5, DeepSpeed's kernels for shared
# memory, Gloo. The python needs pip and PyTorch. What is missing in DIR [build-peers/] is downloaded from PyPI (220 MB)
# and built there (two minutes). Every other round runs backwards. Needs MPICH's libraries.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."

rounds=4 build=build python=${PYTHON:-python3} peers=build-peers
while [ $# -gt 0 ]; do
    case $1 in
        --rounds) rounds=$2 ;;
        --build) build=$2 ;;
        --python) python=$2 ;;
        --peers) peers=$2 ;;
        *) sed -n '2,8s/^# \{0,1\}//p' bench/collectives_vs_peers.sh; exit 2 ;;
    esac
    shift 2
done
stop() { echo "collectives_vs_peers.sh: $*" >&2; exit 2; }
[ -x "$build/bench/collectives" ] || stop "$build/bench/collectives is missing: build first, or give --build DIR"
"$python" -c 'import torch' 2>/dev/null || stop "$python has no PyTorch; give another with --python"
unset OPENBLAS_CORETYPE
export OMP_NUM_THREADS=1
bytes="1024 65536 1048576 13631488 104857600"

# ---- what is missing ----

# wheel NAME: prints the directory with the unpacked files of this package.
wheel() {
    local directory=$peers/$1
    [ -d "$directory" ] || {
        "$python" -m pip download -q --no-deps -d "$peers/wheels" "$1" >&2
        "$python" -m zipfile -e "$peers/wheels/${1//-/_}"-*.whl "$directory"
        find "$directory" -path '*/bin/*' -exec chmod +x {} + # zipfile does not
    }
    echo "$PWD/$directory"/*.data/data
}
case $peers in /*) stop "--peers: give a path relative to $PWD" ;; esac
mkdir -p "$peers"
intel=$(wheel impi-rt) runtime=$(wheel intel-cmplr-lib-rt)/lib mpich=$(wheel mpich) ccl=$(wheel oneccl-devel)
mpi_include=$(mpicxx -show | grep -o -E -- '-I[^ ]+' | tr '\n' ' ')
# shellcheck disable=SC2086 # a list
[ -x "$peers/intel" ] || g++ -O2 $mpi_include bench/peer_all_reduce.cpp "$intel/lib/libmpi.so.12" \
    -Wl,-rpath-link,"$intel/lib:$runtime" -o "$peers/intel"
[ -x "$peers/mpich5" ] || g++ -O2 -I"$mpich/include" bench/peer_all_reduce.cpp "$mpich/lib/libmpi.so.12" \
    -Wl,-rpath,"$mpich/lib" -o "$peers/mpich5"
[ -x "$peers/oneccl" ] || {
    # The static library names variables of Intel's tracing library, which is not part of the package.
    nm -u "$ccl/lib/ccl/cpu/lib/libccl.a" 2>/dev/null | grep -o -E '__itt_[a-z_]+_ptr__3_0' | sort -u |
        sed 's/.*/void *&;/' >"$peers/tracing.c"
    gcc -c "$peers/tracing.c" -o "$peers/tracing.o"
    hwloc=$(ldconfig -p | grep -o -m 1 '/.*libhwloc\.so\.15')
    # shellcheck disable=SC2086
    g++ -O2 -std=c++17 -DONECCL $mpi_include -I"$ccl/include" bench/peer_all_reduce.cpp "$peers/tracing.o" \
        "$ccl/lib/ccl/cpu/lib/libccl.a" "$intel/lib/libmpi.so.12" "$runtime"/lib{intlc.so.5,imf.so,svml.so,irng.so} \
        "$hwloc" -Wl,-rpath-link,"$intel/lib:$runtime" -lpthread -ldl -lrt -o "$peers/oneccl"
}
[ -e "$peers/deepspeed_shm_comm.so" ] || {
    "$python" -m pip download -q --no-deps --no-build-isolation --no-binary :all: -d "$peers/wheels" deepspeed
    tar xzf "$peers"/wheels/deepspeed-*.tar.gz -C "$peers"
    sources=$(echo "$peers"/deepspeed-*/deepspeed/ops/csrc/cpu/comm)
    torch=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    g++ -w -shared -fPIC -std=c++20 -O2 -fopenmp -march=native -DTORCH_EXTENSION_NAME=deepspeed_shm_comm \
        -I"$torch/include" -I"$torch/include/torch/csrc/api/include" -I"$headers" "$sources/shm_interface.cpp" \
        "$sources/shm.cpp" -L"$torch/lib" -ltorch -ltorch_cpu -lc10 -ltorch_python \
        -Wl,-rpath,"$torch/lib" -o "$peers/deepspeed_shm_comm.so"
}

# ---- the rounds ----

results=$(mktemp -d)
trap 'rm -rf "$results"; rm -f /dev/shm/deepspeed_allreduce_buffer_*' EXIT
with_intel="env I_MPI_ROOT=$intel I_MPI_FABRICS=shm LD_LIBRARY_PATH=$intel/lib:$runtime CCL_ATL_TRANSPORT=mpi"
with_intel+=" CCL_MPI_LIBRARY_PATH=$intel/lib/libmpi.so.12 CCL_LOG_LEVEL=error"

# torch_ranks ROUND [EXTENSION]
torch_ranks() {
    local pids=() rank
    for rank in 0 1; do
        # shellcheck disable=SC2086
        LOCAL_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000)) \
            "$python" bench/torch_collectives.py "$rank" 2 "$results/meeting.${2:+deepspeed}.$1" $bytes \
            ${2:+--deepspeed "$2"} 2>"$results/log.$rank" &
        pids+=($!)
    done
    wait "${pids[0]}" && wait "${pids[1]}"
}

# contender NAME ROUND: prints "BYTES P50".
# shellcheck disable=SC2086 # lists
contender() {
    case $1 in
        lockstep*) mpiexec -n 2 "$build/bench/collectives" --sizes "${bytes// /,}" --algorithms "${1#lockstep }" --csv \
            "$results/csv" >"$results/log.0" 2>&1 && awk -F , 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i }
                NR > 1 { print $at["bytes"], $at["p50_us"] }' "$results/csv" ;;
        "Intel MPI") $with_intel "$intel/bin/mpiexec.hydra" -n 2 "$peers/intel" $bytes ;;
        oneCCL) $with_intel "$intel/bin/mpiexec.hydra" -n 2 "$peers/oneccl" $bytes ;;
        "oneCCL nreduce") $with_intel CCL_ALLREDUCE=nreduce "$intel/bin/mpiexec.hydra" -n 2 "$peers/oneccl" $bytes ;;
        "MPICH 5") "$mpich/bin/mpiexec" -n 2 "$peers/mpich5" $bytes ;;
        DeepSpeed) torch_ranks "$2" "$peers/deepspeed_shm_comm.so" ;;
        Gloo) torch_ranks "$2" ;;
    esac 2>>"$results/log.0" >"$results/$1.$2" || { cat "$results"/log.*; stop "$1 failed in round $2"; }
}

names=("lockstep shm" "lockstep shm-staged" "lockstep mpi" "Intel MPI" oneCCL "oneCCL nreduce" "MPICH 5" DeepSpeed Gloo)
for round in $(seq "$rounds"); do
    for i in "${!names[@]}"; do
        [ $((round % 2)) -eq 1 ] || i=$((${#names[@]} - 1 - i))
        contender "${names[i]}" "$round"
    done
done

"$python" - "$results" "${names[@]}" <<'PYTHON'
import glob, statistics, sys

print("all-reduce, 2 ranks, microseconds: median over the rounds of a round's median [min .. max]")
for number, name in enumerate(sys.argv[2:]):
    times = {}
    for path in glob.glob(f"{glob.escape(sys.argv[1])}/{name}.[0-9]*"):
        for line in open(path):
            words = line.split()
            if len(words) == 2 and words[0].isdigit():  # oneCCL prints other lines, too
                times.setdefault(int(words[0]), []).append(float(words[1]))
    if not times or len({len(v) for v in times.values()}) != 1:
        sys.exit(f"collectives_vs_peers.sh: {name}: sizes are missing: {times}")
    if number == 0:
        print(f"{'bytes':20}" + "".join(f"{size:>30}" for size in sorted(times)))
    print(f"{name:20}" + "".join(f"{statistics.median(v):>12.2f} [{min(v):.2f} .. {max(v):.2f}]".rjust(30)
                                 for _, v in sorted(times.items())))
PYTHON
