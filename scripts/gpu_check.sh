#!/usr/bin/env bash
# gpu_check.sh: on a machine with an NVIDIA GPU: builds train_cuda, compares its results with the CPU's, and measures
# it (bench/gpu.sh). Ends with a table of everything that was run, and of everything that was not and why. It needs no
# network: it says what is missing, and scripts/offline_packages.sh brings it. Nothing can hang for ever, because each
# program has a time limit. Exit status: 0 all that ran passed, 1 something failed, 2 wrong use, 3 no GPU.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/build.sh"
source "$repository/scripts/gpu.sh"

parts=(build tests ranks nccl trace sanitizer bench)
usage() {
    cat <<'END'
usage: scripts/gpu_check.sh [--only PART[,PART]] [--minutes N] [--limit SECONDS] [--build DIR] [-DVAR=VALUE]...
  --only PART     tests: every operation against float64; ranks: several on one GPU, over MPI; nccl: a GPU for each
                  rank; trace: the GPU's times in a trace, and nsys; sanitizer: compute-sanitizer; bench: speed.
                  All by default, one after another. The build comes before any; `build` alone stops after it.
  --minutes N     start nothing new after N minutes: for machines that are rented by the minute
  --limit SECONDS how long one program may take (120); under compute-sanitizer three times as long
  --build DIR     where to build (build-cuda/); kept, so that the next call builds only what has changed
  -DVAR=VALUE     passed to cmake, e.g. -DNCCL_ROOT=DIR. The build is for the GPUs in this machine, unless
                  -DCMAKE_CUDA_ARCHITECTURES says otherwise
END
}

wrong_use() {
    echo "gpu_check: error: $1" >&2
    usage >&2
    exit 2
}

only=${parts[*]} minutes=0 limit=120 definitions=()
build=$(preset_directory cuda)
while [ $# -gt 0 ]; do
    case $1 in
        -D?*) definitions+=("$1") ;;
        -h | --help) usage; exit 0 ;;
        --only | --minutes | --limit | --build)
            [ $# -ge 2 ] || wrong_use "$1 needs a value"
            case $1 in
                --only) only=${2//,/ } ;;
                --minutes) minutes=$2 ;;
                --limit) limit=$2 ;;
                --build) build=$(realpath -m "$2") ;;
            esac
            shift
            ;;
        *) wrong_use "unknown argument $1" ;;
    esac
    shift
done
for part in $only; do
    [[ " ${parts[*]} " == *" $part "* ]] || wrong_use "--only $part: there are ${parts[*]}"
done
[[ $minutes =~ ^(0|[1-9][0-9]{0,3})$ ]] || wrong_use "--minutes $minutes is not a whole number"
[[ $limit =~ ^[1-9][0-9]{0,4}$ ]] || wrong_use "--limit $limit is not a whole number of at least 1"

gpus=$(gpu_names) || {
    echo "gpu_check: no NVIDIA GPU here (nvidia-smi is missing or lists none): nothing was built or run" >&2
    exit 3
}
gpu_count=$(wc -l <<<"$gpus")
echo "GPUs: $gpu_count"
nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader

if [ -r "$repository/offline/environment.sh" ]; then
    echo "note: uses MPI and the libraries in offline/, which scripts/offline_packages.sh has unpacked"
    # shellcheck disable=SC1091 # it exists on some machines only
    source "$repository/offline/environment.sh"
fi
source "$repository/scripts/mpi.sh" # after that, because it asks which MPI mpiexec belongs to
use_own_openblas_kernels
if [[ " ${definitions[*]} " != *" -DCMAKE_CUDA_ARCHITECTURES="* ]]; then
    present=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d . | grep -xE '[89][0-9]|1[0-9]{2}' |
        sort -u | paste -sd ';') || true
    [ -z "$present" ] || definitions+=("-DCMAKE_CUDA_ARCHITECTURES=$present")
fi
build_preset_in "$build" cuda "${definitions[@]}"
logs=$build/gpu_check
mkdir -p "$logs"
: >"$logs/table"
cd "$repository"

# ---- the table ----

failures=0
passed=no # whether the last check passed

# record NAME RESULT
record() {
    printf '%-68s %s\n' "$1" "$2" | tee -a "$logs/table"
}

not_run() {
    record "$1" "NOT RUN: $2"
}

# Seconds until --minutes are over.
time_left() {
    if [ "$minutes" -eq 0 ]; then echo 1000000; else echo $((60 * minutes - SECONDS)); fi
}

