#!/usr/bin/env bash
# test_ranges.sh: on the emulated GPU, the ranges of a step that a profiler gets (NVTX), and the GPU's own times in
# --trace. Both must show the same ranges.
#
# usage: test_ranges.sh BUILD STAGE MPIEXEC [FLAGS OF MPIEXEC...]      BUILD: the build's directory; STAGE: 1 or 4
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../../lib.sh"
build=$1 stage=$2
shift 2
launcher=("$@")

# Buckets of one parameter, so that all-reduces begin while backward is at another operation.
command=("$build/tests/gpu/cuda_emulator/train_stage${stage}_emulated" --model mlp-toy --steps 2 --eval-samples 8
    --backend mpi --share-gpu)
[ "$stage" -eq 1 ] || command+=(--bucket-cap-mb 0 --first-bucket-mb 0)

# runs NAME COMMAND...: the command ends with status 0.
runs() {
    local name=$1 status=0
    shift
    "$@" >"$scratch/out" 2>"$scratch/err" </dev/null || status=$?
    [ "$status" -eq 0 ] || fail "$name: status $status: $*"
}

# expect NAME EXPECTED GOT
expect() {
    [ "$2" = "$3" ] && return
    fail "$1: expected (<) and got (>):"
    diff <(echo "$2") <(echo "$3") | head -n 12
}

# ---- expected: each range after its enclosing ranges, "backward/linear fc3.weight"; marks with a "!" ----

# all_reduces PATH NAME...: one after the other, each over the host and back
all_reduces() {
    local path=$1 name
    shift
    for name in "$@"; do
        printf '%s\n' "${path}all_reduce $name" "${path}all_reduce $name/copy to host" \
            "${path}all_reduce $name/copy to device"
    done
}

expected_training=$(
    printf 'step 1%s\n' "" /forward /forward/fc{1,2,3} /forward/loss /backward /backward/mse \
        "/backward/linear fc3.weight" "/backward!gradient-ready fc3.weight" \
        /backward/gelu "/backward/linear fc2.weight" "/backward!gradient-ready fc2."{weight,bias} \
        /backward/gelu "/backward/linear fc1.weight" "/backward!gradient-ready fc1."{weight,bias}
    [ "$stage" -ne 1 ] || all_reduces "step 1/" fc1.{weight,bias} fc2.{weight,bias} fc3.weight
    echo "step 1/optimizer"
)
expected_communication=$([ "$stage" -eq 1 ] || all_reduces "" "bucket "{0,1,2,3,4})

# ---- a profiler ----

# told FILE THREAD: 0 is the training thread, 1 the one for communication.
told() {
    awk -v thread="$2" '
        $1 != thread { next }
        { name = substr($0, length($1) + length($2) + 3) }
        $2 == "push" { path[depth + 1] = path[depth] (depth > 0 ? "/" : "") name; print path[++depth] }
        $2 == "mark" { print path[depth] "!" name }
        $2 == "pop" && --depth < 0 { print "a range ends that never began"; exit }
        END { if (depth > 0) print "a range never ends: " path[depth] }' "$1"
}

LOCKSTEP_EMULATED_PROFILER=$scratch/untraced runs "with a profiler" "${command[@]}"
training=$(told "$scratch/untraced" 0)
communication=$(told "$scratch/untraced" 1)
expect "ranges of the training thread" "$expected_training" "$(grep '^step 1' <<<"$training")"
expect "ranges of the communication thread in steps 0 and 1" \
    "$expected_communication${expected_communication:+$'\n'}$expected_communication" "$communication"
expect "ranges that end where they should" "" "$(grep '^a range' <<<"$training$communication")"

# ---- the trace ----

# The ranges of a rank's row, in the order of their beginning, each after the ranges that enclose it in time. Times are
# rounded microseconds: a range that ends when the next one begins lies before it.
traced() { # RANK ROW
    jq -r ".[] | select(.pid == $1 and .tid == $2 and .args.step == 1) | [.ts, .ts + (.dur // 0), .ph, .name] | @tsv" \
        "$scratch/trace" | awk -F '\t' '
        $1 < last { print $4 " comes before what was queued before it"; exit }
        { last = $1 }
        { while (depth > 0 && end[depth] <= $1 + 0.0015) depth-- }
        depth > 0 && $2 > end[depth] + 0.0015 { print $4 " ends after " path[depth] ", which it is part of"; exit }
        $3 == "i" { print path[depth] "!" $4; next }
        { path[depth + 1] = path[depth] (depth > 0 ? "/" : "") $4; end[++depth] = $2; print path[depth] }'
}

for lazy in 0 1; do
    LOCKSTEP_EMULATED_LAZY=$lazy runs "with --trace" "${launcher[@]}" -n 2 "${command[@]}" --trace "$scratch/trace"
    expect "the names of the rows" "0 0 compute 0 1 communication 0 2 GPU 0 3 GPU, communication \
1 0 compute 1 1 communication 1 2 GPU 1 3 GPU, communication" \
        "$(jq -r '[.[] | select(.name == "thread_name") | .pid, .tid, .args.name] | join(" ")' "$scratch/trace")"
    for rank in 0 1; do
        expect "the row GPU of rank $rank (lazy: $lazy)" "$expected_training" "$(traced $rank 2)"
        expect "the row GPU, communication of rank $rank (lazy: $lazy)" "$expected_communication" "$(traced $rank 3)"
    done
done

# ---- without --trace, no times are recorded ----

LOCKSTEP_EMULATED_PROFILER=$scratch/traced runs "with both" "${command[@]}" --trace "$scratch/trace"
expect "no event for timing without --trace" 0 "$(grep -c ' event ' "$scratch/untraced")"
[ "$(grep -c ' event ' "$scratch/traced")" -gt 0 ] || expect "events for timing with --trace" some none

finish
