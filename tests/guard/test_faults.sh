#!/usr/bin/env bash
# test_faults.sh FAULT_RANK TRAIN [MPIEXEC]: after any fault of one rank, all ranks end within time-out + 5 s, the
# status is not 0, a line names the rank or shows both sides, and no process is left. FAULT_RANK is built from
# fault_rank.c; TRAIN is a stage's train. (Training that is killed or stopped, and slow disks: test_signals.sh.)
# PART: waits, mistakes, ends or groups: only these faults; all of them if it is not set.
# CLOCK_AHEAD: the library of clock_ahead.c.

# A sanitizer must not catch the planted crash: it would end the rank with a status instead of the signal. Nor must it
# insist on being loaded before the library.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:handle_segv=0:handle_sigbus=0:verify_asan_link_order=0
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh" && . "$(dirname "$0")/../stages/processes.sh"
fault_rank=$1 train=$2 mpiexec=${3:-mpiexec}
mark=$$ # an argument of every program started here: other copies may be running
ranks=3 under=() # under: a command that starts fault_rank
timeout=3             # that of fault_rank.c, and TRAIN's --timeout
soon=$((timeout + 5)) # seconds from the fault to the end
limit=60              # seconds after which a run is ended

# ended_soon NAME: the last run ended soon after its fault. The rank prints a line when the fault begins, so that was
# when the file was last written to. (The time that MPI takes to start does not count.)
ended_soon() {
    local took=$(($(date +%s) - $(stat -c %Y "$scratch/out")))
    [ "$took" -le "$soon" ] || fail "$1: it took $took s to end: the time-out of $timeout s and 5 s more are allowed"
}

# none_left NAME: no process of the last run is left.
none_left() {
    local left
    left=$(left_running "$fault_rank" "$mark"; left_running "$train" "$mark")
    [ -z "$left" ] || fail "$1: processes are left: $left"
}

# check NAME STATUS PATTERN...: the run has failed, and each pattern is on stderr.
check() {
    local name=$1 status=$2 pattern
    shift 2
    [ "$status" -ne 0 ] || fail "$name: the run ended with status 0, as if nothing had happened"
    case $status in 124 | 137) fail "$name: the run was still there after $limit s" ;; esac
    for pattern in "$@"; do
        grep -Eq "$pattern" "$scratch/err" || fail "$name: no line on stderr matches: $pattern"
    done
    none_left "$name"
}

# plant WORDS PATTERN...: runs fault_rank with one rank misbehaving.
plant() {
    local words=$1
    shift
    # shellcheck disable=SC2086 # several words, and MPIEXEC_FLAGS is a list
    timeout -k 2 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n "$ranks" "${under[@]}" "$fault_rank" $words "$mark" \
        >"$scratch/out" 2>"$scratch/err"
    status=$?
    ended_soon "$words"
    check "$words" "$status" "$@"
}

# plant_late WORDS PATTERN...: the same, where a time-out ends the run. The seconds in the messages ("has been waiting
# for 3.0 s") must be plausible: one rank has waited for the time-out, and the others began at nearly the same time.
plant_late() {
    plant "$@"
    grep -oE '[0-9.]+ s\b' "$scratch/err" | awk -v low="$timeout" -v high="$soon" '
        { most = $1 > most ? $1 : most; bad = bad || $1 < low - 2 || $1 > high }
        END { exit bad || most < low - 0.1 }' || fail "$1: the seconds in the messages are not $timeout to $soon"
}

# finalize HOW STATUS: an MPI_Finalize that never returns, at the end of HOW. All work is done by then, so the ranks end
# without it, with the status that they would have had. (Open MPI's launcher reports such a rank as failed, and that of
# 4.1 sometimes hangs or crashes then, so only the ranks are checked there. Its MPI_Finalize is not known to hang.)
finalize() {
    local status
    # shellcheck disable=SC2086
    timeout -k 2 30 "$mpiexec" ${MPIEXEC_FLAGS:-} -n "$ranks" "$fault_rank" "$1" "$mark" >"$scratch/out" 2>"$scratch/err"
    status=$?
    [ "$status" -eq "$2" ] || [ -n "${MPIEXEC_FLAGS:-}" ] ||
        fail "MPI_Finalize hangs ($1): expected status $2, got $status (124, 137: still there after 30 s)"
    grep -q 'note: MPI_Finalize has not returned within 10 s; nothing is left to do' "$scratch/err" ||
        fail "MPI_Finalize hangs ($1): no rank says so"
    none_left "MPI_Finalize hangs ($1)"
}

