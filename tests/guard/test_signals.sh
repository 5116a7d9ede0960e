#!/usr/bin/env bash
# test_signals.sh TRAIN [MPIEXEC]: training that is killed, stopped or suspended at a random moment, and disks that are
# slow: it ends, or goes on, as it should, a line names the rank, and no process is left. TRAIN is a stage's train.
# KILLS: how often a rank is killed (default 3).
# PART: signals or disks: only these; both if it is not set.
# SLOW_DISK: the library of slow_disk.c.

# A sanitizer must not insist on being loaded before the library.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh" && . "$(dirname "$0")/../stages/processes.sh"
train=$1 mpiexec=${2:-mpiexec}
mark=$$ # an argument of every program started here: other copies may be running
ranks=3
timeout=3             # --timeout
soon=$((timeout + 5)) # seconds from the fault to the end
limit=60              # seconds after which a run is ended

# none_left NAME: no process of the last run is left.
none_left() {
    local left
    left=$(left_running "$train" "$mark")
    [ -z "$left" ] && return
    fail "$1: processes are left: $left"
    # shellcheck disable=SC2086 # a list of numbers
    kill -9 $left
}

# start_training WORDS...: starts a long run, and returns when all its processes exist. Sets launcher.
start_training() {
    # shellcheck disable=SC2086
    timeout -k 2 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n "$ranks" "$train" --model mlp-toy --steps 100000000 \
        --seed "$mark" "$@" >"$scratch/out" 2>"$scratch/err" &
    launcher=$!
    for _ in $(seq 100); do
        [ "$(processes "$train" "$mark" | wc -l)" -ge $((2 * ranks)) ] && break
        sleep 0.1
    done
}

await_first_step() { # under Open MPI, rank 0 prints to a terminal, and begins the line with a control character
    for _ in $(seq 300); do
        grep -q '^[[:cntrl:]]*step 1/' "$scratch/out" && break
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
    local status
    wait "$launcher"
    status=$?
    [ "$status" -ne 0 ] || fail "$name: the run ended with status 0"
    [ $((SECONDS - start)) -le "$1" ] || fail "$name: it took $((SECONDS - start)) s to end, but $1 s are allowed"
    none_left "$name"
}

# signal_parent SIGNAL NUMBER: the parent forwards the signal to its rank, which ends of it.
signal_parent() {
    local name="kill -$1 of rank 1's parent" pid start
    start_training
    hurt "$1" 1 head
    training_ended 10
    grep -Eq "rank 1 .*signal $2\\b" "$scratch/err" || fail "$name: no line says that rank 1 was ended by signal $2"
}

# kill_rank N PROCESS
kill_rank() {
    local name="kill -9 of rank $1 ($2)" pid start
    start_training
    hurt 9 "$1" "$2"
    training_ended 10
    grep -Eq "rank $1 .*(signal 9|its parent, process $pid, was killed)" "$scratch/err" || fail "$name: no line names it"
}

# The launcher's process on this host is killed, and then the launcher: the ranks must end by themselves. (No process is
# left to read their messages.)
kill_launcher() {
    local proxy
    start_training
    await_first_step
    launcher=$(children "$launcher") # not timeout's: it would end its child
    proxy=$(children "$launcher")
    # shellcheck disable=SC2086 # a number
    kill -9 $proxy "$launcher"
    none_left "kill -9 of the launcher"
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
            [ -n "${MPIEXEC_FLAGS:-}" ] || ! grep -q "rank $rank, step" "$scratch/err" ||
                fail "$name: it prints a line, although it is stopped"
        else
            grep -Eq "rank $rank, step [0-9]+: has been waiting for .*\\(--timeout $timeout\\)" "$scratch/err" ||
                fail "$name: rank $rank does not say what it waits for"
        fi
    done
}

