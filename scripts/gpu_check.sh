#!/usr/bin/env bash
# gpu_check.sh: on a machine with an NVIDIA GPU: builds train_cuda, checks that it computes what the CPU computes, and
# measures it (bench/gpu.sh). Ends with a table of everything that was run, and of what was not and why. Needs no
# network: what is missing is said. Exit status: 0 all that ran passed, 1 something failed, 2 wrong use, 3 no GPU.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/build.sh"
source "$repository/scripts/gpu.sh"
source "$repository/scripts/mpi.sh"

usage() {
    cat <<'END'
usage: scripts/gpu_check.sh [--no-bench] [-DVARIABLE=VALUE]...
  --no-bench      check only
  -DVAR=VALUE     handed to cmake, e.g. -DNCCL_ROOT=/usr/lib/python3/dist-packages/nvidia/nccl
END
}

bench=yes
definitions=()
while [ $# -gt 0 ]; do
    case $1 in
        --no-bench) bench=no ;;
        -D?*) definitions+=("$1") ;;
        -h | --help) usage; exit 0 ;;
        *) echo "gpu_check: error: unknown argument $1" >&2; usage >&2; exit 2 ;;
    esac
    shift
done

gpus=$(gpu_names) || {
    echo "gpu_check: no NVIDIA GPU here (nvidia-smi is missing or lists none): nothing was built or run" >&2
    exit 3
}
gpu_count=$(wc -l <<<"$gpus")
echo "GPUs: $gpu_count"
nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader

use_own_openblas_kernels
build_preset cuda "${definitions[@]}"
build=$(preset_directory cuda)
logs=$build/gpu_check
rm -rf "$logs"
mkdir -p "$logs"
cd "$repository"

# ---- the table ----

failures=0

# record NAME RESULT
record() {
    printf '%-68s %s\n' "$1" "$2" | tee -a "$logs/table"
}

# check NAME COMMAND...: runs it; its output goes to a file that is named where it fails.
check() {
    local name=$1 log start=$SECONDS status=0
    shift
    log=$logs/$(tr -c 'a-zA-Z0-9\n' '_' <<<"$name").log
    printf '$ %s\n' "$*" >"$log"
    "$@" >>"$log" 2>&1 || status=$?
    if [ "$status" -eq 0 ]; then
        record "$name" "passed, $((SECONDS - start)) s"
    else
        record "$name" "FAILED with status $status, see $log"
        tail -n 5 "$log" | sed 's/^/    | /'
        failures=$((failures + 1))
    fi
}

not_run() {
    record "$1" "NOT RUN: $2"
}

# ---- every operation, against float64 ----

# device_tests PATTERN: ctest says 0 also where a test was skipped
device_tests() {
    ctest --test-dir "$build" --output-on-failure --no-tests=error -R "$1" | tee "$logs/device_tests" || return
    ! grep -q 'Skipped' "$logs/device_tests"
}
check "tensor cores: squares lie as device_cuda_mma.h says" device_tests '^device_mma_cuda$'
check "operations against float64" device_tests '^device(_[a-z]+)?_cuda$'

# ---- several ranks on one GPU, over MPI ----

