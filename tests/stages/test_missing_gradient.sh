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
all=$(mktemp -d)
trap 'rm -rf "$all"' EXIT

fail()
{
    [[ $message != *'is not written yet' ]] || { echo "FAIL: $message" && return; }
    echo "FAIL: $ranks rank(s), $what: $*"
    sed 's/^/     stderr: /' "$scratch/err" | head -10
}

# run WORDS...: runs the program; sets status and message, its first one.
run()
{
    timeout -k 5 "$limit" "${launcher[@]}" -n "$ranks" "$program" "$@" >"$scratch/out" 2>"$scratch/err" </dev/null
    status=$?
    message=$(first_message "$scratch/err")
}

# what_came PATTERN CAUSE...: the run's first message. CAUSE explains it only if the message matches PATTERN, or is
# missing: a crash, a sanitizer's report, or another fault has another cause.
what_came()
{
    echo -n "what came: ${message:-no message}"
    [[ -n $message && ! $message =~ $1 ]] || echo -n "; usual cause: ${*:2}"
}

# check RANKS CULPRIT STEP K OF TYPE ZERO CAP [static|more]: see missing_gradient.c. CULPRIT lacks the gradient; -1: all
# do. static, more: with --static-graph, whose message names the first parameter only.
check()
{
    ranks=$1 culprit=$2 what="branch 3 missing on ${2/-1/all} in step $3" cause=
    unnoticed='a gradient that never came'
    if [ "$5" -gt 1 ]; then
        what+=", in micro-batch $4 of $5 (from 0), gradients sent in $6"
        cause="; usual cause: only the last micro-batch is checked, but the check belongs after EVERY backward pass"
    fi
    [ $# -lt 9 ] || what+=", a static graph"
    [ "${9-}" != more ] || what=${what/missing/used for the first time} unnoticed='a gradient that should never come'
    run "${@:2}"
    faults=$(grep -a -c '^missing_gradient: fault: ' "$scratch/err")
    expected="rank ${culprit/-1/[0-9]}, step $3: .*branch3\.${9-weight, branch3\.bias}"
    expected=${expected/%static/weight} expected=${expected/%more/}
    if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
        fail "still running after $limit s: a rank waits for one that has ended"
    elif [ "$status" -eq 0 ]; then
        fail "the run went on: $unnoticed was not noticed$cause"
    elif ! grep -a -q "^missing_gradient: fault: $expected" "$scratch/err"; then
        fail "the run ended, but not by a fault in step $3 that names branch3.weight and branch3.bias, on rank" \
            "${culprit/-1/0 or another}$cause; $(what_came 'work_wait\(NULL\)' "nothing checks after backward that every" \
            "trained parameter has its gradient")"
    elif [ "$culprit" -ge 0 ] && [ "$faults" -ne 1 ]; then
        fail "expected one fault, from the rank that lacks the gradient, got $faults"
    elif grep -a -q "has done step $3\$" "$scratch/out" || ! grep -a -q "has done step $(($3 - 1))\$" \
        <(echo "has done step -1" && cat "$scratch/out"); then
        fail "expected the fault in step $3; done: $(tr '\n' ';' <"$scratch/out")"
    fi
}

# check_other_model RANKS CULPRIT KIND PARAMETER: on the rank CULPRIT a parameter is frozen, or has another shape or size.
check_other_model()
{
    ranks=$1 what="of which rank $2 has another model ($3)"
    run "$3" "$2"
    if ! grep -a -q '^missing_gradient: error: the ranks have different models: parameter '"$4" "$scratch/err"
    then
        fail "nothing says so (status $status, 124 means that it hung); $(what_came 'collective|truncated' "ddp_create() does" \
            "not begin with replicas_check_same_model()")"
    elif [ "$status" -eq 0 ]; then
        fail "the status is 0"
    fi
}

one_bucket=1000000 small=200 runs=0
# try COMMAND...: starts a check behind the others, four at a time, because ranks that end wait much. What it finds is in
# the file "found" of its directory, and "ended" at its end: on a full disk nothing is, which must not mean that nothing
# was found.
try()
{
    runs=$((runs + 1))
    scratch=$all/$runs
    mkdir "$scratch"
    [ $runs -le 4 ] || wait -n
    { "$@"; echo ended; } >"$scratch/found" &
}

try check_other_model 2 1 frozen '3 is branch1\.bias'
try check_other_model 2 0 shape '2 is branch1\.weight'
try check_other_model 2 1 size '2 is branch1\.weight'
try check 1 -1 2 0 1 fp32 1 $small
try check 2 0 0 0 1 fp32 2 $one_bucket
try check 2 1 200 0 1 fp32 1 $small # a stage must not stop to look after a while
try check 3 2 2 0 1 fp32 2 $small
try check 2 -1 2 0 1 fp32 1 $one_bucket
if [[ $program =~ stage[345]$ ]]; then # those that have micro-batches, and two that send 16 bits
    types=(fp32 fp32)
    [[ $program =~ stage3$ ]] || types=(bf16 fp16)
    try check 2 1 2 1 3 "${types[0]}" 2 $small
    try check 2 1 2 1 3 "${types[0]}" 2 $small static
    try check 2 1 2 0 3 "${types[0]}" 2 $small more
    try check 2 -1 0 0 3 "${types[1]}" 3 $one_bucket # at level 3, a step that differs from the first one is another fault
fi
wait
left=$(left_running "$program")
found=$(cat "$all"/*/found)
failures=$(($(grep -a -c '^FAIL: ' <<<"$found") + runs - $(grep -a -c '^ended$' <<<"$found")))
grep -a -v '^ended$' <<<"$found"
[ "$(grep -a -c '^ended$' <<<"$found")" -eq $runs ] || echo "FAIL: what was found could not be written: is the disk full?"
[ -z "$left" ] || { echo "FAIL: left running: $left" && failures=$((failures + 1)); }
echo "$runs runs that had to end with a message, $failures failure(s)"
exit $((failures > 0))
