#!/usr/bin/env bash
# Speed on one GPU: tokens per second of gpt and gpt2, in bf16, TF32 and float32, and the share of this GPU's peak rate
# for matrix products; PyTorch, eager and compiled, where it is installed; and the cost of DDP on a single rank.
#
#   tools/bench/gpu.sh [--build DIR] [--python PYTHON] [--backend nccl|mpi] [--steps N] [--seconds N] [--minutes N]
#                [--gpt-batch N] [--gpt2-batch N]
#
# Batches that do not fit into the GPU's memory are halved until they do. If PyTorch needs a smaller batch than
# lockstep, lockstep is measured at that one, too. A run has --steps steps (50) or as many as take about --seconds (6),
# but at least 10. After --minutes (9) no new run begins, and the script lists what it left out; the most important runs
# come first.
#
# Each run of PyTorch has a run of lockstep at the same batch right beside it; "to PyTorch" is lockstep's tokens per
# second divided by PyTorch's, from one round of each.
#
# Even where TF32 is allowed, cuBLAS may use float32 for products of small matrices: gpt's layers are 256 wide.
#
# A rate counts everything in a step: for lockstep also reading the batch, copying it to the GPU and reading the loss
# back. Floating-point operations of a token: 6 per weight of the matrices (embedding once, as output layer) plus
# 6 * layers * context * width for attention, which is causal: half the operations of full attention. The share is
# relative to the measured peak (tools/bench/matmul_peak.c).
set -euo pipefail
export LC_ALL=C # a decimal comma would stop printf
cd "$(dirname "$0")/../.."
repository=$PWD
source scripts/gpu.sh

usage() {
    sed -n '2,11s/^# \{0,1\}//p' tools/bench/gpu.sh
    exit 2
}

build=build-cuda python=${PYTHON:-python3} backend=nccl steps=50 seconds=6 minutes=9
declare -A largest_batch=([gpt]=64 [gpt2]=32)
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || usage
    case $1 in
        --build) build=$2 ;;
        --python) python=$2 ;;
        --backend) backend=$2 ;;
        --steps) steps=$2 ;;
        --seconds) seconds=$2 ;;
        --minutes) minutes=$2 ;;
        --gpt-batch) largest_batch[gpt]=$2 ;;
        --gpt2-batch) largest_batch[gpt2]=$2 ;;
        *) usage ;;
    esac
    shift 2
done
gpus=$(gpu_names) || { echo "tools/bench/gpu.sh: no NVIDIA GPU here: nothing was measured" >&2; exit 3; }
train=$build/stage4_accumulation/train_cuda
for program in "$train" "$build/bench/matmul_peak" "$build/bench/step_without_ddp_cuda"; do
    [ -x "$program" ] || { echo "tools/bench/gpu.sh: $program is missing: run scripts/gpu_check.sh" >&2; exit 2; }
done
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
read -ra text <<<"$(text_flags "$results")"

# ---- time ----

left_out=() # runs for which there was no time
failed=0

# limited COMMAND...: no run may take longer than two minutes, or longer than the time left and half a minute.
limited() {
    local left=$((60 * minutes - SECONDS + 30))
    timeout -k 10 "$((left < 1 ? 1 : left < 120 ? left : 120))" "$@"
}

# time_for WHAT [SECONDS]: are SECONDS seconds left? If not, WHAT is added to left_out.
time_for() {
    [ $((SECONDS + ${2:-0})) -lt $((60 * minutes)) ] || { left_out+=("$1"); return 1; }
}

# why STATUS LOG: the reason of a failure, in one line
why() {
    if [ "$1" -eq 124 ] || [ "$1" -eq 137 ]; then echo "no end in time"; else grep . "$2" | tail -n 1; fi
}

# ---- the GPU ----

busy=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null | grep -c . || true)
[ "$busy" -eq 0 ] || echo "note: $busy other process(es) use a GPU here, and disturb every figure"
limited "$build/bench/matmul_peak" >"$results/peak"
bf16_peak=$(value "$results/peak" bf16_tflops)
tf32_peak=$(value "$results/peak" tf32_tflops)
fp32_peak=$(value "$results/peak" fp32_tflops)
echo "GPU: $(head -n 1 <<<"$gpus")"
echo "matrix products by cuBLAS: bf16 $bf16_peak, TF32 $tf32_peak, fp32 $fp32_peak TFLOP/s"

[ "$backend" = nccl ] || echo "note: runs over MPI, without --backend nccl: the cost of DDP below is not that over NCCL"

torch=no
if limited "$python" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' 2>/dev/null; then
    torch=yes
