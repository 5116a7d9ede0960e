#!/usr/bin/env bash
# Step time and memory of lockstep's stages on 2 ranks, and of PyTorch's DistributedDataParallel (DDP), of DDP with
# ZeroRedundancyOptimizer (like --zero 1), and of fully_shard (FSDP2, like --zero 3), on this machine, over Gloo.
#
#   tools/bench/ranks_vs_pytorch.sh [--rounds N] [--models "gpt mlp mlp-toy"] [--build DIR] [--python PYTHON]
#
# gpt: global batch 16, AdamW; mlp: 256, SGD; mlp-toy: 100, SGD; float32, one thread a rank. All run in turns;
# a round's result is the median of its steps. lockstep runs at its defaults, but without clipping, which PyTorch's
# program does not do either.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."

rounds=5 models="gpt mlp mlp-toy" build=build python=${PYTHON:-python3}
while [ $# -gt 0 ]; do
    case $1 in
        --rounds) rounds=$2 ;;
        --models) models=$2 ;;
        --build) build=$2 ;;
        --python) python=$2 ;;
        *) sed -n '2,9s/^# \{0,1\}//p' tools/bench/ranks_vs_pytorch.sh; exit 2 ;;
    esac
    shift 2
done
[ -x "$build/stage5_sharded/train" ] ||
    { echo "ranks_vs_pytorch.sh: $build/stage5_sharded/train is missing: build first, or give --build DIR" >&2; exit 2; }
"$python" -c 'import torch' 2>/dev/null ||
    { echo "ranks_vs_pytorch.sh: $python has no PyTorch; give another with --python" >&2; exit 2; }
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# lockstep MODEL BATCH STEPS ROUND STAGE [FLAGS]
lockstep() {
    local flags="--clip-grad-norm 0 --warmup-steps 0"
    [ "$1" = gpt ] || flags="$flags --momentum 0"
    # shellcheck disable=SC2086 # lists of words
    mpiexec -n 2 "$build"/stage"$5"_*/train --model "$1" --batch-size "$2" $flags --steps $(($3 + 3)) --eval-samples 2 \
        ${6:-} --json "$results/$1.stage $5${6:+, $6}.$4" >"$results/log" 2>&1 || failed "stage $5 ${6:-} with $1"
}

# pytorch MODEL BATCH STEPS ROUND HOW. At times a PyTorch process dies ("terminate called without an active
# exception"). So a run that failed is tried once more, and the script says so.
pytorch() {
    local try
    for try in 1 2; do
        "$python" tools/bench/torch_step.py --model "$1" --batch-size $(($2 / 2)) --steps "$3" --ranks 2 --with "$5" \
            >"$results/$1.PyTorch $5.$4" 2>"$results/log" && return
        echo "ranks_vs_pytorch.sh: PyTorch $5 with $1 failed in round $4, attempt $try of 2" >&2
    done
    failed "PyTorch $5 with $1"
}

failed() {
    cat "$results/log" >&2
    echo "ranks_vs_pytorch.sh: $1 failed; its output is above, and there is no table" >&2
    exit 1
}

awk -v cores="$(nproc --all)" '$1 > cores / 2 {
    print "note: a load of " $1 " on " cores " cores: other programs run, too, and disturb every figure here" }' \
    /proc/loadavg
for round in $(seq "$rounds"); do
    for model in $models; do
        case $model in gpt) sizes="16 12" ;; mlp) sizes="256 100" ;; *) sizes="100 1000" ;; esac
        for stage in 1 2 3 4; do
            # shellcheck disable=SC2086
            lockstep $model $sizes "$round" $stage
        done
        for zero in 1 2 3; do
            # shellcheck disable=SC2086
            lockstep $model $sizes "$round" 5 "--zero $zero"
        done
        for how in ddp zero fsdp; do
            # shellcheck disable=SC2086
            pytorch $model $sizes "$round" $how
        done
    done
done

"$python" - "$results" "$models" <<'PYTHON'
import glob, json, os, statistics, sys

def load(model, name):
    return [json.load(open(path)) for path in sorted(glob.glob(f"{sys.argv[1]}/{model}.{name}.*"))]

for model in sys.argv[2].split():
    names = sorted({os.path.basename(path).split(".")[1] for path in glob.glob(f"{sys.argv[1]}/{model}.*")},
                   key=lambda name: (name.startswith("PyTorch"), name))
    ddp = [run["step_ms"]["p50"] for run in load(model, "PyTorch ddp")]
    version = load(model, "PyTorch ddp")[0]["torch"]
    print(f"{model}, 2 ranks, ms per step: median over {len(ddp)} rounds [min .. max]; PyTorch {version}")
    for name in names:
        runs = load(model, name)
        times = [run["step_ms"]["p50"] for run in runs]
        ratio = statistics.median(x / y for x, y in zip(times, ddp))
        print(f"  {name:18} {statistics.median(times):9.3f} [{min(times):9.3f} .. {max(times):9.3f}]   "
              f"{ratio:6.3f} of DDP   peak {statistics.median(run['peak_rss_mb'] for run in runs):7.1f} MB a rank")
PYTHON
