#!/usr/bin/env bash
# test_limits.sh TRAIN: if the system gives less than usual (memory, the size of a file, streams), a run ends soon by
# itself, with a line that says why, and leaves no incomplete file.
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
train=$(realpath "$1")
cd "$scratch" || exit 1

# expect NAME STATUS PATTERN STATUS_IS: PATTERN is on stderr.
expect() {
    if [ "$4" -eq 124 ]; then
        echo "FAIL: $1: still running after 20 s"
    elif [ "$4" -ne "$2" ] || { [ -n "$3" ] && ! grep -Eq "$3" err; }; then
        echo "FAIL: $1: expected status $2 and '$3', got status $4 and '$(head -n 2 err)'"
    else
        return
    fi
    failures=$((failures + 1))
}

# under LIMITS ARGUMENTS...: runs train on one rank. Sets status.
under() {
    local limits=$1
    shift
    # shellcheck disable=SC2086 # ulimit's words
    (ulimit $limits && exec timeout -k 2 20 "$train" --model mlp-toy --steps 1 "$@") >out 2>err
    status=$?
}

under "-v unlimited"
expect "no limit" 0 "" "$status"
if [ "${SANITIZED:-}" = "" ]; then # sanitizers reserve terabytes of addresses
    for kilobytes in $(seq 420000 -40000 100000); do # at one of them MPI starts, but OpenBLAS's buffer does not fit
        under "-v $kilobytes"
        if [ "$status" -eq 124 ] || grep -q OpenBLAS, err; then break; fi
    done
    expect "little memory ($kilobytes kB)" 1 "fault: rank 0: no memory for OpenBLAS" "$status"
fi
under "-f 8000" --hidden 1500,1500 --save weights # 9 MB; MPI's own files need 6
expect "a limit on the size of files" 1 "fault: rank 0: weights: write failed: File too large" "$status"
left=$(echo weights*)
[ "$left" = "weights*" ] || { failures=$((failures + 1)) && echo "FAIL: a limit on the size of files: $left is left"; }

under "-f 8000" --steps 20000 --save weights --trace trace # some 20 MB of events
expect "a trace beyond the limit" 1 "fault: rank 0: trace: write failed: File too large" "$status"
[ -s weights ] || { failures=$((failures + 1)) && echo "FAIL: the trace failed, and with it the weights are lost"; }

# A limit on threads counts a user's processes, and none of root's. So root runs this as another user, who has none.
if [ "$(id -u)" -eq 0 ] && [ -z "$(ps -u 65534 -o pid=)" ]; then
    (ulimit -u 3 && OPENBLAS_NUM_THREADS=1 exec setpriv --reuid 65534 --regid 65534 --clear-groups timeout -k 2 20 \
        sh -c 'exec "$0" --model mlp-toy --steps 1' "$train") >out 2>err
    status=$?
    expect "few threads" 1 "^train: fault: rank 0: the system allows [12] more thread.*, and a rank needs 4.*ulimit -u" "$status"
    [ "$(wc -l <err)" -eq 1 ] || { failures=$((failures + 1)) && echo "FAIL: few threads: more than one line: $(cat err)"; }
else
    echo "not run: a limit on threads, because this is not root, or user 65534 has processes"
fi

timeout -k 2 20 "$train" --model mlp-toy --steps 1 <&- >&- 2>&-
status=$?
: >err
expect "stdin, stdout and stderr closed: stdout is lost" 1 "" "$status"

finish
