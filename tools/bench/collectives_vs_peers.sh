#!/usr/bin/env bash
# All-reduce of lockstep beside the fastest other libraries for one host, in turns. Prints a table in Markdown.
#
#   tools/bench/collectives_vs_peers.sh --python VENV/bin/python [--ranks N] [--rounds N] [--pause SECONDS]
#                                 [--results DIR] [--build DIR] [--peers DIR]
#
# Peers: Intel MPI, oneCCL (with its default algorithm, and with nreduce), MPICH 5, DeepSpeed's kernels for shared
# memory, Gloo. The python needs pip and PyTorch. What is missing in --peers [build-peers] is downloaded from PyPI
# (220 MB) and built there (two minutes). Needs MPICH's libraries. Every other round runs backwards. Ranks are bound as
# each library does it by itself; the first lines say how. What is measured stays in --results [PEERS/results-N-ranks]:
# after an interruption the same command goes on, and with more --rounds it adds the missing ones. --pause: before each
# run, where others use the machine, too.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."

rounds=4 ranks=2 pause=0 build=build python=${PYTHON:-python3} peers=build-peers results=
while [ $# -gt 0 ]; do
    case $1 in
        --rounds) rounds=$2 ;;
        --ranks) ranks=$2 ;;
        --pause) pause=$2 ;;
        --results) results=$2 ;;
        --build) build=$2 ;;
        --python) python=$2 ;;
        --peers) peers=$2 ;;
        *) sed -n '2,12s/^# \{0,1\}//p' tools/bench/collectives_vs_peers.sh; exit 2 ;;
    esac
    shift 2
done
stop() { echo "collectives_vs_peers.sh: $*" >&2; exit 2; }
[ -x "$build/bench/collectives" ] ||
    stop "$build/bench/collectives is missing: cmake --build $build --target collectives, or give --build DIR"
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
sources=(tools/bench/peer_all_reduce.cpp tools/bench/{fresh,ranks}.c -lstdc++)
# built NAME: false if it has to be built, because it is missing or older than its sources.
built() { [ -e "$peers/$1" ] && [ -z "$(find tools/bench/{peer_all_reduce.cpp,fresh.?,ranks.?} -newer "$peers/$1")" ]; }
built fresh.so || gcc -O2 -shared -fPIC tools/bench/fresh.c -o "$peers/fresh.so"
# shellcheck disable=SC2086 # a list
built intel || gcc -O2 $mpi_include "${sources[@]}" "$intel/lib/libmpi.so.12" \
    -Wl,-rpath-link,"$intel/lib:$runtime" -o "$peers/intel"
built mpich5 || gcc -O2 -I"$mpich/include" "${sources[@]}" "$mpich/lib/libmpi.so.12" \
    -Wl,-rpath,"$mpich/lib" -o "$peers/mpich5"
built oneccl || {
    # The static library names variables of Intel's tracing library, which is not part of the package.
    nm -u "$ccl/lib/ccl/cpu/lib/libccl.a" 2>/dev/null | grep -o -E '__itt_[a-z_]+_ptr__3_0' | sort -u |
        sed 's/.*/void *&;/' >"$peers/tracing.c"
    gcc -c "$peers/tracing.c" -o "$peers/tracing.o"
    hwloc=$(ldconfig -p | grep -o -m 1 '/.*libhwloc\.so\.15')
    # shellcheck disable=SC2086
    gcc -O2 -DONECCL $mpi_include -I"$ccl/include" "${sources[@]}" "$peers/tracing.o" \
        "$ccl/lib/ccl/cpu/lib/libccl.a" "$intel/lib/libmpi.so.12" "$runtime"/lib{intlc.so.5,imf.so,svml.so,irng.so} \
        "$hwloc" -Wl,-rpath-link,"$intel/lib:$runtime" -lpthread -ldl -lrt -o "$peers/oneccl"
}
[ -e "$peers/deepspeed_shm_comm.so" ] || {
    "$python" -m pip download -q --no-deps --no-build-isolation --no-binary :all: -d "$peers/wheels" deepspeed
    tar xzf "$peers"/wheels/deepspeed-*.tar.gz -C "$peers"
    kernels=$(echo "$peers"/deepspeed-*/deepspeed/ops/csrc/cpu/comm)
    torch=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    g++ -w -shared -fPIC -std=c++20 -O2 -fopenmp -march=native -DTORCH_EXTENSION_NAME=deepspeed_shm_comm \
        -I"$torch/include" -I"$torch/include/torch/csrc/api/include" -I"$headers" "$kernels/shm_interface.cpp" \
        "$kernels/shm.cpp" -L"$torch/lib" -ltorch -ltorch_cpu -lc10 -ltorch_python \
        -Wl,-rpath,"$torch/lib" -o "$peers/deepspeed_shm_comm.so"
}

# ---- the rounds ----

scratch=$(mktemp -d -p /dev/shm) results=${results:-$peers/results-$ranks-ranks}
trap 'rm -rf "$scratch"; rm -f /dev/shm/deepspeed_allreduce_buffer_*' EXIT
mkdir -p "$results"
with_intel="env I_MPI_ROOT=$intel I_MPI_FABRICS=shm LD_LIBRARY_PATH=$intel/lib:$runtime"
with_intel+=" CCL_ATL_TRANSPORT=mpi CCL_MPI_LIBRARY_PATH=$intel/lib/libmpi.so.12 CCL_LOG_LEVEL=error"

