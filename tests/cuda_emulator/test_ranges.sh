#!/usr/bin/env bash
# test_ranges.sh: what a profiler is told about a step on the emulated GPU (NVTX).
#
# usage: test_ranges.sh BUILD STAGE      BUILD: the build's directory; STAGE: 1 or 4
set -u
build=$1 stage=$2
emulated=$build/tests/cuda_emulator/train_stage${stage}_emulated
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

# runs NAME WORDS...: one rank, which goes the same ways as several.
runs() {
    local name=$1 status=0
    shift
    "$emulated" --backend mpi "$@" >"$scratch/out" 2>"$scratch/err" </dev/null || status=$?
    [ "$status" -ne 0 ] || return
    failures=$((failures + 1))
    echo "FAIL: $name: status $status: $emulated --backend mpi $*"
    sed 's/^/     stderr: /' "$scratch/err" | head -n 5
}

# expect NAME EXPECTED GOT
expect() {
    [ "$2" = "$3" ] && return
    failures=$((failures + 1))
    echo "FAIL: $1: expected (<) and got (>):"
    diff <(echo "$2") <(echo "$3") | head -n 12
}

# told FILE THREAD: the ranges of a thread, each behind those around it, "step 1/backward/linear fc3.weight"; marks with
# a "!". 0 is the training thread, 1 the one for communication.
told() {
    awk -v thread="$2" '
        $1 != thread { next }
        { name = substr($0, length($1) + length($2) + 3) }
        $2 == "push" { path[depth + 1] = path[depth] (depth > 0 ? "/" : "") name; print path[++depth] }
        $2 == "mark" { print path[depth] "!" name }
        $2 == "pop" && --depth < 0 { print "a range ends that never began"; exit }
        END { if (depth > 0) print "a range never ends: " path[depth] }' "$1"
}

# all_reduces PATH NAME...: one after the other, each over the host and back
all_reduces() {
    local path=$1 name
    shift
    for name in "$@"; do
        printf '%s\n' "${path}all_reduce $name" "${path}all_reduce $name/copy to host" \
            "${path}all_reduce $name/copy to device"
    done
}

# Buckets of one parameter, which begin while backward is at another place: so each thread is looked at by itself.
buckets=()
[ "$stage" -eq 1 ] || buckets=(--bucket-cap-mb 0 --first-bucket-mb 0)
LOCKSTEP_EMULATED_PROFILER=$scratch/ranges runs "with a profiler" --model mlp-toy --steps 2 "${buckets[@]}"
training=$(told "$scratch/ranges" 0)
communication=$(told "$scratch/ranges" 1)
expect "the training thread's ranges of step 1" "$(
    printf 'step 1%s\n' "" /forward /forward/fc{1,2,3} /forward/loss /backward /backward/mse \
        "/backward/linear fc3.weight" "/backward!gradient-ready fc3.weight" \
        /backward/relu "/backward/linear fc2.weight" "/backward!gradient-ready fc2."{weight,bias} \
        /backward/relu "/backward/linear fc1.weight" "/backward!gradient-ready fc1."{weight,bias}
    [ "$stage" -ne 1 ] || all_reduces "step 1/" fc1.{weight,bias} fc2.{weight,bias} fc3.weight
    echo "step 1/optimizer"
)" "$(grep '^step 1' <<<"$training")"
if [ "$stage" -eq 4 ]; then
    expect "the communication thread's ranges, of two steps" \
        "$(for _ in 0 1; do all_reduces "" "bucket "{0,1,2,3,4}; done)" "$communication"
fi
expect "ranges that end, each where it should" "" "$(grep '^a range' <<<"$training$communication")"

[ "$failures" -eq 0 ] || exit 1
echo "ranges of stage $stage on the emulated GPU: all checks passed"