read -ra text <<<"$(text_flags "$logs")"
[ ${#text[@]} -eq 0 ] || echo "note: the package jargon-text is missing; the GPT trains on lockstep's own sources"
sgd=(--model gpt --batch-size 8 --steps 10 --optimizer sgd --momentum 0 --eval-samples 16 "${text[@]}")
shared=(--share-gpu --backend mpi)

for stage in stage1_naive stage2_bucketed stage3_overlap stage4_accumulation; do
    train=$build/$stage/train_cuda
    for ranks in 2 4; do
        check "$stage, $ranks ranks on one GPU: to 1e-5" run_ranks "$ranks" "$train" "${sgd[@]}" "${shared[@]}" --verify
        check "$stage, $ranks ranks on one GPU: every bit" \
            run_ranks "$ranks" "$train" "${sgd[@]}" "${shared[@]}" --allreduce ordered --verify exact
    done
done
train=$build/stage4_accumulation/train_cuda
for precision in bf16 fp16; do
    check "stage4_accumulation, 2 ranks, $precision, K=2: every bit" run_ranks 2 "$train" "${sgd[@]}" "${shared[@]}" \
        --precision "$precision" --grad-dtype bf16 --accumulate 2 --allreduce ordered --verify exact
done
check "stage4_accumulation, 2 ranks, fp16, steps left out: every bit" run_ranks 2 "$train" "${sgd[@]}" "${shared[@]}" \
    --precision fp16 --loss-scale 131072 --clip-grad-norm 0.1 --allreduce ordered --verify exact

check "stage4_accumulation, 2 ranks, TF32, K=2: every bit" run_ranks 2 "$train" "${sgd[@]}" "${shared[@]}" --tf32 \
    --accumulate 2 --allreduce ordered --verify exact

# ---- the GPU against the CPU ----

gpu_equals_cpu() {
    "$build/stage1_naive/train" "${sgd[@]}" --save "$logs/cpu.safetensors" &&
        run_ranks 2 "$build/stage3_overlap/train_cuda" "${sgd[@]}" "${shared[@]}" --save "$logs/gpu.safetensors" &&
        "$build/tests/compare_weights" "$logs/cpu.safetensors" "$logs/gpu.safetensors" 1e-5
}
if [ -x "$build/tests/compare_weights" ]; then
    check "weights: 2 ranks on the GPU against 1 process on the CPU" gpu_equals_cpu
else
    not_run "weights: 2 ranks on the GPU against 1 process on the CPU" "tests/compare_weights was not built (cmocka?)"
fi

same_bits_twice() {
    local round hashes=()
    for round in 1 2; do
        "$train" --model gpt --batch-size 8 --steps 20 --eval-samples 16 "${text[@]}" "$@" \
            --json "$logs/run.$round" || return
        hashes+=("$(value "$logs/run.$round" weights_hash)")
    done
    echo "weights: ${hashes[*]}"
    [ -n "${hashes[0]}" ] && [ "${hashes[0]}" = "${hashes[1]}" ]
}
check "two runs give the same bits, fp32, AdamW" same_bits_twice
check "two runs give the same bits, TF32, AdamW" same_bits_twice --tf32
check "two runs give the same bits, bf16, AdamW" same_bits_twice --precision bf16

# ---- NCCL ----

for stage in stage1_naive stage2_bucketed stage3_overlap stage4_accumulation; do
    check "$stage, NCCL, a GPU for each of $gpu_count rank(s): to 1e-5" \
        run_ranks "$gpu_count" "$build/$stage/train_cuda" "${sgd[@]}" --backend nccl --verify
done
check "stage4_accumulation, NCCL, $gpu_count rank(s), bf16 on the wire" \
    run_ranks "$gpu_count" "$train" "${sgd[@]}" --backend nccl --precision bf16 --grad-dtype bf16
[ "$gpu_count" -gt 1 ] || not_run "NCCL between GPUs" "there is one GPU only"

# Two ranks on one GPU without --share-gpu: refused, in one line, by all.
refuses_to_share() {
    local status=0
    CUDA_VISIBLE_DEVICES=0 run_ranks 2 "$train" "${sgd[@]}" 2>"$logs/refused" || status=$?
    cat "$logs/refused"
    [ "$status" -eq 2 ] && grep -q -e '--share-gpu' "$logs/refused"
}
check "two ranks on one GPU without --share-gpu are refused" refuses_to_share

# ---- compute-sanitizer ----

sanitizer=$(command -v compute-sanitizer || true)
[ -n "$sanitizer" ] || [ ! -x /usr/local/cuda/bin/compute-sanitizer ] || sanitizer=/usr/local/cuda/bin/compute-sanitizer
small=(--model gpt --layers 1 --heads 2 --width 64 --context 64 --batch-size 4 --steps 2 --eval-samples 4 --backend mpi
    "${text[@]}")
for tool in memcheck racecheck; do
    if [ -n "$sanitizer" ]; then
        check "compute-sanitizer $tool, fp32" "$sanitizer" --tool "$tool" --error-exitcode 7 "$train" "${small[@]}"
        check "compute-sanitizer $tool, bf16" "$sanitizer" --tool "$tool" --error-exitcode 7 "$train" "${small[@]}" \
            --precision bf16 --grad-dtype bf16
    else
        not_run "compute-sanitizer $tool" "compute-sanitizer is not installed"
    fi
done

# ---- the GPU's own times in a trace, and what a profiler is told ----

trace_has_gpu_times() {
    local name
    run_ranks 2 "$train" "${small[@]}" --share-gpu --trace "$logs/trace.json" || return
    for name in '"step 1","pid":1,"tid":2' '"block 0","pid":0,"tid":2' '"backward","pid":0,"tid":2' \
        '"copy to host","pid":0,"tid":3'; do
        grep -q -e "{\"name\":$name" "$logs/trace.json" || { echo "no event with $name"; return 1; }
    done
}
check "--trace has the GPU's own times" trace_has_gpu_times

nsys_sees_ranges() {
    local range
    nsys profile --trace=nvtx --stats=true --force-overwrite=true --output "$logs/profile" "$train" "${small[@]}" |
        tee "$logs/ranges" || return
    for range in 'step 1' 'block 0' 'backward' 'attention' 'all_reduce bucket 0'; do
        grep -q -e "$range" "$logs/ranges" || { echo "no range '$range'"; return 1; }
    done
}
if command -v nsys >/dev/null; then
    check "nsys sees steps, layers and buckets" nsys_sees_ranges
else
    not_run "NVTX ranges in nsys" "nsys is not installed"
fi

# ---- speed ----

if [ "$bench" = yes ]; then
    status=0
    "$repository/bench/gpu.sh" --build "$build" | tee "$logs/bench" || status=$?
    [ "$status" -eq 0 ] || { record "bench/gpu.sh" "FAILED with status $status"; failures=$((failures + 1)); }
else
    not_run "bench/gpu.sh" "--no-bench"
fi

echo
echo "=== What was run on $(sort <<<"$gpus" | uniq -c | sed 's/^ *\([0-9]*\) /\1 x /' | paste -sd ',') ==="
cat "$logs/table"
[ "$failures" -eq 0 ] || { echo "gpu_check: $failures check(s) failed" >&2; exit 1; }
echo "gpu_check: all checks that ran passed"
