#!/usr/bin/env bash
# test_faults.sh FAULT_RANK TRAIN [MPIEXEC]: whatever happens to one rank, all ranks end soon, the status is not 0, a line
# names the rank or shows both sides, and no process is left. FAULT_RANK is tests/fault_rank.c; TRAIN a stage's train.
# KILLS: how often a rank of TRAIN is killed at a random moment (default 3).

# A sanitizer that catches the planted crash would end the rank with a status instead of the signal.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:handle_segv=0
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/processes.sh"
fault_rank=$1 train=$2 mpiexec=${3:-mpiexec}
mark=$$ # among the arguments of everything started here: the same programs may be running elsewhere
ranks=3 limit=15 failures=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    failures=$((failures + 1))
    echo "FAIL: $1"
    sed 's/^/     stderr: /' "$work/err" | head -n 12
}

# check NAME STATUS PATTERN...: the run has ended badly, and each pattern is on stderr.
check() {
    local name=$1 status=$2 pattern left
    shift 2
    [ "$status" -ne 0 ] || fail "$name: the run ended with status 0, as if nothing had happened"
    [ "$status" -ne 124 ] || fail "$name: the run was still there after $limit s"
    for pattern in "$@"; do
        grep -Eq "$pattern" "$work/err" || fail "$name: no line on stderr matches: $pattern"
    done
    left=$(left_running "$fault_rank" "$mark"; left_running "$train" "$mark")
    [ -z "$left" ] || fail "$name: processes are left: $left"
}

# plant WORDS PATTERN...: runs fault_rank with one rank misbehaving.
plant() {
    local words=$1
    shift
    # shellcheck disable=SC2086 # several words, and MPIEXEC_FLAGS is a list
    timeout -k 2 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n "$ranks" "$fault_rank" $words "$mark" \
        >"$work/out" 2>"$work/err"
    check "$words" $? "$@"
}

plant sleep 'rank 0, step 2: has been waiting for [0-9.]+ s in all_reduce number 4 \(bucket 0, 1000 x float32\)' \
    'rank 1, step 2: has been waiting' 'rank 2, step 2: has not come to collective number 4; its last one'
plant leave 'rank 0, step 2: has been waiting for [0-9.]+ s in all_reduce number 4 \(bucket 0, .*rank 2 has left the group after 4' \
    'rank 1, step 2: .*rank 2 has left the group'
plant exit 'rank 2 .*ended with status 3'
plant abort 'rank 2 .*signal 6'
plant crash 'rank 2 .*signal 11'
plant "skip debug" 'different collectives: rank 0 all_reduce number 4 of bucket 0.*rank 2 all_reduce number 4 of bucket 1'
plant "count debug" 'rank 0 all_reduce number 4 of bucket 0: 1000 x float32.*rank 2 .*500 x float32'
plant model 'parameter 0 is fc1.weight float32 \[4, 3\] on rank 0, but fc1.weight float32 \[4, 5\] on rank 2'

# Two ranks with other flags than the first: said before anything goes wrong. (Stage 1 has no buckets.)
other=(--bucket-cap-mb 1) said='bucket-cap-mb, in bytes is 26214400 on rank 0, but 1048576 on rank 1'
case $train in
    *stage1*) other=(--accumulate 2) said='accumulate is 1 on rank 0, but 2 on rank 1' ;;
esac
# shellcheck disable=SC2086
timeout -k 2 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n 1 "$train" --steps 2 --seed "$mark" : \
    -n 2 "$train" --steps 2 --seed "$mark" "${other[@]}" >"$work/out" 2>"$work/err"
check "${other[0]} differs" $? "$said"

# kill_rank N: kills rank N of a training run at a random moment.
kill_rank() {
    local victim=$1 status launcher pid start left
    # shellcheck disable=SC2086
    timeout -k 2 60 "$mpiexec" ${MPIEXEC_FLAGS:-} -n "$ranks" "$train" --model mlp-toy --steps 100000000 \
        --seed "$mark" >"$work/out" 2>"$work/err" &
    launcher=$!
    for _ in $(seq 100); do # each rank is two processes: itself, and the parent that waits for it
        [ "$(processes "$train" "$mark" | wc -l)" -ge $((2 * ranks)) ] && break
        sleep 0.1
    done
    pid=$(for p in $(processes "$train" "$mark"); do
        tr '\0' '\n' <"/proc/$p/environ" | grep -Eqx "(PMI_RANK|OMPI_COMM_WORLD_RANK)=$victim" && echo "$p"
    done | sort -n | tail -n 1)
    sleep "0.$((RANDOM % 9 + 1))"
    start=$SECONDS
    if [ -z "$pid" ] || ! kill -9 "$pid"; then
        fail "kill -9 of rank $victim: found no process of it"
        kill "$launcher"
    fi
    wait "$launcher"
    status=$?
    [ "$status" -ne 0 ] || fail "kill -9 of rank $victim: the run ended with status 0"
    [ $((SECONDS - start)) -le 10 ] || fail "kill -9 of rank $victim: it took $((SECONDS - start)) s to end"
    grep -q "rank $victim .*signal 9" "$work/err" || fail "kill -9 of rank $victim: no line names it"
    left=$(left_running "$train" "$mark")
    if [ -n "$left" ]; then
        fail "kill -9 of rank $victim: processes are left: $left"
        # shellcheck disable=SC2086 # a list of numbers
        kill -9 $left
    fi
}

for i in $(seq "${KILLS:-3}"); do
    kill_rank $(((i - 1) % ranks))
done

echo "$failures failure(s)"
[ "$failures" -eq 0 ]
