#!/usr/bin/env bash
# Speed on one GPU: tokens per second of gpt and gpt2, in float32, TF32 and bf16, and the share of what this GPU
# multiplies at best; PyTorch, eager and compiled, beside it where it is installed; and what DDP costs a single rank.
#
#   bench/gpu.sh [--build DIR] [--python PYTHON] [--steps N] [--gpt-batch N] [--gpt2-batch N]
#
# Batches that do not fit into the GPU's memory are halved until they do, for both programs. A rate counts everything in
# a step: for lockstep also reading the batch, copying it to the GPU and reading the loss back. Floating-point
# operations of a token: 6 per weight of the matrices (embedding once, as output layer) plus 6 * layers * context * width
# for attention, which is causal: half of what a full one would count. The share is that of the measured peak
# (bench/matmul_peak.c).
set -euo pipefail
export LC_ALL=C # a decimal comma would stop printf
cd "$(dirname "$0")/.."
repository=$PWD
source scripts/gpu.sh

build=build-cuda python=${PYTHON:-python3} steps=50 gpt_batch=64 gpt2_batch=32
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2; }
    case $1 in
        --build) build=$2 ;;
        --python) python=$2 ;;
        --steps) steps=$2 ;;
        --gpt-batch) gpt_batch=$2 ;;
        --gpt2-batch) gpt2_batch=$2 ;;
        *) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
    shift 2
done
gpus=$(gpu_names) || { echo "bench/gpu.sh: no NVIDIA GPU here: nothing was measured" >&2; exit 3; }
train=$build/stage4_accumulation/train_cuda
for program in "$train" "$build/bench/matmul_peak" "$build/bench/step_without_ddp_cuda"; do
    [ -x "$program" ] || { echo "bench/gpu.sh: $program is missing: build with --preset cuda first" >&2; exit 2; }
done
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
read -ra text <<<"$(text_flags "$results")"

busy=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null | grep -c . || true)
[ "$busy" -eq 0 ] || echo "note: $busy other process(es) use a GPU here, and blur every figure"
"$build/bench/matmul_peak" >"$results/peak"
bf16_peak=$(value "$results/peak" bf16_tflops)
tf32_peak=$(value "$results/peak" tf32_tflops)
fp32_peak=$(value "$results/peak" fp32_tflops)
echo "GPU: $(head -n 1 <<<"$gpus")"
echo "matrix products by cuBLAS: bf16 $bf16_peak, TF32 $tf32_peak, fp32 $fp32_peak TFLOP/s"

torch=no
if "$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' 2>/dev/null; then
    torch=yes
else
    echo "PyTorch: NOT RUN: $python has none that sees a GPU (another one: --python)"
fi

# 10^12 operations per second at so many tokens per second
tflops() {
    case $1 in
        gpt) set -- "$2" 4 256 128 256 ;;
        gpt2) set -- "$2" 12 768 1024 50304 ;;
    esac
    awk -v rate="$1" -v layers="$2" -v width="$3" -v context="$4" -v rows="$5" 'BEGIN {
        print rate * (6 * (12 * layers * width * width + rows * width) + 6 * layers * context * width) / 1e12 }'
}

# line MODEL PRECISION PROGRAM BATCH MILLISECONDS TOKENS_PER_S: one line of the table
line() {
    local peak=${2}_peak speed
    peak=${!peak}
    speed=$(tflops "$1" "$6")
    awk -v model="$1" -v precision="$2" -v program="$3" -v batch="$4" -v ms="$5" -v rate="$6" -v speed="$speed" \
        -v peak="$peak" 'BEGIN {
        printf "%-6s %-6s %-18s %6d %10.2f %12.0f %9.2f %7.1f %%\n", model, precision, program, batch, ms, rate, speed,
            100 * speed / peak }'
}

# precision_flags PRECISION: the words for lockstep and for torch_gpu.py.
precision_flags() {
    if [ "$1" = tf32 ]; then echo "--precision fp32 --tf32"; else echo "--precision $1"; fi
}

