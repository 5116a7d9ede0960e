#!/usr/bin/env bash
# grade.sh: runs every case of a stage's tests by itself, and counts those that pass. A failing case ends all ranks at
# once, so if a test program runs all its cases, the first failure hides the cases after it.
#
# usage: tests/stages/grade.sh BUILD STAGE [RANKS ...]     default: 2 ranks
#   BUILD: the build directory, of all stages or of this one alone   STAGE: 1 to 5
#   MPIEXEC, MPIEXEC_FLAGS: the launcher, if not "mpiexec"   LOCKSTEP_TEST_TIMEOUT: seconds a collective may take [20]
# Prints for each case "passed", or its first message. Exit status 0 if all have passed, else 1.
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/messages.sh"
if [ $# -lt 2 ]; then
    sed -n '5,7s/^# //p' "$0" >&2
    exit 2
fi
build=$1 stage=$2
shift 2
[ $# -gt 0 ] || set -- 2
directory=$(echo "$build/stage$stage"_*)
[ -d "$directory" ] || directory=$build # the stage was built alone
export LOCKSTEP_TEST_TIMEOUT=${LOCKSTEP_TEST_TIMEOUT:-20} OPENBLAS_NUM_THREADS=1
export HWLOC_PLUGINS_PATH=/none ASAN_OPTIONS=${ASAN_OPTIONS:-handle_segv=2:handle_sigbus=2} # as ctest has it
limit=120 # seconds for one case
cases=0 passed=0
out=$(mktemp)
trap 'rm -f "$out"' EXIT

for test in equivalence toys launches overlap no_sync overflow sharded shards; do
    program=$directory/test_${test}_stage$stage
    [ -x "$program" ] || continue
    for ranks in "$@"; do
        for name in $("$program" --list); do
            # shellcheck disable=SC2086 # a list of flags
            timeout -k 5 "$limit" "${MPIEXEC:-mpiexec}" ${MPIEXEC_FLAGS:-} -n "$ranks" "$program" --case "$name" \
                >"$out" 2>&1 </dev/null
            status=$?
            cases=$((cases + 1))
            if [ "$status" -eq 0 ]; then
                passed=$((passed + 1))
                result=passed
            elif { [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; } && ! grep -aq 'fault:\|ERROR:\|exception:' "$out"; then
                result="FAILED: not done after $limit s"
            else
                message=$(first_message "$out")
                result="FAILED: ${message:-$(tail -n 1 "$out")}"
            fi
            printf '%d rank(s)  %-12s %-45s %s\n' "$ranks" "$test" "$name" "$result"
        done
    done
done
if [ "$cases" -eq 0 ]; then
    echo "grade.sh: there are no tests of stage $stage in $build: build it first, with cmocka installed" >&2
    exit 2
fi
echo "stage $stage: $passed of $cases cases passed"
[ "$passed" -eq "$cases" ]
