#!/usr/bin/env bash
# test_faults.sh FAULT_RANK TRAIN [MPIEXEC]: after any fault of one rank, all ranks end within time-out + 5 s, the
# status is not 0, a line names the rank or shows both sides, and no process is left. FAULT_RANK is built from
# fault_rank.c; TRAIN is a stage's train.
# KILLS: how often a rank of TRAIN is killed at a random moment (default 3).
# PART: waits, mistakes, ends, groups, signals or disks: only these faults; all of them if it is not set.
# CLOCK_AHEAD, SLOW_DISK: the libraries of clock_ahead.c and slow_disk.c.

# A sanitizer must not catch the planted crash: it would end the rank with a status instead of the signal. Nor must it
# insist on being loaded before the two libraries.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:handle_segv=0:handle_sigbus=0:verify_asan_link_order=0
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh" && . "$(dirname "$0")/../stages/processes.sh"
work=$scratch
fault_rank=$1 train=$2 mpiexec=${3:-mpiexec}
mark=$$ # an argument of every program started here: other copies may be running
ranks=3 under=() # under: a command that starts fault_rank
timeout=3             # that of fault_rank.c, and TRAIN's --timeout
soon=$((timeout + 5)) # seconds from the fault to the end
limit=60              # seconds after which a run is ended

# ended_soon NAME: the last run ended soon after its fault. The rank prints a line when the fault begins, so that was
# when the file was last written to. (The time that MPI takes to start does not count.)
ended_soon() {
    local took=$(($(date +%s) - $(stat -c %Y "$work/out")))
    [ "$took" -le "$soon" ] || fail "$1: it took $took s to end: the time-out of $timeout s and 5 s more are allowed"
}

# check NAME STATUS PATTERN...: the run has failed, and each pattern is on stderr.
check() {
    local name=$1 status=$2 pattern left
    shift 2
    [ "$status" -ne 0 ] || fail "$name: the run ended with status 0, as if nothing had happened"
    case $status in 124 | 137) fail "$name: the run was still there after $limit s" ;; esac
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
    timeout -k 2 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n "$ranks" "${under[@]}" "$fault_rank" $words "$mark" \
        >"$work/out" 2>"$work/err"
    status=$?
    ended_soon "$words"
    check "$words" "$status" "$@"
}

# plant_late WORDS PATTERN...: the same, where a time-out ends the run. The seconds in the messages ("has been waiting
# for 3.0 s") must be plausible: one rank has waited for the time-out, and the others began at nearly the same time.
plant_late() {
    plant "$@"
    grep -oE '[0-9.]+ s\b' "$work/err" | awk -v low="$timeout" -v high="$soon" '
        { most = $1 > most ? $1 : most; bad = bad || $1 < low - 2 || $1 > high }
        END { exit bad || most < low - 0.1 }' || fail "$1: the seconds in the messages are not $timeout to $soon"
}

# finalize HOW STATUS: an MPI_Finalize that never returns, at the end of HOW. All work is done by then, so the ranks end
# without it, with the status that they would have had. (Open MPI's launcher reports such a rank as failed, and that of
# 4.1 sometimes hangs or crashes then, so only the ranks are checked there. Its MPI_Finalize is not known to hang.)
finalize() {
    local status
    # shellcheck disable=SC2086
    timeout -k 2 30 "$mpiexec" ${MPIEXEC_FLAGS:-} -n "$ranks" "$fault_rank" "$1" "$mark" >"$work/out" 2>"$work/err"
    status=$?
    [ "$status" -eq "$2" ] || [ -n "${MPIEXEC_FLAGS:-}" ] ||
        fail "MPI_Finalize hangs ($1): expected status $2, got $status (124, 137: still there after 30 s)"
    grep -q 'note: MPI_Finalize has not returned within 10 s; nothing is left to do' "$work/err" ||
        fail "MPI_Finalize hangs ($1): no rank says so"
    left=$(left_running "$fault_rank" "$mark")
    [ -z "$left" ] || fail "MPI_Finalize hangs ($1): processes are left: $left"
}
# start_training WORDS...: starts a long run, and returns when all its processes exist. Sets launcher.
start_training() {
    # shellcheck disable=SC2086
    timeout -k 2 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n "$ranks" "$train" --model mlp-toy --steps 100000000 \
        --seed "$mark" "$@" >"$work/out" 2>"$work/err" &
    launcher=$!
    for _ in $(seq 100); do
        [ "$(processes "$train" "$mark" | wc -l)" -ge $((2 * ranks)) ] && break
        sleep 0.1
    done
}

