#!/usr/bin/env bash
# test_flight.sh FAULT_RANK TRAIN [MPIEXEC]: a run hangs on one of 4 ranks. The file of --flight-recorder holds what each
# rank called last, and scripts/diagnose.sh names the rank, the collective, and where to read on.
set -u
fault_rank=$1 train=$2 mpiexec=${3:-mpiexec}
diagnose=$(dirname "$0")/../../scripts/diagnose.sh
command -v jq >/dev/null || { echo "skipped: jq is missing"; exit 77; }
failures=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    failures=$((failures + 1))
    echo "FAIL: $*"
    sed 's/^/    /' "$work/out"
}

# says STATUS PATTERN...: diagnose.sh ends so, and each pattern matches a line.
says() {
    local status=$1 pattern got
    shift
    "$diagnose" --flight-recorder "$work/flight" >"$work/out" 2>&1
    got=$?
    [ $got -eq "$status" ] || fail "$what: status $got, expected $status"
    for pattern in "$@"; do
        grep -q -E "$pattern" "$work/out" || fail "$what: no line matches $pattern"
    done
}

hang() { # HOW
    what=$1
    FLIGHT_RECORDER=$work/flight timeout 60 "$mpiexec" ${MPIEXEC_FLAGS:-} -n 4 "$fault_rank" "$1" >"$work/log" 2>&1
    jq -s -e 'all(.rank < 4 and .rank_in_group < .ranks and .ranks <= 4 and .number >= 0 and .called_s_ago >= 0)' "$work/flight" >/dev/null ||
        fail "$1: $work/flight has lines that are not as they should be"
}

hang sleep
says 0 'hangs in all_reduce number 4 \(bucket 0\), 1000 x float32' \
    'Rank 3 has not called it. Its last one, all_reduce number 3 \(bucket 1\), was done 3' 'A rank is missing'
[ "$(grep -c 'Rank ' "$work/out")" -eq 1 ] || fail "other ranks are named, too"
[ "$(jq -s 'map(.rank) | unique | length' "$work/flight")" -eq 4 ] || fail "not all ranks have written"
hang device
says 0 'Rank 3 has called it, but its device has not computed'
HALVES=1 hang sleep
says 0 'hangs in all_reduce number 4 \(bucket 0\) of group 1/1 \(2 ranks, 1 to 3\), 1000 x float32' \
    'Rank 3 has not called it. Its last one, all_reduce number 3 \(bucket 1\) of group 1/1'

# A rank of the real program that is stopped writes nothing. The file does not keep an earlier run's lines.
what="a stopped rank"
timeout 120 "$mpiexec" ${MPIEXEC_FLAGS:-} -n 4 "$train" --model mlp-toy --steps 10000000 --timeout 3 \
    --flight-recorder "$work/flight" >"$work/log" 2>&1 &
for _ in $(seq 300); do
    grep -q '^step' "$work/log" && break
    sleep 0.1
done
[ ! -s "$work/flight" ] || fail "an earlier run's lines are still there"
stopped=$(pgrep -n -f "^$train .*$work/flight")
kill -STOP "$stopped"
wait
says 0 'hangs in (all_reduce|barrier|all_gather) number' 'Rank [0-3] has written nothing: it was stopped or killed'
[ "$(jq -s 'group_by(.rank) | map(length <= 32) | all' "$work/flight")" = true ] || fail "more than 32 lines for a rank"

what="different calls"
line() { # RANK CARRIES
    echo "{\"rank\":$1,\"group\":\"the world\",\"rank_in_group\":$1,\"ranks\":2,\"number\":9,\"collective\":\"all_reduce\",\"carries\":\"$2\",\"count\":10," \
        '"dtype":"float32","in_background":true,"called_s_ago":4,"ready_s_ago":4,"done_s_ago":null}'
}
{ line 0 "bucket 0" && line 1 "bucket 1"; } >"$work/flight"
says 0 'different collectives under this number' 'rank 1: all_reduce number 9 \(bucket 1\)'
{ line 0 "bucket 0" && line 1 "bucket 0"; } >"$work/flight"
says 0 'All ranks have called it: the messages do not get through'

what="a file without a hang"
: >"$work/flight"
says 1 'is empty'
echo text >"$work/flight"
says 2 'is no file of --flight-recorder'
rm "$work/flight"
says 2 'cannot be read'

# The file must not replace another one of the run.
what="the same file twice"
"$train" --model mlp-toy --steps 1 --json "$work/x" --flight-recorder "$work/x" >"$work/out" 2>&1 && fail "$what"
grep -q -e '--flight-recorder: .* is also the file of --json' "$work/out" || fail "$what: no message says so"

echo "$failures failure(s)"
[ $failures -eq 0 ]