else
    echo "PyTorch: NOT RUN: $python has none that sees a GPU (another one: --python)"
fi

# tflops MODEL TOKENS_PER_S: the rate in 10^12 operations per second
tflops() {
    case $1 in
        gpt) set -- "$2" 4 256 128 256 ;;
        gpt2) set -- "$2" 12 768 1024 50304 ;;
    esac
    awk -v rate="$1" -v layers="$2" -v width="$3" -v context="$4" -v rows="$5" 'BEGIN {
        print rate * (6 * (12 * layers * width * width + rows * width) + 6 * layers * context * width) / 1e12 }'
}

# share_of_peak MODEL PRECISION TOKENS_PER_S: in per cent
share_of_peak() {
    local peak=${2}_peak
    awk -v speed="$(tflops "$1" "$3")" -v peak="${!peak}" 'BEGIN {
        printf "%.1f", 100 * speed / peak }'
}

# line MODEL PRECISION PROGRAM BATCH MILLISECONDS TOKENS_PER_S RATIO: one line of the table
line() {
    printf '%-6s %-6s %-18s %6d %10.2f %12.0f %9.2f %7s %% %10s\n' "$1" "$2" "$3" "$4" "$5" "$6" "$(tflops "$1" "$6")" \
        "$(share_of_peak "$1" "$2" "$6")" "$7"
}

# precision_flags PRECISION: the words for lockstep and for torch_gpu.py.
precision_flags() {
    if [ "$1" = tf32 ]; then echo "--precision fp32 --tf32"; else echo "--precision $1"; fi
}

# ---- the runs: each has a number of steps, after a few that warm up; all batches are full ----

lockstep() { # MODEL PRECISION BATCH STEPS FILE
    # shellcheck disable=SC2046 # words on purpose, here and below
    limited "$train" --model "$1" $(precision_flags "$2") --batch-size "$3" --steps "$4" --eval-samples 1 \
        --drop-last --backend "$backend" --timeout 60 "${text[@]}" --json "$5" >"$5.log" 2>&1
}

without_ddp() { # MODEL PRECISION BATCH STEPS FILE
    # shellcheck disable=SC2046
    limited "$build/bench/step_without_ddp_cuda" --model "$1" $(precision_flags "$2") --batch-size "$3" --steps "$4" \
        --drop-last "${text[@]}" >"$5" 2>"$5.log"
}

pytorch() { # MODEL PRECISION BATCH STEPS FILE [--compile]
    # shellcheck disable=SC2046
    limited "$python" tools/bench/torch_gpu.py --model "$1" $(precision_flags "$2") --batch-size "$3" --steps "$4" "${@:6}" \
        >"$5" 2>"$5.log"
}

# ---- batch and number of steps: found once for each model and precision ----

declare -A batches lengths

# find_batch MODEL PRECISION: finds the largest of N, N/2, N/4, ..., at which lockstep runs, and how many steps of it to
# measure. False if there is none, or no time. It tries 4 steps: after two all memory is allocated, and the last two are
# like the measured ones.
find_batch() {
    local key=$1.$2 batch=${largest_batch[$1]} fit=$results/fit status
    [ -z "${batches[$key]:-}" ] || return 0
    time_for "$1 $2" || return
    until status=0; lockstep "$1" "$2" "$batch" 4 "$fit" || status=$?; [ "$status" -eq 0 ]; do
        # The message of lockstep's kernels, and that of NCCL.
        if [ "$batch" -eq 1 ] || ! grep -qE 'memory (is |may be )?full' "$fit.log"; then
            echo "$1 $2: lockstep FAILED at batch $batch: $(why "$status" "$fit.log")"
            cat "$fit.log" >&2
            failed=1
            return 1
        fi
        batch=$((batch / 2))
    done
    batches[$key]=$batch
    lengths[$key]=$(awk -v ms="$(value "$fit" p50)" -v seconds="$seconds" -v most="$steps" 'BEGIN {
        n = ms > 0 ? int(1000 * seconds / ms) : most
        print (n > most ? most : n < 10 ? 10 : n) }')
}

# ---- the table ----

declare -A rates # by model.precision: lockstep's tokens per second in its last run

run_lockstep() { # MODEL PRECISION BATCH
    local key=$1.$2 status=0
    rates[$key]=
    lockstep "$1" "$2" "$3" $((lengths[$key] + 3)) "$results/$key" || status=$?
    if [ "$status" -ne 0 ]; then
        echo "$1 $2: lockstep FAILED at batch $3: $(why "$status" "$results/$key.log")"
        failed=1
        return 1
    fi
    rates[$key]=$(value "$results/$key" tokens_per_s)
    line "$1" "$2" lockstep "$3" "$(value "$results/$key" p50)" "${rates[$key]}" ""
}