await_first_step() {
    for _ in $(seq 300); do
        grep -q '^step 1/' "$work/out" && break
        sleep 0.1
    done
}

# hurt SIGNAL N PROCESS: sends the signal to rank N at a random moment. Each rank is two processes: itself (PROCESS is
# "tail": the later one), and the parent that waits for it ("head"). Sets pid, and start, the time.
hurt() {
    pid=$(for p in $(processes "$train" "$mark"); do
        tr '\0' '\n' <"/proc/$p/environ" | grep -Eqx "(PMI_RANK|OMPI_COMM_WORLD_RANK)=$2" && echo "$p"
    done | sort -n | "$3" -n 1)
    sleep "0.$((RANDOM % 9 + 1))"
    start=$SECONDS
    if [ -z "$pid" ] || ! kill "-$1" "$pid"; then
        fail "$name: found no process of it"
        kill "$launcher"
    fi
}

# training_ended SECONDS: the training has ended correctly after the signal, within SECONDS seconds.
training_ended() {
    local status left
    wait "$launcher"
    status=$?
    [ "$status" -ne 0 ] || fail "$name: the run ended with status 0"
    [ $((SECONDS - start)) -le "$1" ] || fail "$name: it took $((SECONDS - start)) s to end, but $1 s are allowed"
    left=$(left_running "$train" "$mark")
    if [ -n "$left" ]; then
        fail "$name: processes are left: $left"
        # shellcheck disable=SC2086 # a list of numbers
        kill -9 $left
    fi
}

# signal_parent SIGNAL NUMBER: the parent forwards the signal to its rank, which ends of it.
signal_parent() {
    local name="kill -$1 of rank 1's parent" pid start
    start_training
    hurt "$1" 1 head
    training_ended 10
    grep -Eq "rank 1 .*signal $2\\b" "$work/err" || fail "$name: no line says that rank 1 was ended by signal $2"
}

# kill_rank N PROCESS
kill_rank() {
    local name="kill -9 of rank $1 ($2)" pid start
    start_training
    hurt 9 "$1" "$2"
    training_ended 10
    grep -Eq "rank $1 .*(signal 9|its parent, process $pid, was killed)" "$work/err" || fail "$name: no line names it"
}

# The launcher's process on this host is killed, and then the launcher: the ranks must end by themselves. (No process is
# left to read their messages.)
kill_launcher() {
    local name="kill -9 of the launcher" proxy left
    start_training
    await_first_step
    launcher=$(children "$launcher") # not timeout's: it would end its child
    proxy=$(children "$launcher")
    # shellcheck disable=SC2086 # a number
    kill -9 $proxy "$launcher"
    left=$(left_running "$train" "$mark")
    [ -z "$left" ] && return
    fail "$name: processes are left: $left"
    # shellcheck disable=SC2086 # a list of numbers
    kill -9 $left
}