# limited COMMAND...: runs it, and ends it with status 124 or 137 if it takes too long.
limited() {
    local seconds
    seconds=$(time_left)
    timeout -k 10 "$((seconds < 1 ? 1 : seconds < limit ? seconds : limit))" "$@"
}
run_ranks_under=(limited)

# check NAME COMMAND...: runs it; its output goes to a file, whose name is printed if it fails. COMMAND must limit each
# program that it starts.
check() {
    local name=$1 log start=$SECONDS status=0 result
    shift
    passed=no
    if [ "$(time_left)" -le 0 ]; then
        not_run "$name" "no time left (--minutes $minutes)"
        return
    fi
    log=$logs/$(tr -c 'a-zA-Z0-9\n' '_' <<<"$name").log
    printf '$ %s\n' "$*" >"$log"
    "$@" >>"$log" 2>&1 || status=$?
    if [ "$status" -eq 0 ]; then
        record "$name" "passed, $((SECONDS - start)) s"
        passed=yes
        return
    fi
    if [[ $status =~ ^(124|137)$ ]] && [ "$(time_left)" -le 0 ]; then
        not_run "$name" "cut off after $((SECONDS - start)) s, no time left (--minutes $minutes)"
        return
    fi
    case $status in
        124 | 137) result="no end after $((SECONDS - start)) s (--limit)" ;;
        *) result="status $status" ;;
    esac
    record "$name" "FAILED, $result: see $log"
    tail -n 5 "$log" | sed 's/^/    | /'
    ! grep -q 'Bad address' "$log" ||
        echo "    hint: MPI (UCX) could not read another rank's memory: try again with UCX_TLS=self,posix,sysv"
    failures=$((failures + 1))
}

# ---- every operation, against float64 ----