# torch_ranks ROUND [EXTENSION]
torch_ranks() {
    local pids=() rank
    for ((rank = 0; rank < ranks; rank++)); do
        # shellcheck disable=SC2086
        LOCAL_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000)) \
            "$python" tools/bench/torch_collectives.py "$rank" "$ranks" "$scratch/meeting.${2:+deepspeed}.$1" \
            "$peers/fresh.so" $bytes ${2:+--deepspeed "$2"} 2>"$scratch/log.$rank" &
        pids+=($!)
    done
    for rank in "${pids[@]}"; do # where one ends with a wrong sum, the others would wait for it
        wait -n "${pids[@]}" 2>/dev/null || { kill "${pids[@]}" 2>/dev/null; return 1; }
    done
}

# contender NAME ROUND: its lines "BYTES FRESH LEFT", medians in microseconds, become a file of $results.
# shellcheck disable=SC2086 # lists
contender() {
    case $1 in
        lockstep*) mpiexec -n "$ranks" "$build/bench/collectives" --sizes "${bytes// /,}" --budget 0.25 --algorithms \
            "${1#lockstep }" --csv "$scratch/csv" >"$scratch/out" &&
            grep -E '^# (processors|caches|a meeting)' "$scratch/out" &&
            awk -F , 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i }
                NR > 1 { print $at["bytes"], $at["p50_us"], $at["left_p50_us"] }' "$scratch/csv" ;;
        "Intel MPI") $with_intel "$intel/bin/mpiexec.hydra" -n "$ranks" "$peers/intel" $bytes ;;
        oneCCL) $with_intel "$intel/bin/mpiexec.hydra" -n "$ranks" "$peers/oneccl" $bytes ;;
        "oneCCL nreduce") $with_intel CCL_ALLREDUCE=nreduce "$intel/bin/mpiexec.hydra" -n "$ranks" "$peers/oneccl" \
            $bytes ;;
        "MPICH 5") "$mpich/bin/mpiexec" -n "$ranks" "$peers/mpich5" $bytes ;;
        DeepSpeed) torch_ranks "$2" "$peers/deepspeed_shm_comm.so" ;;
        Gloo) torch_ranks "$2" ;;
    esac 2>"$scratch/log" >"$scratch/done" || { cat "$scratch"/{log*,done}; stop "$1 failed in round $2"; }
    mv "$scratch/done" "$results/$1.$2"
}

names=("lockstep shm" "lockstep shm-staged" "lockstep mpi" "Intel MPI" oneCCL "oneCCL nreduce" "MPICH 5" DeepSpeed Gloo)
for round in $(seq "$rounds"); do
    for i in "${!names[@]}"; do
        [ $((round % 2)) -eq 1 ] || i=$((${#names[@]} - 1 - i))
        [ -e "$results/${names[i]}.$round" ] || { sleep "$pause" && contender "${names[i]}" "$round"; }
    done
done

"$python" - "$results" "$ranks" "${names[@]}" <<'PYTHON'
import glob, os, statistics, sys

def short(us):
    """Three digits, or whole microseconds."""
    return f"{us:.{2 if us < 10 else 1}f}" if us < 100 else f"{us:,.0f}"

def cell(times):
    if not times:
        return "-"
    fresh, left = zip(*times)
    spread = f"[{short(min(fresh))} .. {short(max(fresh))}]"
    return f"{short(statistics.median(fresh))} {spread} / {short(statistics.median(left))}"

def row(*cells):
    print(f"| {' | '.join(cells)} |")

def group(runs):
    """A virtual machine may move its processors to cores that share no cache: then a meeting takes several times as
    long. The two kinds of runs are told apart, unless ranks share a processor."""
    times = sorted(run["meeting"] for run in runs)
    short, long = max(zip(times, times[1:]), key=lambda pair: pair[1] / pair[0])
    if int(sys.argv[2]) > os.cpu_count() or long < 2 * short:
        return [runs]
    return [[run for run in runs if run["meeting"] <= short], [run for run in runs if run["meeting"] >= long]]

names, head, runs = sys.argv[3:], {}, []
for name in names:
    for path in glob.glob(f"{glob.escape(sys.argv[1])}/{glob.escape(name)}.[0-9]*"):
        run = {"name": name, "times": {}, "meeting": 0.0}
        for line in open(path):
            words = line.split()
            if len(words) == 3 and words[0].isdigit():  # oneCCL prints other lines, too
                run["times"][int(words[0])] = float(words[1]), float(words[2])
            elif "meeting of all ranks" in line:
                run["meeting"] = float(words[-2])
            elif line.startswith("# "):
                head.setdefault(line.strip(), {})[name] = True
        runs.append(run)
if {run["name"] for run in runs} != set(names) or len({tuple(run["times"]) for run in runs}) != 1:
    sys.exit(f"collectives_vs_peers.sh: contenders or sizes are missing: {runs}")
for line, whose in head.items():
    print(line + ("" if "caches" in line else f" ({', '.join(whose)})"))
for some in group(runs):
    meetings, sizes = [run["meeting"] for run in some], list(some[0]["times"])
    print(f"\nall-reduce, {sys.argv[2]} ranks, microseconds, {len(some)} runs in which a meeting took {min(meetings)} "
          f"to {max(meetings)} us; of a run's\nmedian: freshly written data, median over the runs [min .. max] / data "
          "as the call before left it, median\n")
    row("", *(f"{size >> 20} MB" if size >> 20 else f"{size >> 10} KB" for size in sizes))
    print("|---" * (1 + len(sizes)) + "|")
    for name in names:
        row(name, *(cell([run["times"][size] for run in some if run["name"] == name]) for size in sizes))
PYTHON