lockstep() { # MODEL PRECISION BATCH FILE
    # shellcheck disable=SC2046 # words on purpose, here and below
    "$train" --model "$1" $(precision_flags "$2") --batch-size "$3" --steps $((steps + 3)) --eval-samples 1 \
        "${text[@]}" --json "$4" >"$4.log" 2>&1
}

pytorch() { # MODEL PRECISION BATCH FILE [--compile]
    # shellcheck disable=SC2046
    "$python" bench/torch_gpu.py --model "$1" $(precision_flags "$2") --batch-size "$3" --steps "$steps" "${@:5}" \
        >"$4" 2>"$4.log"
}

# The largest batch, of N, N/2, N/4, ..., at which lockstep runs.
batch_that_fits() { # MODEL PRECISION N
    local batch=$3
    while ! lockstep "$1" "$2" "$batch" "$results/fit"; do
        if [ "$batch" -eq 1 ] || ! grep -qi 'memory' "$results/fit.log"; then
            cat "$results/fit.log" >&2
            return 1
        fi
        batch=$((batch / 2))
    done
    echo "$batch"
}

compare() { # MODEL PRECISION BATCH
    local batch ours=$results/$1.$2 mode theirs flags
    batch=$(batch_that_fits "$1" "$2" "$3") || { echo "$1 $2: lockstep FAILED, see above"; return 1; }
    lockstep "$1" "$2" "$batch" "$ours" || { echo "$1 $2: lockstep FAILED: $(tail -n 1 "$ours.log")"; return 1; }
    line "$1" "$2" lockstep "$batch" "$(value "$ours" p50)" "$(value "$ours" tokens_per_s)"
    [ "$torch" = yes ] || return 0
    for mode in eager compiled; do
        theirs=$ours.$mode
        [ "$mode" = eager ] && flags=() || flags=(--compile)
        if pytorch "$1" "$2" "$batch" "$theirs" "${flags[@]}" && [ -n "$(value "$theirs" step_ms)" ]; then
            line "$1" "$2" "PyTorch $mode" "$batch" "$(value "$theirs" step_ms)" "$(value "$theirs" tokens_per_s)"
        else
            echo "$1 $2: PyTorch $mode FAILED: $(tail -n 1 "$theirs.log")"
        fi
    done
}

# The step of one rank over NCCL, and the same step in a program that has no DDP, in turns.
cost_of_ddp() { # MODEL PRECISION BATCH
    local batch round
    batch=$(batch_that_fits "$1" "$2" "$3") || return 1
    rm -f "$results/with" "$results/without"
    for round in 1 2 3; do
        lockstep "$1" "$2" "$batch" "$results/round.$round" || return
        value "$results/round.$round" p50 >>"$results/with"
        "$build/bench/step_without_ddp_cuda" --model "$1" --precision "$2" --batch-size "$batch" --steps $((steps + 3)) \
            "${text[@]}" >"$results/alone.$round" || return
        value "$results/alone.$round" p50 >>"$results/without"
    done
    awk -v model="$1" -v precision="$2" -v batch="$batch" -v with="$(sort -n "$results/with" | sed -n 2p)" \
        -v without="$(sort -n "$results/without" | sed -n 2p)" 'BEGIN {
        printf "%-6s %-6s batch %d: %.3f ms with DDP over NCCL on 1 rank, %.3f ms without: %+.1f %%\n", model, precision,
            batch, with, without, 100 * (with / without - 1) }'
}

echo
printf '%-6s %-6s %-18s %6s %10s %12s %9s %9s\n' model prec. program batch "step (ms)" tokens/s TFLOP/s "of peak"
failed=0
for precision in fp32 tf32 bf16; do
    compare gpt "$precision" "$gpt_batch" || failed=1
    compare gpt2 "$precision" "$gpt2_batch" || failed=1
done
echo
echo "What DDP costs (medians of three rounds' medians):"
cost_of_ddp gpt fp32 "$gpt_batch" || failed=1
cost_of_ddp gpt2 bf16 "$gpt2_batch" || failed=1
exit "$failed"
