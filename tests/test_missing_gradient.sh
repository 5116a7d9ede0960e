#!/usr/bin/env bash
# A parameter without a gradient, in a run that does not look for unused ones: a fault IN THAT STEP, on the rank that
# lacks it, which names the parameter; and then all ranks end.
#
# usage: test_missing_gradient.sh PROGRAM MPIEXEC [FLAGS OF MPIEXEC...]     PROGRAM: built from missing_gradient.c
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/processes.sh"
program=$1
shift
limit=60
failures=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail()
{
    failures=$((failures + 1))
    echo "FAIL: $ranks rank(s), branch 3 missing on ${culprit/-1/all}: $*"
    sed 's/^/     stderr: /' "$scratch/err" | head -10
}

check()
{
    ranks=$1 culprit=$2
    shift 2
    timeout -k 5 "$limit" "$@" -n "$ranks" "$program" "$culprit" >"$scratch/out" 2>"$scratch/err" </dev/null
    status=$?
    faults=$(grep -a -c '^missing_gradient: fault: ' "$scratch/err")
    expected="rank ${culprit/-1/[0-9]}, step 2: .*branch3\.weight, branch3\.bias"
    if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
        fail "still running after $limit s: a rank waits for the one that has ended"
    elif [ "$status" -eq 0 ]; then
        fail "the run went on: a gradient that never came was not noticed"
    elif ! grep -a -q "^missing_gradient: fault: $expected" "$scratch/err"; then
        fail "no line 'fault: $expected'"
    elif [ "$culprit" -ge 0 ] && [ "$faults" -ne 1 ]; then
        fail "expected one fault, from the rank that lacks the gradient, got $faults"
    elif grep -a -q 'has done step [34]' "$scratch/out" || ! grep -a -q 'has done step 1' "$scratch/out"; then
        fail "expected the fault in step 2; done: $(tr '\n' ';' <"$scratch/out")"
    else
        left=$(left_running "$program")
        [ -z "$left" ] || fail "left running: $left"
    fi
}

for ranks in 1 2 3; do
    check "$ranks" -1 "$@"
done
check 2 0 "$@"
check 2 1 "$@"
check 3 2 "$@"
echo "6 runs that had to end with the fault in step 2, $failures failure(s)"
exit $((failures > 0))
