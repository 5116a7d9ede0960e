# shellcheck shell=bash
# shellcheck disable=SC2154 # gpu_check.sh has set what is used here and set nowhere
# gpu_checks.sh: the parts of gpu_check.sh, check_PART for each. It sources this when all is built, and has `check`,
# `not_run` and `limited`.
source "$repository/tests/stages/processes.sh" # processes, left_running

# ---- every operation, against float64 ----

# Tensor cores come first: if their layout differs from device_cuda_mma.h, many other tests fail, too.
check_tests() {
    local test name found=no
    for test in "$build"/tests/gpu/test_device_mma_cuda "$build"/tests/common/test_device*_cuda; do
        [ -x "$test" ] || continue
        name=${test##*/test_}
        found=yes
        check "against float64: ${name%_cuda}" limited "$test"
    done
    [ "$found" = yes ] || not_run "every operation against float64" "no tests were built (cmocka?)"
    for name in "device_promises: products repeat, and tensors are aligned" \
        "device_large: the last row of more than 2^31 logits"; do
        test=$build/tests/gpu/test_${name%%:*}_cuda
        if [ -x "$test" ]; then check "$name" limited "$test"; else not_run "$name" "it was not built (cmocka?)"; fi
    done
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
# Rows, heads and a vocabulary whose sizes are multiples of nothing that a kernel works in; contexts of one row, and of
# one less and one more than a tile.
odd=(--model gpt2 --layers 1 --width 66 --heads 2 --batch-size 2 --steps 1 --eval-samples 1 --timeout 60 --backend mpi)
small=(--model gpt --layers 1 --heads 2 --width 64 --context 64 --batch-size 4 --steps 2 --eval-samples 4 --timeout 60
    --backend mpi "${text[@]}")
shared=(--share-gpu --backend mpi)
ordered=("${shared[@]}" --allreduce ordered --verify exact)

gpu_equals_cpu() {
    limited "$build/stage1_naive/train" "${sgd[@]}" --save "$logs/cpu.safetensors" &&
        run_ranks 2 "$build/stage3_overlap/train_cuda" "${sgd[@]}" "${shared[@]}" --save "$logs/gpu.safetensors" &&
        "$build/tests/train/compare_weights" "$logs/cpu.safetensors" "$logs/gpu.safetensors" 1e-5
}

# same_bits FIRST SECOND FLAGS...: two runs, each with such a NAME=VALUE in its environment (empty: nothing), train the
# same weights.
same_bits() {
    local environment hashes=()
    for environment in "$1" "$2"; do
        # shellcheck disable=SC2086 # empty: no word
        run_ranks 2 env $environment "$train" "${adamw[@]}" "${shared[@]}" "${@:3}" --json "$logs/run" || return
        hashes+=("$(value "$logs/run" weights_hash)")
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
    local stage ranks level precision name
    for stage in "${stages[@]}"; do
        for ranks in 2 4; do
            name="$stage, $ranks ranks on one GPU"
            check "$name: to 1e-5" run_ranks "$ranks" "$build/$stage/train_cuda" "${sgd[@]}" "${shared[@]}" --verify
            check "$name: every bit" run_ranks "$ranks" "$build/$stage/train_cuda" "${sgd[@]}" "${ordered[@]}"
        done
    done
    for ranks in 2 3; do
        for level in 1 2 3; do
            check "stage5_sharded, $ranks ranks on one GPU, level $level, bf16, K=2: every bit" run_ranks "$ranks" \
                "$build/stage5_sharded/train_cuda" "${sgd[@]}" "${ordered[@]}" --zero "$level" --precision bf16 \
                --accumulate 2
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
    check "two runs give the same bits, fp32, AdamW" same_bits "" ""
    check "two runs give the same bits, TF32, AdamW" same_bits "" "" "${wide[@]}" --tf32
    for precision in fp32 bf16; do
        name="the same bits, $precision, AdamW"
        check "$name: kernels one by one (CUDA_LAUNCH_BLOCKING)" same_bits "" CUDA_LAUNCH_BLOCKING=1 \
            --precision "$precision"
        check "$name: kernels loaded at once, or when needed" same_bits CUDA_MODULE_LOADING=EAGER \
            CUDA_MODULE_LOADING=LAZY --precision "$precision"
    done
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

# hurt_a_rank SIGNAL PATTERN: in mid-step, rank 1 of two is killed, or stopped. The job must end, leave no process, and
# say something like PATTERN.
hurt_a_rank() {
    local seed=$((RANDOM + 1000)) launcher victim left status=0
    run_ranks 2 "$train" "${adamw[@]}" --backend nccl --steps 1000000 --seed "$seed" --timeout 10 >"$logs/hurt" 2>&1 &
    launcher=$!
    until grep -q '^step 1/' "$logs/hurt" || ! kill -0 "$launcher" 2>/dev/null; do
        sleep 0.1
    done
    sleep "0.$((RANDOM % 9 + 1))"
    # A rank is two processes: the later one trains, the earlier one waits for it.
    victim=$(for process in $(processes "$train" "$seed"); do
        ! grep -Eqxz '(PMI_RANK|OMPI_COMM_WORLD_RANK)=1' "/proc/$process/environ" || echo "$process"
    done | sort -n | tail -n 1)
    [ -z "$victim" ] || kill "-$1" "$victim"
    wait "$launcher" || status=$?
    cat "$logs/hurt"
    left=$(left_running "$train" "$seed")
    # shellcheck disable=SC2086 # a list of numbers
    [ -z "$left" ] || { echo "processes are left: $left"; kill -9 $left; return 1; }
    echo "status $status"
    [ -n "$victim" ] && [ "$status" -ne 0 ] && [ "$status" -ne 124 ] && grep -Eq "$2" "$logs/hurt"
}

check_nccl() {
    local stage level flags=("${sgd[@]}" --backend nccl)
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
    for level in 1 2 3; do
        check "stage5_sharded, NCCL, $gpu_count rank(s), level $level: to 1e-5" \
            run_ranks "$gpu_count" "$build/stage5_sharded/train_cuda" "${flags[@]}" --zero "$level" --verify
    done
    check "stage4_accumulation, NCCL, $gpu_count rank(s), bf16 on the wire" \
        run_ranks "$gpu_count" "$train" "${flags[@]}" --precision bf16 --grad-dtype bf16
    if [ "$gpu_count" -gt 1 ]; then
        check "NCCL, 2 ranks, one is killed in mid-step" hurt_a_rank KILL 'rank 1 .*signal 9'
        check "NCCL, 2 ranks, one is stopped in mid-step" hurt_a_rank STOP 'rank 0.*has been waiting for'
    else
        not_run "NCCL between GPUs" "there is one GPU only"
    fi
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

# sanitizer_flags TOOL: sets flags. Memcheck looks at all kernels: cuBLAS may read where we have sent it wrongly. The
# others look at our own, as cuBLAS's synchronise in ways that racecheck does not follow, and take very long.
sanitizer_flags() {
    local library
    flags=(--tool "$1" --error-exitcode 7)
    [ "$1" != memcheck ] || return 0
    [ "$1" != racecheck ] || flags+=(--racecheck-detect-level error)
    flags+=("--kernel-$filter" kns=_kernel)
    for library in cublas cutlass gemm gemv; do
        flags+=("--kernel-$filter-exclude" "kns=$library")
    done
}

# Under the sanitizer a program may take longer.
check_sanitizer() {
    local sanitizer filter=name tool test program context precision flags limit=$((3 * limit))
    sanitizer=$(PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/cuda/bin command -v compute-sanitizer) || {
        not_run "compute-sanitizer" "it is not installed"
        return
    }
    # Where GPUs are virtual, it may have no access to them: that is no fault of lockstep's.
    limited "$sanitizer" "$train" --model mlp-toy --steps 1 --backend mpi >"$logs/sanitizer" 2>&1 || true
    if grep -i 'not supported' "$logs/sanitizer"; then
        not_run "compute-sanitizer" "it has no access to this GPU: see $logs/sanitizer"
        return
    fi
    grep -q -e '--kernel-name' <<<"$("$sanitizer" --help)" || filter=regex # as it was called before CUDA 12
    for tool in memcheck racecheck; do
        sanitizer_flags "$tool"
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
    for tool in memcheck synccheck initcheck; do
        sanitizer_flags "$tool"
        for context in 1 63 65; do
            for precision in fp32 bf16; do
                check "$tool: odd shapes, context $context, $precision" limited "$sanitizer" "${flags[@]}" "$train" \
                    "${odd[@]}" --context "$context" --precision "$precision"
            done
        done
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
        not_run "tools/bench/gpu.sh" "no time left (--minutes $minutes)"
        return
    fi
    "$repository/tools/bench/gpu.sh" --build "$build" --minutes "$((seconds < 540 ? seconds / 60 : 9))" "${backend[@]}" |
        tee "$logs/bench" || status=$?
    [ "$status" -eq 0 ] || { record "tools/bench/gpu.sh" "FAILED with status $status"; failures=$((failures + 1)); }
}
