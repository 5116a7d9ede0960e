#!/usr/bin/env bash
# test_nccl.sh: pg_nccl.c over an imitation of NCCL (fake_nccl.c): its results, and how the job ends when NCCL fails,
# hangs, or cannot even be aborted. The test cannot show the behaviour of the real NCCL.
#
# usage: test_nccl.sh NCCL_RANK MPIEXEC [FLAGS OF MPIEXEC...]
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../../lib.sh"
program=$1
shift
launcher=("$@")

# ends NAME STATUS SECONDS PATTERN RANKS WORDS...: the job ends with STATUS within SECONDS, and prints PATTERN to
# stderr; if PATTERN is empty, nothing.
ends() {
    local name=$1 expected=$2 limit=$3 pattern=$4 ranks=$5 status=0
    shift 5
    timeout -k 5 "$limit" "${launcher[@]}" -n "$ranks" "$program" "$@" >"$scratch/out" 2>"$scratch/err" </dev/null ||
        status=$?
    if [ "$status" -ne "$expected" ]; then
        fail "$name: expected status $expected, got $status (124: it hung for $limit s)"
    elif [ -z "$pattern" ] && [ -s "$scratch/err" ]; then
        fail "$name: there was output on stderr"
    elif [ -n "$pattern" ] && ! grep -q -e "$pattern" "$scratch/err"; then
        fail "$name: nothing on stderr like: $pattern"
    fi
}

for ranks in 1 3; do
    ends "every operation on $ranks rank(s)" 0 120 '' "$ranks"
done
export FAKE_NCCL
FAKE_NCCL=remote ends "a lost peer" 1 60 'rank [01].*number [0-9]* (x, [^)]*): remote process exited.*own message' 2
FAKE_NCCL=illegal ends "a crashed kernel" 1 60 'illegal memory access.*compute-sanitizer' 2
grep -q 'fake NCCL: abort' "$scratch/err" || fail "after a crashed kernel NCCL's kernels were not stopped"
FAKE_NCCL=init ends "a group that never comes up" 1 60 'the start of the group took more than --timeout 3' 2
FAKE_NCCL=slow-call ends "a call under way when the job ends" 1 60 'rank [01].*has been waiting.*number [0-9]* (x' 2
! grep -q -e 'under a call' -e 'taken apart' "$scratch/err" ||
    fail "ncclCommAbort took the communicator apart while another thread was in a call that uses it"
FAKE_NCCL='' ends "a rank that does not come" 1 60 'rank 1.*has been waiting.*the last one' 2 absent 0
grep -q 'fake NCCL: abort' "$scratch/err" || fail "NCCL's kernels were not stopped"
! grep -q 'taken apart' "$scratch/err" || fail "a communicator was used after ncclCommAbort"
FAKE_NCCL=abort-hangs ends "an abort that hangs" 1 60 'rank 1.*has been waiting.*the last one' 2 absent 0

finish