# ---- a rank that does not come: the time-out ----

waits() {
    plant_late sleep 'rank 0, step 2: has been waiting for [0-9.]+ s in all_reduce number 4 \(bucket 0, 1000 x float32\)' \
        'rank 1, step 2: has been waiting' 'rank 2, step 2: has not reached collective number 4; its last one'
    plant_late device 'rank 0, step 2: has been waiting for [0-9.]+ s in all_reduce number 4 \(bucket 0, 1000 x float32\)' \
        'rank 1, step 2: has been waiting' \
        'rank 2, step 2: has not reached collective number 4: in [0-9.]+ s its device has not computed the data of all_reduce number 4'
    ! grep -Eq 'rank 2, step 2: has been waiting' "$scratch/err" || fail "device: rank 2, which is late itself, blames the others"
    plant_late backward 'rank 0, step 2: has been waiting for [0-9.]+ s in all_reduce number 5 \(fc1.weight, 100 x float32\)' \
        'rank 1, step 2: has been waiting' \
        'rank 2, step 2: has not reached collective number 5; its last one, all_reduce number 4 \(fc2.weight'
    plant_late late_free 'fault: rank 0.*has been waiting for [0-9.]+ s in barrier number [0-9]+ \(freeing shared memory' \
        'rank 1.*has been waiting for [0-9.]+ s in barrier' 'rank 2.*has not reached collective number'
    plant leave 'rank 0, step 2: has been waiting for [0-9.]+ s in all_reduce number 4 \(bucket 0, .*rank 2 has left the group after 4' \
        'rank 1, step 2: .*rank 2 has left the group'
    plant_late "sleep shm" 'rank 0, step 2: has been waiting for [0-9.]+ s in all_reduce number 6 \(bucket 0, 1000 x float32\)' \
        'rank 1, step 2: has been waiting' 'rank 2, step 2: has not reached collective number 6; its last one'
    plant "leave shm" 'rank [01], step 2: all_reduce number [0-9]+ \(bucket 0, 1000 x float32\): rank 2 frees its shared memory instead'
    plant_late wire 'rank 0, step 2: has been waiting for [0-9.]+ s in all_reduce number 4 \(bucket 0, .* for the emulated link: --wire' \
        'rank 1, step 2: has been waiting' 'rank 2, step 2: has been waiting'

    # The clock of the day is set back by an hour. (The watchdog must not sleep until then.)
    under=(env LD_PRELOAD="$CLOCK_AHEAD")
    plant_late sleep 'rank 0, step 2: has been waiting for' 'rank 2, step 2: has not reached collective number 4'
    under=()

    # A broadcast follows a tree: one rank is missing, one waits for it, and the others do not notice. (Open MPI's tree
    # has another shape.)
    if [ -z "${MPIEXEC_FLAGS:-}" ]; then
        ranks=4
        plant_late broadcast 'rank 0, step 2: has done its part of broadcast number 4 \(weights, .*so it is not the missing rank' \
            'rank 1, step 2: has done its part' 'rank 2, step 2: has not reached collective number 4' \
            'rank 3, step 2: has been waiting for [0-9.]+ s in broadcast number 4'
        ranks=3
    fi
}

# ---- calls that are wrong, or that differ between ranks ----