measure_lockstep() { # MODEL PRECISION
    find_batch "$1" "$2" && time_for "$1 $2 lockstep" && run_lockstep "$1" "$2" "${batches[$1.$2]}" || return 0
}

# PyTorch at lockstep's batch, halved until it fits. Lockstep ran just before eager PyTorch, at its own batch. For
# compiled PyTorch, or for another batch, it runs once more.
measure_pytorch() { # MODEL PRECISION eager|compiled
    local key=$1.$2 file=$results/$1.$2.$3 flags=() expected=15 status batch=${batches[$1.$2]:-} theirs ratio=-
    [ "$3" = eager ] || { flags=(--compile); expected=60; }
    [ "$torch" = yes ] && [ -n "$batch" ] || return 0
    while time_for "$1 $2 PyTorch $3" "$expected" || return 0; do
        status=0
        pytorch "$1" "$2" "$batch" "${lengths[$key]}" "$file" "${flags[@]}" || status=$?
        theirs=$(value "$file" tokens_per_s)
        [ "$status" -ne 0 ] || [ -z "$theirs" ] || break
        if [ "$batch" -eq 1 ] || ! grep -qi 'out of memory' "$file.log"; then
            echo "$1 $2: PyTorch $3 FAILED at batch $batch: $(why "$status" "$file.log")"
            return 0
        fi
        batch=$((batch / 2))
    done
    if [ "$3" = compiled ] || [ "$batch" -ne "${batches[$key]}" ]; then
        run_lockstep "$1" "$2" "$batch" || return 0
    fi
    if [ -n "${rates[$key]:-}" ]; then
        ratio=$(awk -v ours="${rates[$key]}" -v theirs="$theirs" 'BEGIN { printf "%.2f", ours / theirs }')
    fi
    line "$1" "$2" "PyTorch $3" "$batch" "$(value "$file" step_ms)" "$theirs" "$ratio"
}

# ---- what DDP costs: the step of one rank, and the same step in a program that has no DDP, in turns ----

cost_of_ddp() { # MODEL PRECISION
    local key=$1.$2 round run=$results/round status=0
    find_batch "$1" "$2" && time_for "$1 $2 with and without DDP" 30 || return 0
    rm -f "$results/with" "$results/without"
    for round in 1 2 3; do
        lockstep "$1" "$2" "${batches[$key]}" $((lengths[$key] + 3)) "$run" || status=$?
        [ "$status" -ne 0 ] || without_ddp "$1" "$2" "${batches[$key]}" $((lengths[$key] + 3)) "$run.alone" || status=$?
        if [ "$status" -ne 0 ]; then
            cat "$run"*.log >"$run.logs"
            echo "$1 $2: with and without DDP FAILED in round $round: $(why "$status" "$run.logs")"
            failed=1
            return
        fi
        value "$run" p50 >>"$results/with"
        value "$run.alone" p50 >>"$results/without"
    done
    local with without cost
    with=$(sort -n "$results/with" | sed -n 2p) without=$(sort -n "$results/without" | sed -n 2p)
    cost=$(awk -v with="$with" -v without="$without" 'BEGIN { printf "%+.2f", 100 * (with / without - 1) }')
    printf '%-6s %-6s batch %d: %.3f ms with DDP over %s on 1 rank, %.3f ms without: %s %%\n' "$1" "$2" \
        "${batches[$key]}" "$with" "${backend^^}" "$without" "$cost"
}

heading() {
    echo
    printf '%-6s %-6s %-18s %6s %10s %12s %9s %9s %10s\n' model prec. program batch "step (ms)" tokens/s TFLOP/s \
        "of peak" "to PyTorch"
}

heading
for precision in bf16 tf32 fp32; do
    for model in gpt2 gpt; do
        measure_lockstep "$model" "$precision"
        measure_pytorch "$model" "$precision" eager
    done
done
echo
echo "What DDP costs (medians of three rounds' medians):"
cost_of_ddp gpt2 bf16
cost_of_ddp gpt fp32
if [ "$torch" = yes ]; then # at the end, because each takes about a minute to compile
    heading
    for precision in bf16 tf32 fp32; do
        for model in gpt2 gpt; do
            measure_pytorch "$model" "$precision" compiled
        done
    done
fi
if [ ${#left_out[@]} -gt 0 ]; then
    echo
    printf -v list ', %s' "${left_out[@]}"
    echo "NOT RUN, no time left (--minutes $minutes): ${list#, }"
fi
exit "$failed"
