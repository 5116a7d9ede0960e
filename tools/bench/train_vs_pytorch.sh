#!/usr/bin/env bash
# How long it takes to train the GPT at lockstep's defaults, and with PyTorch on the same text with the same schedule.
#
#   tools/bench/train_vs_pytorch.sh [--rounds N] [--steps N] [--build DIR] [--python PYTHON]
#
# Two cores each: lockstep's stage 4 on 2 ranks, DistributedDataParallel (DDP) on 2 ranks, one PyTorch process with 2
# threads. In turns. The seconds are those of whole programs: start, training, evaluation on the last tenth of the text.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
source scripts/mpi.sh

rounds=1 steps=2800 build=build python=${PYTHON:-python3}
while [ $# -gt 0 ]; do
    case $1 in
        --rounds) rounds=$2 ;;
        --steps) steps=$2 ;;
        --build) build=$2 ;;
        --python) python=$2 ;;
        *) sed -n '2,7s/^# \{0,1\}//p' tools/bench/train_vs_pytorch.sh; exit 2 ;;
    esac
    shift 2
done
train=$build/stage4_accumulation/train
[ -x "$train" ] || { echo "train_vs_pytorch.sh: $train is missing: build first, or give --build DIR" >&2; exit 2; }
"$python" -c 'import torch' 2>/dev/null ||
    { echo "train_vs_pytorch.sh: $python has no PyTorch; give another with --python" >&2; exit 2; }
unset OPENBLAS_CORETYPE # OpenBLAS chooses the kernels for this processor itself
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# timed ROUND NAME COMMAND...: its last line of output, or what it wrote to $results/json, has eval_loss
timed() {
    local round=$1 name=$2 start=$EPOCHREALTIME
    shift 2
    rm -f "$results/json"
    "$@" >"$results/log" 2>&1 || { cat "$results/log" >&2; exit 1; }
    [ -e "$results/json" ] || tail -n 1 "$results/log" >"$results/json"
    printf '%-28s round %s  %7.1f s, %s nats on unseen data\n' "$name" "$round" \
        "$(jq -n "$EPOCHREALTIME - $start")" "$(jq '.eval_loss * 10000 | round / 10000' "$results/json")"
}

echo "gpt, $steps steps of 8 samples; PyTorch $("$python" -c 'import torch; print(torch.__version__)')"
for round in $(seq "$rounds"); do
    timed "$round" "lockstep, 2 ranks" run_ranks 2 "$train" --model gpt --steps "$steps" --json "$results/json"
    timed "$round" "PyTorch DDP, 2 ranks" "$python" tools/bench/torch_train.py --steps "$steps" --ranks 2
    timed "$round" "PyTorch, 2 threads" "$python" tools/bench/torch_train.py --steps "$steps" --threads 2
done
