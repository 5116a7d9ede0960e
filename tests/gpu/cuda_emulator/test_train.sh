#!/usr/bin/env bash
# test_train.sh: trains on the emulated GPU, two ranks over MPI, as on a real one: the weights are those of one process
# on the CPU to 1e-5; --verify and --verify exact pass; no bit changes when all work is done as late as CUDA allows.
# Also tested: too few devices, and too little memory.
#
# usage: test_train.sh BUILD STAGE MPIEXEC [FLAGS OF MPIEXEC...]      BUILD: the build's directory; STAGE: 1, 4 or 5
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../../lib.sh"
build=$1 stage=$2
shift 2
launcher=("$@")
cpu=("$build"/stage1_*/train)
emulated=$build/tests/gpu/cuda_emulator/train_stage${stage}_emulated
sgd="--optimizer sgd --lr 0.1 --momentum 0 --steps 6 --batch-size 8 --eval-samples 8"
toy="--model mlp-toy $sgd"
gpt="--model gpt --layers 1 --width 32 --heads 2 --context 16 --data $scratch/text $sgd"
cat "$(dirname "$0")"/../../stages/*.c >"$scratch/text"

# runs NAME RANKS PROGRAM WORDS...: the program ends with status 0.
runs() {
    local name=$1 ranks=$2 program=$3
    shift 3
    "${launcher[@]}" -n "$ranks" "$program" "$@" >"$scratch/out" 2>"$scratch/err" </dev/null ||
        fail "$name: status $?: $program $*"
}

# equal NAME FILE FILE TOLERANCE
equal() {
    "$build/tests/train/compare_weights" "$scratch/$2" "$scratch/$3" "$4" >"$scratch/out" 2>"$scratch/err" ||
        fail "$1: usual cause: a kernel that differs from device_cpu*.c, or a buffer that is sent before it is complete"
}

# refused NAME STATUS PATTERN WORDS...: the emulated program ends with STATUS and prints PATTERN.
refused() {
    local name=$1 expected=$2 pattern=$3 status=0
    shift 3
    "${launcher[@]}" -n 2 "$emulated" "$@" >"$scratch/out" 2>"$scratch/err" </dev/null || status=$?
    { [ "$status" -eq "$expected" ] && grep -q -e "$pattern" "$scratch/err"; } ||
        fail "$name: expected status $expected and \"$pattern\", got $status"
}

# the arguments are lists of words on purpose
# shellcheck disable=SC2086
for model in toy gpt; do
    flags=${!model}
    shared="$flags --backend mpi --share-gpu"
    runs "$model on the CPU" 1 "${cpu[0]}" $flags --save "$scratch/cpu"
    runs "$model" 2 "$emulated" $shared --verify --save "$scratch/emulated"
    equal "$model: 2 ranks on the emulated GPU against the CPU" cpu emulated 1e-5
    LOCKSTEP_EMULATED_LAZY=1 LOCKSTEP_EMULATED_ORDER=reverse \
        runs "$model, late" 2 "$emulated" $shared --save "$scratch/late"
    equal "$model: work done at once against work done late, in reverse order" emulated late 0
    runs "$model, exact" 2 "$emulated" $shared --allreduce ordered --verify exact
done

# --tf32: the same bits as one process with TF32, and other bits than in float32; on all ranks or on none.
# shellcheck disable=SC2086
if [ "$stage" -eq 1 ]; then # no stage has code for this, nor for what is refused
    shared="$gpt --backend mpi --share-gpu --allreduce ordered"
    runs "TF32" 2 "$emulated" $shared --tf32 --verify exact --save "$scratch/tf32" --json "$scratch/json"
    grep -q '"tf32":[[:space:]]*true' "$scratch/json" || fail "TF32: the summary does not say it"
    runs "TF32, whole batches" 2 "$emulated" $shared --tf32 --verify
    runs "float32" 2 "$emulated" $shared --save "$scratch/fp32" --json "$scratch/json"
    grep -q '"tf32":[[:space:]]*false' "$scratch/json" || fail "float32: the summary takes it for TF32"
    equal "TF32 against float32" fp32 tf32 1e-3
    if "$build/tests/train/compare_weights" "$scratch/fp32" "$scratch/tf32" 0 >"$scratch/out" 2>&1; then
        fail "--tf32 changes no bit: does it reach the products?"
    fi
    refused "--tf32 on one rank" 2 "differently: --tf32" $shared : -n 1 "$emulated" $shared --tf32
    LOCKSTEP_EMULATED_CAPABILITY=75 refused "TF32 on an old GPU" 2 "compute capability 7.5" $shared --tf32
fi

# shellcheck disable=SC2086
if [ "$stage" -eq 4 ]; then
    mixed="${gpt/sgd --lr 0.1 --momentum 0/adamw} --backend mpi --share-gpu --accumulate 2 --allreduce ordered"
    runs "bf16" 2 "$emulated" $mixed --precision bf16 --grad-dtype bf16 --verify exact
    runs "fp16" 2 "$emulated" $mixed --precision fp16 --loss-scale 16 --verify exact
    runs "fp16, overflow" 2 "$emulated" $mixed --precision fp16 --loss-scale 131072 --clip-grad-norm 0.1 --verify exact
    grep -q 'skipped *[1-5] of 6 steps' "$scratch/out" ||
        fail "fp16: a loss scale of 2^17 overflows at first, but not in all 6 steps: $(grep skipped "$scratch/out")"
fi

# shellcheck disable=SC2086
if [ "$stage" -eq 1 ]; then
    LOCKSTEP_EMULATED_DEVICES=0 refused "no device" 2 "no CUDA device" $toy --backend mpi
    refused "two ranks, one device" 2 "--share-gpu" $toy --backend mpi
    refused "dropout" 2 "--dropout: train_cuda has no kernel for it" $toy --dropout 0.1
    LOCKSTEP_EMULATED_DEVICES=2 runs "two devices" 2 "$emulated" $toy --backend mpi
    # 1 MiB is never enough: the fault names the call and a remedy
    LOCKSTEP_EMULATED_MEMORY_MB=1 refused "no memory" 1 "cudaMalloc.*memory is full" $gpt --backend mpi --share-gpu
    # errors that are reported late: 719 a launch failure, 716 a misaligned address; 13 EXECUTION_FAILED
    fault="fault: rank [01].*" earlier="earlier.*compute-sanitizer.*(device_cuda.*cu:[0-9]*)"
    LOCKSTEP_EMULATED_KERNEL_ERROR=719 refused "a kernel that failed" 1 \
        "${fault}CUDA: cuda.*(cudaErrorLaunchFailure); .*$earlier" $toy --backend mpi --share-gpu
    LOCKSTEP_EMULATED_KERNEL_ERROR=716 refused "a kernel with a wrong address" 1 \
        "${fault}CUDA: cuda.*(cudaErrorMisalignedAddress); .*$earlier" $toy --backend mpi --share-gpu
    LOCKSTEP_EMULATED_CUBLAS_STATUS=13 refused "a product that failed" 1 \
        "${fault}cuBLAS: cublas.*(CUBLAS_STATUS_EXECUTION_FAILED); .*$earlier" $toy --backend mpi --share-gpu
    LOCKSTEP_EMULATED_CUBLAS_STATUS=1 refused "a cuBLAS that does not start" 1 \
        "${fault}cuBLAS: cublas.*(CUBLAS_STATUS_NOT_INITIALIZED); cuBLAS could not start: the GPU's memory may be full" $toy --backend mpi --share-gpu
fi

finish