# stop_rank N: suspends the rank. The others say what they wait for when --timeout is over; the stopped rank prints
# nothing. (Open MPI's launcher wakes it before it ends it, so it may print a line then.)
stop_rank() {
    local name="kill -STOP of rank $1" pid start rank
    start_training --timeout "$timeout"
    await_first_step # MPI_Init has no time-out
    hurt STOP "$1" tail
    training_ended "$soon"
    for rank in $(seq 0 $((ranks - 1))); do
        if [ "$rank" -eq "$1" ]; then
            [ -n "${MPIEXEC_FLAGS:-}" ] || ! grep -q "rank $rank, step" "$work/err" ||
                fail "$name: it prints a line, although it is stopped"
        else
            grep -Eq "rank $rank, step [0-9]+: has been waiting for .*\\(--timeout $timeout\\)" "$work/err" ||
                fail "$name: rank $rank does not say what it waits for"
        fi
    done
}

# All ranks are suspended for twice the time-out, as by Slurm, and go on. This does not count as waiting.
suspend_all() {
    local name="kill -STOP of all ranks, then kill -CONT" left
    start_training --timeout 2
    await_first_step
    # shellcheck disable=SC2046 # a list of numbers, here and below
    kill -STOP $(processes "$train" "$mark")
    sleep 4
    kill -CONT $(processes "$train" "$mark")
    sleep 1
    [ "$(processes "$train" "$mark" | wc -l)" -eq $((2 * ranks)) ] || fail "$name: ranks are gone"
    grep 'has been waiting' "$work/err" && fail "$name: the time in which all were suspended counts as waiting"
    kill "$launcher"
    wait "$launcher"
    left=$(left_running "$train" "$mark")
    [ -z "$left" ] || fail "$name: processes are left: $left"
}

# process_1 SIGNAL STATUS: without a launcher, as process 1 of a container. The system keeps signals from it that it does
# not handle.
process_1() {
    local name="kill -$1 of process 1" pid i
    # shellcheck disable=SC2086 # a list, here and below
    unshare $namespace --pid --fork --mount-proc --kill-child "$train" --model mlp-toy --steps 100000000 \
        --seed "$mark" >"$work/out" 2>"$work/err" &
    launcher=$!
    await_first_step
    pid=$(children "$launcher")
    kill "-$1" $pid
    for ((i = 0; i < 50; i++)); do
        kill -0 $pid 2>/dev/null || break
        sleep 0.1
    done
    if kill -9 $pid 2>/dev/null; then fail "$name: it still runs after 5 s"; fi
    wait "$launcher"
    [ $? -eq "$2" ] || fail "$name: expected status $2"
}

# ---- a rank that does not come: the time-out ----

waits() {
    plant_late sleep 'rank 0, step 2: has been waiting for [0-9.]+ s in all_reduce number 4 \(bucket 0, 1000 x float32\)' \
        'rank 1, step 2: has been waiting' 'rank 2, step 2: has not reached collective number 4; its last one'
    plant_late device 'rank 0, step 2: has been waiting for [0-9.]+ s in all_reduce number 4 \(bucket 0, 1000 x float32\)' \
        'rank 1, step 2: has been waiting' \
        'rank 2, step 2: has not reached collective number 4: its device has not finished, in [0-9.]+ s, what all_reduce number 4'
    ! grep -Eq 'rank 2, step 2: has been waiting' "$work/err" || fail "device: rank 2, which is late itself, blames the others"
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
        plant_late broadcast 'rank 0, step 2: has done its part of broadcast number 4 \(weights, .*it is not the one that is missing' \
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
    plant negative 'rank 2, step 2: all_reduce number 4 \(bucket 0, 18446744073709550616 x float32\): a count that was negative'
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
        -n 2 "$train" --steps 2 --seed "$mark" --check-every 1 >"$work/out" 2>"$work/err"
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
    grep -q 'error: planted: a mistake that every rank makes$' "$work/err" || fail "die: rank 0 does not report for all"
}

# ---- a rank of one of two groups ----