mistakes() {
    plant "count shm" 'this rank calls all_reduce number [0-9]+ \(bucket 0, [0-9]+ x float32\), but rank [0-9] calls all_reduce of (1000|500)'
    plant "operation shm" 'this rank calls (all_reduce|reduce_scatter) number [0-9]+ \(bucket 0, 1000 x float32\), but rank [0-9] calls (all_reduce|reduce_scatter) of 1000'
    plant count 'debug-collectives names the first' # ranks wait in different collectives, or MPI truncates a message
    plant negative 'rank 2, step 2: all_reduce number 4 \(bucket 0, 18446744073709550616 x float32\): this count is implausible: was it negative'
    plant large 'broadcast number [0-9]+ \(bucket 0, 2147483648 x float32\): MPI counts 2147483647 elements at most'
    for where in mpi shm; do
        plant "bytes $where" 'rank 2, step 2: all_reduce number [46] \(bucket 0, 4000 x float32\) goes beyond the end of its memory, where 1000 elements are left'
        plant "whole $where" 'rank 2, step 2: all_gather number [46] \(bucket 0, 2000 x float32\) for each rank goes beyond the end of its memory, where 2000'
    done
    plant unstarted 'rank 2, step 2: work_wait\(NULL\): this collective was never started'
    plant twice 'rank 2, step 2: work_wait\(\): all_reduce number 4 has had its work_wait\(\) before'
    plant endless 'rank 2, step 2: more than 100000 collectives have been started .*\(the last one: bucket 0\)'
    for where in mpi shm; do
        plant "unwaited $where" 'rank 2, step 2: this rank frees memory while 3 collective\(s\) may be under way: every collective that was started needs'
    done
    plant "skip debug" 'different collectives: rank 0 all_reduce number 4 of bucket 0.*rank 2 all_reduce number 4 of bucket 1'
    plant "count debug" 'rank 0 all_reduce number 4 of bucket 0: 1000 x float32.*rank 2 .*500 x float32'
    plant "model text" 'rank [02] sent data of another collective'
    plant "model number" 'rank 2 sent data of another collective, not the text that is compared here'
    plant model 'parameter 0 is fc1.weight float32 \[4, 3\] on rank 0, but fc1.weight float32 \[4, 5\] on rank 2'
    for case in 1:2 2:1 3:2; do # PARAMETER:RANK, of three each
        plant "drift $((${case%:*} - 1))" "drifted apart: fc${case%:*}.weight differs between rank 0 and rank ${case#*:}"
    done

    # Two ranks with another flag than the first: reported before the first step.
    # shellcheck disable=SC2086
    timeout -k 2 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n 1 "$train" --steps 2 --seed "$mark" : \
        -n 2 "$train" --steps 2 --seed "$mark" --check-every 1 >"$scratch/out" 2>"$scratch/err"
    check "--check-every differs" $? 'check-every is not given on rank 0, but 1 on rank 1'
}

# ---- a rank that ends, or whose MPI_Finalize does not ----

ends() {
    # A file that an MPI may use, or may have left: no run deletes it.
    local others=/dev/shm/mpich_shar_tmp_$mark
    touch -d '1 hour ago' "$others" || others=
    for code in 0 1 2 3; do # as a library may exit after an error (with leaks, a sanitizer would change the status)
        ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 plant "exit $code" "fault: rank 2 .*ended with status $code before its work"
    done
    plant '_Exit 1' 'fault: rank 2 .*ended with status 1 before its work'
    plant abort 'rank 2 .*signal 6'
    plant crash 'rank 2 .*signal 11'
    plant bus 'rank 2 .*signal 7 .*: is there room in /dev/shm'

    # Before MPI_Init, which the other ranks have called, or will. (Open MPI's launcher ends a job if a rank was killed.)
    if [ -z "${MPIEXEC_FLAGS:-}" ]; then
        plant 'early rank' 'fault: rank 2 .*signal 9'
        plant 'early parent' 'fault: rank 2 .*its parent, process [0-9]+, was killed'
    fi

    [ -z "$others" ] || [ -e "$others" ] || fail "a run has deleted a file of another program: $others"
    rm -f "$others"

    finalize finalize 0
    finalize die 2
    grep -q 'error: planted: a mistake that every rank makes$' "$scratch/err" || fail "die: rank 0 does not report for all"
}

# ---- a rank of one of two groups ----

groups() {
    local of='of group 1/1 \(2 ranks, 1 to 3\)'
    ranks=4 under=(env HALVES=1)
    plant_late sleep "rank 1, step 2: has been waiting for [0-9.]+ s in all_reduce number 4 \\(bucket 0, 1000 x float32\\) $of for other ranks" \
        "rank 3, step 2: has not reached collective number 4 $of; its last one"
    ! grep -E 'rank [02], step' "$scratch/err" || fail "sleep: a rank of the other group complains"
    plant "sleep shm" "rank 1, step 2: has been waiting for .* $of for other ranks"
    plant "skip debug" "the ranks $of call different collectives: rank 1 all_reduce number 4 of bucket 0.*rank 3 all_reduce number 4 of bucket 1"
    plant "count shm" "this rank calls all_reduce number [0-9]+ \\(bucket 0, [0-9]+ x float32\\) $of, but rank [13] calls"
    plant kill "rank 3 \\(process [0-9]+\\) was ended by signal 9 .* in or after collective number 3 $of"
    ranks=3 under=()
}

case ${PART:-all} in
    all) waits; mistakes; ends; groups ;;
    waits | mistakes | ends | groups) $PART ;;
    *) echo "test_faults.sh: PART is $PART, expected waits, mistakes, ends or groups" >&2 && exit 2 ;;
esac
finish
