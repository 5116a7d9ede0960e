#!/usr/bin/env bash
# All-reduce of lockstep and of Gloo (PyTorch's library for CPUs) on this machine, in turns.
#
#   bench/collectives_vs_gloo.sh [--ranks N] [--sizes 1K,64K,1M,13M,100M] [--rounds N] [--build DIR] [--python PYTHON]
#
# The table shows, for every size, Gloo's time and each algorithm's time divided by it: medians over the rounds of a
# round's median. Below 1: faster than Gloo.
set -euo pipefail
cd "$(dirname "$0")/.."

ranks=2 sizes=1K,64K,1M,13M,100M rounds=3 build=build python=${PYTHON:-python3}
while [ $# -gt 0 ]; do
    case $1 in
        --ranks) ranks=$2 ;;
        --sizes) sizes=$2 ;;
        --rounds) rounds=$2 ;;
        --build) build=$2 ;;
        --python) python=$2 ;;
        *) sed -n '2,7s/^# \{0,1\}//p' bench/collectives_vs_gloo.sh; exit 2 ;;
    esac
    shift 2
done
collectives=$build/bench/collectives
[ -x "$collectives" ] ||
    { echo "collectives_vs_gloo.sh: $collectives is missing: build first, or give --build DIR" >&2; exit 2; }
"$python" -c 'import torch.distributed as d; assert d.is_gloo_available()' 2>/dev/null ||
    { echo "collectives_vs_gloo.sh: $python has no PyTorch with Gloo; give another with --python" >&2; exit 2; }

export OMP_NUM_THREADS=1
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
IFS=, read -ra list <<< "$sizes"
bytes=()
for size in "${list[@]}"; do
    bytes+=("$(numfmt --from=iec "$size")")
done

# gloo_round ROUND: each rank is a separate process, as in lockstep.
gloo_round() {
    local pids=() rank
    for rank in $(seq 0 $((ranks - 1))); do
        "$python" bench/torch_collectives.py "$rank" "$ranks" "$results/meeting.$1" "${bytes[@]}" > "$results/gloo.$1.$rank" &
        pids+=($!)
    done
    for rank in "${!pids[@]}"; do
        wait "${pids[$rank]}" || { echo "collectives_vs_gloo.sh: Gloo's rank $rank failed" >&2; exit 1; }
    done
}

for round in $(seq "$rounds"); do
    # shellcheck disable=SC2086 # MPIEXEC_FLAGS is several words
    mpiexec ${MPIEXEC_FLAGS:-} -n "$ranks" "$collectives" --sizes "$sizes" --csv "$results/lockstep.$round" > "$results/log" 2>&1 ||
        { cat "$results/log" >&2; exit 1; }
    gloo_round "$round"
done

"$python" - "$results" "$ranks" <<'PYTHON'
import csv, glob, statistics, sys

ours, gloo = {}, {}
for path in glob.glob(f"{sys.argv[1]}/lockstep.*"):
    for row in csv.DictReader(open(path)):
        ours.setdefault(int(row["bytes"]), {}).setdefault(row["algorithm"], []).append(float(row["p50_us"]))
for path in glob.glob(f"{sys.argv[1]}/gloo.*.0"):
    for line in open(path):
        size, p50 = line.split()
        gloo.setdefault(int(size), []).append(float(p50))
names = list(next(iter(ours.values())))
print(f"{sys.argv[2]} ranks; Gloo in microseconds [min .. max over rounds]; the others: p50 divided by Gloo's")
print(f"{'bytes':>10} {'Gloo':>29} " + " ".join(f"{name:>18}" for name in names))
for size in sorted(ours):
    g = gloo[size]
    ratios = [statistics.median(ours[size][name]) / statistics.median(g) for name in names]
    print(f"{size:>10} {statistics.median(g):>9.0f} [{min(g):>7.0f} ..{max(g):>8.0f}] "
          + " ".join(f"{ratio:>18.3f}" for ratio in ratios))
PYTHON
