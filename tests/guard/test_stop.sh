#!/usr/bin/env bash
# test_stop.sh BUILD MPIEXEC [COUNT]: SIGTERM and SIGUSR1 stop a run: all ranks end, with status 75 and a whole checkpoint,
# from which another run goes on to the weights of a run that nobody has stopped. With COUNT: that many times, each with
# another signal, receiver and moment, which are drawn at random (SEED: seeds them), instead of the cases below.
# SLOW_DISK: the library of slow_disk.c. It needs MPICH's launcher.
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh" && . "$(dirname "$0")/../stages/processes.sh"
build=$(realpath "$1") mpiexec=$2 count=${3:-0}
mark=$$ # an argument of every program started here
RANDOM=${SEED:-1}
cd "$scratch" || exit 1
train='' name='' ranks=1

flags=(--model mlp-toy --eval-samples 10 --allreduce ordered --seed "$mark")

# start RANKS STAGE FLAGS...: starts a long run, and returns after its first step. Sets launcher, train.
start() {
    local count=$1 i
    train=$(echo "$build"/stage"$2"_*/train)
    shift 2
    rm -f out err
    "$mpiexec" -n "$count" "$train" "${flags[@]}" --steps 100000000 "$@" >out 2>err &
    launcher=$!
    for ((i = 0; i < 600; i++)); do
        ! grep -q '^step 1/' out 2>/dev/null || return
        sleep 0.05
    done
    fail "$name: no first step"
}

# processes_of WHOM: mpiexec; or of the ranks: the first, the last; their parents; all: ranks and parents
processes_of() {
    local parents ranks
    # shellcheck disable=SC2046 # lists of numbers, here and below
    parents=$(children $(children "$launcher"))
    # shellcheck disable=SC2086
    ranks=$(children $parents)
    case $1 in
        mpiexec) echo "$launcher" ;;
        first) head -n 1 <<<"$ranks" ;;
        last) tail -n 1 <<<"$ranks" ;;
        parents) echo "$parents" ;;
        all) echo "$parents" "$ranks" ;;
    esac
}

# send SIGNAL WHOM
send() {
    # shellcheck disable=SC2046
    kill "-$1" $(processes_of "$2") || fail "$name: no process to signal"
}

# ended WHOM: the run has ended with status 75, and nothing is left of it. (MPICH 4.0 may lose a rank's status after its
# mpiexec has forwarded a signal, and then ends with 0.)
ended() {
    local status left
    wait "$launcher"
    status=$?
    [ "$status" -eq 75 ] || { [ "$1" = mpiexec ] && [ "$status" -eq 0 ]; } || fail "$name: expected status 75, got $status"
    left=$(left_running "$train" "$mark")
    [ -z "$left" ] || fail "$name: processes are left: $left"
    [ -z "$(find . -name 'ck.*')" ] || fail "$name: files are left: $(find . -name 'ck.*')"
}

# train_to STEPS FLAGS...: the same training, on as many ranks
train_to() {
    "$mpiexec" -n "$ranks" "$train" "${flags[@]}" --steps "$@" >out 2>err || fail "$name: train --steps $* fails"
}

# goes_on NUMBER: the run says at which step signal NUMBER has stopped it. From its checkpoint, 5 steps later, the weights
# are those of a run that nobody has stopped.
goes_on() {
    local step
    step=$(sed -n "s/.*note: stopped by signal $1 (.*) after step \([0-9]*\) of 100000000: continue with --resume ck$/\1/p" err)
    if [ -z "$step" ]; then
        fail "$name: no line says after which step"
        return
    fi
    train_to $((step + 5)) --resume ck --json resumed
    train_to $((step + 5)) --json whole
    [ "$(jq .weights_hash resumed)" = "$(jq .weights_hash whole)" ] || fail "$name: other weights than without the stop"
}

# stopped RANKS STAGE SIGNAL NUMBER WHOM SECONDS
stopped() {
    name="$3 to $5 of $1 ranks of stage $2 after $6 s"
    ranks=$1
    rm -f ck
    start "$1" "$2" --save ck
    sleep "$6"
    send "$3" "$5"
    ended "$5"
    goes_on "$4"
}

if [ "$count" -gt 0 ]; then
    whoms=(first last mpiexec parents all)
    for i in $(seq "$count"); do
        stage=$((1 + RANDOM % 5)) moment="0.$((RANDOM % 10))$((RANDOM % 10))"
        if [ $((RANDOM % 2)) -eq 0 ]; then signal=(TERM 15); else signal=(USR1 10); fi
        stopped $((1 + i % 3)) $stage "${signal[@]}" "${whoms[RANDOM % 5]}" "$moment"
    done
    echo "$count runs were stopped"
    finish
    exit
fi

# One rank alone; all ranks through the launcher; all ranks and their parents, so that each rank gets it twice.
stopped 3 3 TERM 15 last 0.2
stopped 2 1 USR1 10 mpiexec 0.1
stopped 2 5 TERM 15 all 0.1

name="no --save"
start 2 1
send USR1 first
ended first
grep -q 'note: stopped by signal 10 .*: nothing is saved, because there is no --save' err || fail "$name: no line says so"

# The same signal by two ways, one after the other, while it saves.
name="SIGTERM twice at once"
rm -f ck
SLOW=fsync SLOW_SECONDS=2 LD_PRELOAD=$SLOW_DISK start 2 1 --save ck
send TERM first
sleep 0.4
send TERM first
ended first
[ -s ck ] || fail "$name: no checkpoint"

# A second SIGTERM ends the run although it saves.
name="a second SIGTERM"
rm -f ck
SLOW=fsync SLOW_SECONDS=20 LD_PRELOAD=$SLOW_DISK start 2 1 --save ck
send TERM first
sleep 2
begin=$SECONDS
send TERM first
wait "$launcher"
[ $? -ne 75 ] || fail "$name: status 75, as if the checkpoint were written"
[ $((SECONDS - begin)) -le 5 ] || fail "$name: the run took $((SECONDS - begin)) s to end"
[ ! -e ck ] || fail "$name: there is a checkpoint that cannot be whole"

# In the last step nothing is left to stop: here while --save-best is written in it.
name="a signal in the last step"
rm -f ck
SLOW=fsync SLOW_SECONDS=2 LD_PRELOAD=$SLOW_DISK "$mpiexec" -n 2 "$train" "${flags[@]}" --steps 3 --eval-every 3 \
    --save-best best --save ck --json summary >out 2>err &
launcher=$!
for ((i = 0; i < 600; i++)); do
    [ -z "$(find . -name 'best.*')" ] || break
    sleep 0.05
done
send USR1 all
wait "$launcher"
status=$?
[ $status -eq 0 ] && [ -s summary ] || fail "$name: status $status, expected 0 and a summary: the training was complete"
finish
