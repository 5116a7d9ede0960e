#!/usr/bin/env bash
# test_nccl.sh: pg_nccl.c over an imitation of NCCL (fake_nccl.c): its results, and how the job ends when NCCL fails,
# hangs, or cannot even be aborted. The test cannot show the behaviour of the real NCCL.
#
# usage: test_nccl.sh NCCL_RANK MPIEXEC [FLAGS OF MPIEXEC...]
set -u
program=$1
shift
launcher=("$@")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

# ends NAME STATUS SECONDS PATTERN RANKS WORDS...: the job ends with STATUS within SECONDS, and prints PATTERN to
# stderr; if PATTERN is empty, nothing.
ends() {
    local name=$1 expected=$2 limit=$3 pattern=$4 ranks=$5 status=0
    shift 5
    timeout -k 5 "$limit" "${launcher[@]}" -n "$ranks" "$program" "$@" >"$scratch/out" 2>"$scratch/err" </dev/null ||
        status=$?
    if [ "$status" -ne "$expected" ]; then
        echo "FAIL: $name: expected status $expected, got $status (124: it hung for $limit s)"
    elif [ -z "$pattern" ] && [ -s "$scratch/err" ]; then
        echo "FAIL: $name: there was output on stderr"
    elif [ -n "$pattern" ] && ! grep -q -e "$pattern" "$scratch/err"; then
        echo "FAIL: $name: nothing on stderr like: $pattern"
    else
        return
    fi
    failures=$((failures + 1))
    head -n 5 "$scratch/err" | sed 's/^/     stderr: /'
}

for ranks in 1 2 3 4; do
    ends "every operation on $ranks rank(s)" 0 120 '' "$ranks"
done
export FAKE_NCCL
FAKE_NCCL=remote ends "a lost peer" 1 60 'rank [01].*number [0-9]* (x, [^)]*): remote process exited.*own message' 2
FAKE_NCCL=illegal ends "a crashed kernel" 1 60 'illegal memory access.*compute-sanitizer' 2
if ! grep -q 'fake NCCL: abort' "$scratch/err"; then
    failures=$((failures + 1))
    echo "FAIL: after a crashed kernel NCCL's kernels were not stopped"
fi
FAKE_NCCL=init ends "a group that never comes up" 1 60 'the start of the group took more than --timeout 3' 2
FAKE_NCCL=slow-call ends "a call under way when the job ends" 1 60 'rank [01].*has been waiting.*number [0-9]* (x' 2
if grep -e 'under a call' -e 'taken apart' "$scratch/err"; then
    failures=$((failures + 1))
    echo "FAIL: ncclCommAbort took the communicator apart while another thread was in a call that uses it"
fi
FAKE_NCCL='' ends "a rank that does not come" 1 60 'rank 1.*has been waiting.*the last one' 2 absent 0
if ! grep -q 'fake NCCL: abort' "$scratch/err"; then
    failures=$((failures + 1))
    echo "FAIL: NCCL's kernels were not stopped"
elif grep -q 'taken apart' "$scratch/err"; then
    failures=$((failures + 1))
    echo "FAIL: a communicator was used after ncclCommAbort"
fi
FAKE_NCCL=abort-hangs ends "an abort that hangs" 1 60 'rank 1.*has been waiting.*the last one' 2 absent 0

[ "$failures" -eq 0 ] || exit 1
echo "pg_nccl.c over the fake NCCL: all checks passed"