# suspend_all TIMES WORDS: all ranks are suspended for longer than the time-out, as by Slurm. This does not count.
suspend_all() {
    local name="kill -STOP of all ranks, then kill -CONT$2" i
    start_training --timeout 2
    await_first_step
    # shellcheck disable=SC2046 # lists of numbers
    for ((i = 0; i < $1; i++)); do
        kill -STOP $(processes "$train" "$mark")
        sleep 3
        kill -CONT $(processes "$train" "$mark")
        sleep 1
    done
    [ "$(processes "$train" "$mark" | wc -l)" -eq $((2 * ranks)) ] || fail "$name: ranks are gone"
    grep 'has been waiting' "$scratch/err" && fail "$name: the time in which all were suspended counts as waiting"
    kill "$launcher"
    wait "$launcher"
    none_left "$name"
}

# process_1 SIGNAL STATUS: without a launcher, as process 1 of a container. The system keeps signals from it that it does
# not handle.
process_1() {
    local name="kill -$1 of process 1" pid i
    # shellcheck disable=SC2086 # a list, here and below
    unshare $namespace --pid --fork --mount-proc --kill-child "$train" --model mlp-toy --steps 100000000 \
        --seed "$mark" >"$scratch/out" 2>"$scratch/err" &
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

# ---- training that is killed, stopped, suspended ----

signals() {
    for i in $(seq "${KILLS:-3}"); do
        kill_rank $(((i - 1) % ranks)) tail
    done
    kill_rank 1 head
    signal_parent INT 2
    [ -n "${MPIEXEC_FLAGS:-}" ] || kill_launcher
    stop_rank 1
    suspend_all 1 ""
    # The watchdog spends most of its time in this function, so one of four times at least it is there when suspended.
    SLOW=MPI_Iprobe SLOW_SECONDS=0.05 LD_PRELOAD=$SLOW_DISK suspend_all 4 ", of a slow watchdog"
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

# ---- rank 0's local work: the others wait for it longer than the time-out, and this is no hang ----

# slow FUNCTION SECONDS WORDS...: training in which this function takes so long. Every output is asked for.
slow() {
    local function=$1 seconds=$2
    shift 2
    # shellcheck disable=SC2086
    timeout -k 2 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n 2 env LD_PRELOAD="$SLOW_DISK" SLOW="$function" \
        SLOW_SECONDS="$seconds" "$train" --model gpt --layers 1 --heads 1 --width 8 --context 8 --batch-size 2 \
        --eval-samples 2 --steps 2 --save "$scratch/saved" --save-every 1 --json "$scratch/json" --trace "$scratch/trace" \
        --generate 1 --seed "$mark" "$@" >"$scratch/out" 2>"$scratch/err"
}

disks() {
    local function pid name="rank 0 stops while it writes"
    for function in fsync mkostemps fflush; do
        slow "$function" 2 --timeout 1 || fail "$function takes 2 s under --timeout 1: ended with status $?"
        grep -q 'note: rank 0 .* for longer than --timeout 1 so far; the other ranks wait for it' "$scratch/err" ||
            fail "$function takes 2 s under --timeout 1: no line says what rank 0 does"
        ! grep UCX "$scratch/err" || fail "$function takes 2 s: a message was left over at the end"
    done

    # A rank that is stopped while it writes says no more that it writes.
    slow fsync 1000 --timeout "$timeout" &
    launcher=$!
    for _ in $(seq 200); do
        grep -q "note: rank 0 writes $scratch/saved, for longer" "$scratch/err" && break
        sleep 0.1
    done
    [ "$(processes "$train" "$mark" | wc -l)" -eq 4 ] || fail "$name: ranks are gone before"
    hurt STOP 0 tail
    training_ended "$soon"
    grep -Eq "rank 1, step [0-9]+: has been waiting for .*\\(--timeout $timeout\\)" "$scratch/err" ||
        fail "$name: rank 1 does not say what it waits for"
}

case ${PART:-all} in
    all) signals; disks ;;
    signals | disks) $PART ;;
    *) echo "test_signals.sh: PART is $PART, expected signals or disks" >&2 && exit 2 ;;
esac
finish
