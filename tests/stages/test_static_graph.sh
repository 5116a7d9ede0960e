#!/usr/bin/env bash
# A static graph has the bits of a run that looks for unused parameters in every step, also where ranks use different
# parameters, and one collective less in each step but the first. A graph that changes is a fault in that step.
#
# usage: test_static_graph.sh PROGRAM MPIEXEC [FLAGS OF MPIEXEC...]     PROGRAM: built from static_graph.c
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
program=$1
shift
launcher=("$@") runs=0

about() { echo "$ranks ranks, $micro_batches micro-batch(es), level $zero: "; }

# run WORDS...: sets status
run()
{
    runs=$((runs + 1))
    "${launcher[@]}" -n "$ranks" "$program" "$1" "$micro_batches" "$zero" "${@:2}" \
        >"$scratch/out" 2>"$scratch/err" </dev/null
    status=$?
}

same_as_found()
{
    local found expected
    run find
    [ $status -eq 0 ] || fail "find: ended with status $status"
    found=$(sort "$scratch/out")
    # "rank 0: 8 7 7 7 HASH": a collective less in steps 1 to 3
    expected=$(awk '{ print $1, $2, $3, $4 - 1, $5 - 1, $6 - 1, $7 }' <<<"$found")
    run static
    [ $status -eq 0 ] || fail "static: ended with status $status"
    [ "$(sort "$scratch/out")" = "$expected" ] || fail "a static graph has (rank, collectives of each step, hash):
$(sort "$scratch/out")
expected:
$expected
(found anew in every step: the same, but one collective more). Usual causes: another hash: what one rank uses, the \
others must update, too; more collectives: the ranks agree in every step"
}

# changed KIND MESSAGE
changed()
{
    run static "$1"
    [ $status -ne 0 ] || fail "$1: the graph has changed in step 2, and nobody noticed"
    grep -q "^static_graph: fault: rank 0, step 2: --static-graph: this pass $2" "$scratch/err" ||
        fail "$1: expected a fault of rank 0 in step 2: this pass $2"
    run find "$1"
    [ $status -eq 0 ] || fail "find: a graph may change, but the run ended with status $status"
}

zero=2
for ranks in 2 3; do
    for micro_batches in 1 3; do
        [[ $program =~ stage3$ && $micro_batches -gt 1 ]] || same_as_found
    done
    [[ ! $program =~ stage3$ ]] || micro_batches=1
    changed more 'uses branch3\.\(weight\|bias\), but the first pass did not'
    changed first 'uses branch3\.\(weight\|bias\), but the first pass did not'
    changed less 'does not use branch2\.weight, but the first pass did'
done
if [[ $program =~ stage5$ ]]; then
    zero=1 ranks=2
    same_as_found
fi
finish