groups() {
    local of='of group 1/1 \(2 ranks, 1 to 3\)'
    ranks=4 under=(env HALVES=1)
    plant_late sleep "rank 1, step 2: has been waiting for [0-9.]+ s in all_reduce number 4 \\(bucket 0, 1000 x float32\\) $of for other ranks" \
        "rank 3, step 2: has not reached collective number 4 $of; its last one"
    ! grep -E 'rank [02], step' "$work/err" || fail "sleep: a rank of the other group complains"
    plant "sleep shm" "rank 1, step 2: has been waiting for .* $of for other ranks"
    plant "skip debug" "the ranks $of call different collectives: rank 1 all_reduce number 4 of bucket 0.*rank 3 all_reduce number 4 of bucket 1"
    plant "count shm" "this rank calls all_reduce number [0-9]+ \\(bucket 0, [0-9]+ x float32\\) $of, but rank [13] calls"
    plant kill "rank 3 \\(process [0-9]+\\) was ended by signal 9 .* in or after collective number 3 $of"
    ranks=3 under=()
}

# ---- training that is killed, stopped, suspended ----

signals() {
    for i in $(seq "${KILLS:-3}"); do
        kill_rank $(((i - 1) % ranks)) tail
    done
    kill_rank 1 head
    signal_parent INT 2
    [ -n "${MPIEXEC_FLAGS:-}" ] || kill_launcher
    stop_rank 1
    suspend_all
    for namespace in "" "-r" none; do
        # shellcheck disable=SC2086
        unshare $namespace --pid --fork --mount-proc true 2>/dev/null && break
    done
    if [ "$namespace" = none ]; then
        echo "not run: process 1 of a container, because this user may not make one (unshare --pid)"
    else
        process_1 TERM 75 # it stops after a step: test_stop.sh
        process_1 INT 130
    fi
}

# ---- rank 0's own work: the others wait for it longer than the time-out, and this is no hang ----

# slow FUNCTION SECONDS WORDS...: training in which this function takes so long. Every output is asked for.
slow() {
    local function=$1 seconds=$2
    shift 2
    # shellcheck disable=SC2086
    timeout -k 2 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n 2 env LD_PRELOAD="$SLOW_DISK" SLOW="$function" \
        SLOW_SECONDS="$seconds" "$train" --model gpt --layers 1 --heads 1 --width 8 --context 8 --batch-size 2 \
        --eval-samples 2 --steps 2 --save "$work/saved" --save-every 1 --json "$work/json" --trace "$work/trace" \
        --generate 1 --seed "$mark" "$@" >"$work/out" 2>"$work/err"
}

disks() {
    local function pid name="rank 0 stops while it writes"
    for function in fsync mkostemps fflush; do
        slow "$function" 2 --timeout 1 || fail "$function takes 2 s under --timeout 1: ended with status $?"
        grep -q 'note: rank 0 .* for longer than --timeout 1 so far; the other ranks wait for it' "$work/err" ||
            fail "$function takes 2 s under --timeout 1: no line says what rank 0 does"
        ! grep UCX "$work/err" || fail "$function takes 2 s: a message was left over at the end"
    done

    # A rank that is stopped while it writes says no more that it writes.
    slow fsync 1000 --timeout "$timeout" &
    launcher=$!
    for _ in $(seq 200); do
        grep -q "note: rank 0 writes $work/saved, for longer" "$work/err" && break
        sleep 0.1
    done
    [ "$(processes "$train" "$mark" | wc -l)" -eq 4 ] || fail "$name: ranks are gone before"
    hurt STOP 0 tail
    training_ended "$soon"
    grep -Eq "rank 1, step [0-9]+: has been waiting for .*\\(--timeout $timeout\\)" "$work/err" ||
        fail "$name: rank 1 does not say what it waits for"
}

case ${PART:-all} in
    all) waits; mistakes; ends; groups; signals; disks ;;
    waits | mistakes | ends | groups | signals | disks) $PART ;;
    *) echo "test_faults.sh: PART is $PART, expected waits, mistakes, ends, groups, signals or disks" >&2 && exit 2 ;;
esac
finish
