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
build_targets=(everything)
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
    if [ "$status" -eq 0 ] && grep -q '^\[  SKIPPED \]' "$log"; then
        not_run "$name" "it was skipped, or a part of it: see $log"
        return
    fi
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

source "$repository/scripts/gpu_checks.sh" # check_PART, for each part

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
