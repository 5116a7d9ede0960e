#!/usr/bin/env bash
# A parameter without a gradient, in a run without find_unused_parameters, must be a fault IN THAT STEP on the rank that
# lacks the gradient. The fault names the parameter and ends all ranks. So does a rank with a different model.
#
# usage: test_missing_gradient.sh PROGRAM MPIEXEC [FLAGS OF MPIEXEC...]     PROGRAM: built from missing_gradient.c
# shellcheck source-path=SCRIPTDIR
set -u
. "$(dirname "$0")/processes.sh"
. "$(dirname "$0")/messages.sh"
program=$1
shift
launcher=("$@")
limit=60
failures=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail()
{
    failures=$((failures + 1))
    echo "FAIL: $ranks rank(s), $what: $*"
    sed 's/^/     stderr: /' "$scratch/err" | head -10
}

# run WORDS...: runs the program; sets status and message, its first one.
run()
{
    timeout -k 5 "$limit" "${launcher[@]}" -n "$ranks" "$program" "$@" >"$scratch/out" 2>"$scratch/err" </dev/null
    status=$?
    message=$(first_message "$scratch/err")
    if [[ $message == *'is not written yet' ]]; then
        echo "FAIL: $message"
        exit 1 # other runs would say the same
    fi
}

# what_came PATTERN CAUSE...: the run's first message. CAUSE explains it only if the message matches PATTERN, or is
# missing: a crash, a sanitizer's report, or another fault has another cause.
what_came()
{
    echo -n "what came: ${message:-no message}"
    [[ -n $message && ! $message =~ $1 ]] || echo -n "; usual cause: ${*:2}"
}

# check RANKS CULPRIT [first-micro-batch]: CULPRIT is the rank that lacks the gradient; -1: all do
check()
{
    ranks=$1 culprit=$2 what="branch 3 missing on ${2/-1/all}" cause=
    if [ $# -gt 2 ]; then
        what+=", in the first of two micro-batches"
        cause="; usual cause: only the last micro-batch is checked, but the check belongs after EVERY backward pass"
    fi
    run "${@:3}" "$culprit"
    faults=$(grep -a -c '^missing_gradient: fault: ' "$scratch/err")
    expected="rank ${culprit/-1/[0-9]}, step 2: .*branch3\.weight, branch3\.bias"
    if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
        fail "still running after $limit s: a rank waits for one that has ended"
    elif [ "$status" -eq 0 ]; then
        fail "the run went on: a gradient that never came was not noticed$cause"
    elif ! grep -a -q "^missing_gradient: fault: $expected" "$scratch/err"; then
        fail "the run ended, but not by a fault in step 2 that names branch3.weight and branch3.bias, on rank" \
            "${culprit/-1/0 or another}; $(what_came 'work_wait\(NULL\)' "nothing checks after backward that every" \
            "trained parameter has its gradient")"
    elif [ "$culprit" -ge 0 ] && [ "$faults" -ne 1 ]; then
        fail "expected one fault, from the rank that lacks the gradient, got $faults"
    elif grep -a -q 'has done step [34]' "$scratch/out" || ! grep -a -q 'has done step 1' "$scratch/out"; then
        fail "expected the fault in step 2; done: $(tr '\n' ';' <"$scratch/out")"
    else
        left=$(left_running "$program")
        [ -z "$left" ] || fail "left running: $left"
    fi
}

# On rank `culprit` a parameter is frozen that the others train.
check_other_model()
{
    ranks=$1 culprit=$2 what="of which rank $2 has frozen branch1.bias"
    run other-model "$culprit"
    if ! grep -a -q '^missing_gradient: error: the ranks have different models: parameter 3 is branch1.bias' "$scratch/err"
    then
        fail "nothing says so (status $status, 124 means that it hung); $(what_came '^rank [0-9]' "ddp_create() does" \
            "not begin with replicas_check_same_model()")"
    elif [ "$status" -eq 0 ]; then
        fail "the status is 0"
    fi
}

check_other_model 2 1
check_other_model 3 0
for ranks in 1 2 3; do
    check "$ranks" -1
done
check 2 0
check 2 1
check 3 2
runs=8
if [[ $program =~ stage[45]$ ]]; then # the stages that communicate after the last micro-batch only
    check 2 1 first-micro-batch
    check 2 -1 first-micro-batch
    runs=10
fi
echo "$runs runs that had to end with a message, $failures failure(s)"
exit $((failures > 0))