# Tensor cores come first: if their layout differs from device_cuda_mma.h, many other tests fail, too.
check_tests() {
    local test name found=no
    for test in "$build"/tests/gpu/test_device_mma_cuda "$build"/tests/common/test_device*_cuda; do
        [ -x "$test" ] || continue
        name=${test##*/test_}
        [ "$name" != device_mma_cuda ] || [ "$found" = no ] || continue # it was the first
        found=yes
        check "against float64: ${name%_cuda}" limited "$test"
    done
    [ "$found" = yes ] || not_run "every operation against float64" "no tests were built (cmocka?)"
}

# ---- several ranks on one GPU, over MPI ----

read -ra text <<<"$(text_flags "$logs")"
[ ${#text[@]} -eq 0 ] || echo "note: the package jargon-text is missing; the GPT trains on lockstep's own sources"
stages=(stage1_naive stage2_bucketed stage3_overlap stage4_accumulation)
train=$build/stage4_accumulation/train_cuda
sgd=(--model gpt --batch-size 8 --steps 10 --optimizer sgd --momentum 0 --eval-samples 16 --timeout 60 "${text[@]}")
# Layers so wide that cuBLAS uses TF32 if it is allowed.
wide=(--width 512 --heads 8)
adamw=(--model gpt --batch-size 8 --steps 20 --eval-samples 16 --timeout 60 "${text[@]}")
small=(--model gpt --layers 1 --heads 2 --width 64 --context 64 --batch-size 4 --steps 2 --eval-samples 4 --timeout 60
    --backend mpi "${text[@]}")
shared=(--share-gpu --backend mpi)
ordered=("${shared[@]}" --allreduce ordered --verify exact)

gpu_equals_cpu() {
    limited "$build/stage1_naive/train" "${sgd[@]}" --save "$logs/cpu.safetensors" &&
        run_ranks 2 "$build/stage3_overlap/train_cuda" "${sgd[@]}" "${shared[@]}" --save "$logs/gpu.safetensors" &&
        "$build/tests/train/compare_weights" "$logs/cpu.safetensors" "$logs/gpu.safetensors" 1e-5
}

same_bits_twice() {
    local round hashes=()
    for round in 1 2; do
        limited "$train" "${adamw[@]}" --backend mpi "$@" --json "$logs/run.$round" || return
        hashes+=("$(value "$logs/run.$round" weights_hash)")
    done
    echo "weights: ${hashes[*]}"
    [ -n "${hashes[0]}" ] && [ "${hashes[0]}" = "${hashes[1]}" ]
}

# Two ranks on one GPU without --share-gpu: all ranks refuse, with one line.
refuses_to_share() {
    local status=0
    CUDA_VISIBLE_DEVICES=0 run_ranks 2 "$train" "${sgd[@]}" 2>"$logs/refused" || status=$?
    cat "$logs/refused"
    [ "$status" -eq 2 ] && grep -q -e '--share-gpu' "$logs/refused"
}

check_ranks() {
    local stage ranks precision name
    for stage in "${stages[@]}"; do
        for ranks in 2 4; do
            name="$stage, $ranks ranks on one GPU"
            check "$name: to 1e-5" run_ranks "$ranks" "$build/$stage/train_cuda" "${sgd[@]}" "${shared[@]}" --verify
            check "$name: every bit" run_ranks "$ranks" "$build/$stage/train_cuda" "${sgd[@]}" "${ordered[@]}"
        done
    done
    name="stage4_accumulation, 2 ranks"
    for precision in bf16 fp16; do
        check "$name, $precision, K=2: every bit" run_ranks 2 "$train" "${sgd[@]}" "${ordered[@]}" \
            --precision "$precision" --grad-dtype bf16 --accumulate 2
    done
    check "$name, fp16, skipped steps: every bit" run_ranks 2 "$train" "${sgd[@]}" "${ordered[@]}" \
        --precision fp16 --loss-scale 131072 --clip-grad-norm 0.1
    check "$name, TF32, K=2: every bit" run_ranks 2 "$train" "${sgd[@]}" "${ordered[@]}" "${wide[@]}" \
        --tf32 --accumulate 2
    check "two ranks on one GPU without --share-gpu are refused" refuses_to_share
    name="weights: 2 ranks on the GPU against 1 process on the CPU"
    if [ -x "$build/tests/train/compare_weights" ]; then
        check "$name" gpu_equals_cpu
    else
        not_run "$name" "tests/train/compare_weights was not built (cmocka?)"
    fi
    check "two runs give the same bits, fp32, AdamW" same_bits_twice
    check "two runs give the same bits, TF32, AdamW" same_bits_twice "${wide[@]}" --tf32
    check "two runs give the same bits, bf16, AdamW" same_bits_twice --precision bf16
}

# ---- NCCL ----

nccl_starts= # yes or no, after try_nccl
no_nccl="it does not start" # the reason why NCCL is not used

# Even for one rank NCCL needs a network interface that has an address.
try_nccl() {
    [ -z "$nccl_starts" ] || return 0
    if [ "$(time_left)" -le 0 ]; then
        nccl_starts=no no_nccl="no time left (--minutes $minutes)"
        return
    fi
    check "NCCL starts" run_ranks 1 "$train" --model mlp-toy --steps 1 --backend nccl --timeout 60
    nccl_starts=$passed
    [ "$passed" = yes ] || echo "    hint: NCCL needs a network interface with an address, even for one rank:" \
        "ip link set lo up, and NCCL_SOCKET_IFNAME=lo; NCCL_DEBUG=INFO says more"
}

check_nccl() {
    local stage flags=("${sgd[@]}" --backend nccl)
    [ "$gpu_count" -le 8 ] || flags+=(--batch-size "$gpu_count") # a sample for each rank; the last --batch-size counts
    try_nccl
    if [ "$nccl_starts" = no ]; then
        not_run "training over NCCL" "$no_nccl"
        return
    fi
    for stage in "${stages[@]}"; do
        check "$stage, NCCL, a GPU for each of $gpu_count rank(s): to 1e-5" \
            run_ranks "$gpu_count" "$build/$stage/train_cuda" "${flags[@]}" --verify
    done
    check "stage4_accumulation, NCCL, $gpu_count rank(s), bf16 on the wire" \
        run_ranks "$gpu_count" "$train" "${flags[@]}" --precision bf16 --grad-dtype bf16
    [ "$gpu_count" -gt 1 ] || not_run "NCCL between GPUs" "there is one GPU only"
}

# ---- the GPU's own times in a trace, and the ranges in a profiler ----

trace_has_gpu_times() {
    local name
    run_ranks 2 "$train" "${small[@]}" --share-gpu --trace "$logs/trace.json" || return
    for name in '"step 1","pid":1,"tid":2' '"block 0","pid":0,"tid":2' '"backward","pid":0,"tid":2' \
        '"copy to host","pid":0,"tid":3'; do
        grep -q -e "{\"name\":$name" "$logs/trace.json" || { echo "no event with $name"; return 1; }
    done
}

nsys_sees_ranges() {
    local range
    limited nsys profile --trace=nvtx --stats=true --force-overwrite=true --output "$logs/profile" \
        "$train" "${small[@]}" | tee "$logs/ranges" || return
    for range in 'step 1' 'block 0' 'backward' 'attention' 'all_reduce bucket 0'; do
        grep -q -e "$range" "$logs/ranges" || { echo "no range '$range'"; return 1; }
    done
}

check_trace() {
    check "--trace has the GPU's own times" trace_has_gpu_times
    if command -v nsys >/dev/null; then
        check "nsys sees steps, layers and buckets" nsys_sees_ranges
    else
        not_run "NVTX ranges in nsys" "nsys is not installed"
    fi
}

# ---- compute-sanitizer ----

# Memcheck checks all kernels, because cuBLAS may read from a wrong address that it was given. Racecheck checks ours
# only: it cannot follow how cuBLAS's synchronise, and is very slow on them. A program may take longer under either.
check_sanitizer() {
    local sanitizer filter=name tool test library flags limit=$((3 * limit))
    sanitizer=$(PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/cuda/bin command -v compute-sanitizer) || {
        not_run "compute-sanitizer" "it is not installed"
        return
    }
    # It may have no access to virtual GPUs: that is no failure of lockstep.
    limited "$sanitizer" "$train" --model mlp-toy --steps 1 --backend mpi >"$logs/sanitizer" 2>&1 || true
    if grep -i 'not supported' "$logs/sanitizer"; then
        not_run "compute-sanitizer" "it has no access to this GPU: see $logs/sanitizer"
        return
    fi
    grep -q -e '--kernel-name' <<<"$("$sanitizer" --help)" || filter=regex # the option's name before CUDA 12
    for tool in memcheck racecheck; do
        flags=(--tool "$tool" --error-exitcode 7)
        if [ "$tool" = racecheck ]; then
            flags+=(--racecheck-detect-level error "--kernel-$filter" kns=_kernel)
            for library in cublas cutlass gemm gemv; do
                flags+=("--kernel-$filter-exclude" "kns=$library")
            done
        fi
        for test in device_mma device_attention device_attention_half; do
            program=$(echo "$build"/tests/*/"test_${test}_cuda")
            if [ -x "$program" ]; then
                check "$tool: $test" limited "$sanitizer" "${flags[@]}" "$program"
            else
                not_run "$tool: $test" "test_${test}_cuda was not built (cmocka?)"
            fi
        done
        check "$tool: two steps, fp32" limited "$sanitizer" "${flags[@]}" "$train" "${small[@]}"
        check "$tool: two steps, bf16" limited "$sanitizer" "${flags[@]}" "$train" "${small[@]}" \
            --precision bf16 --grad-dtype bf16
    done
}

# ---- speed ----

# With a single GPU, too: then it shows that the program runs, and the cost of a call.
all_reduce_beside_mpi() {
    run_ranks "$gpu_count" "$build/bench/collectives_cuda" --sizes 1K,64K,1M,13M,100M --algorithms MPI_Allreduce,nccl \
        --csv "$logs/collectives.csv" | tee "$logs/collectives"
}

check_bench() {
    local status=0 seconds backend=(--backend nccl)
    try_nccl
    if [ "$nccl_starts" = yes ]; then
        check "all-reduce by NCCL beside MPI's, $gpu_count rank(s): right sums" all_reduce_beside_mpi
        [ "$passed" = no ] || cat "$logs/collectives"
    else
        backend=(--backend mpi)
        not_run "all-reduce by NCCL" "$no_nccl"
    fi
    seconds=$(time_left)
    if [ "$seconds" -lt 60 ]; then
        not_run "bench/gpu.sh" "no time left (--minutes $minutes)"
        return
    fi
    "$repository/bench/gpu.sh" --build "$build" --minutes "$((seconds < 540 ? seconds / 60 : 9))" "${backend[@]}" |
        tee "$logs/bench" || status=$?
    [ "$status" -eq 0 ] || { record "bench/gpu.sh" "FAILED with status $status"; failures=$((failures + 1)); }
}

for part in "${parts[@]:1}"; do
    if [[ " $only " == *" $part "* ]]; then
        "check_$part"
    else
        not_run "$part" "--only ${only// /,}"
    fi
done

echo
echo "=== What was run on $(sort <<<"$gpus" | uniq -c | sed 's/^ *\([0-9]*\) /\1 x /' | paste -sd ',') ==="
cat "$logs/table"
[ "$failures" -eq 0 ] || { echo "gpu_check: $failures check(s) failed" >&2; exit 1; }
echo "gpu_check: all checks that ran passed"
