#!/usr/bin/env bash
# test_periodic.sh: what a run does beside training, and that it does not change the training: --eval-every gives, to
# the bit, what runs give that end there, or go on from their checkpoints; --save-best, --log, and saves that fail.
#
# usage: test_periodic.sh TRAIN MPIEXEC      TRAIN: stage 4's, for the loss scale
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
train=$(realpath "$1") mpiexec=$2
cd "$scratch" || exit 1

# run STATUS FLAGS...: on so many ranks
ranks=2
run() {
    local expected=$1 status
    shift
    # shellcheck disable=SC2086 # MPIEXEC_FLAGS is a list
    "$mpiexec" ${MPIEXEC_FLAGS:-} -n $ranks "$train" "$@" >out 2>err </dev/null
    status=$?
    [ $status -eq "$expected" ] || fail "expected status $expected, got $status: $*"
}

# The loss rises in the end, because the learning rate is too high.
toy=(--model mlp-toy --eval-samples 301 --batch-size 33 --lr-schedule constant --lr 0.5)

# ---- the curve, the best state, the log ----

run 0 "${toy[@]}" --steps 12 --eval-every 3 --save-best best --log log --json whole.json
run 0 "${toy[@]}" --steps 12 --json plain.json
for key in weights_hash final_loss eval_loss collectives_per_step bytes_per_step; do
    [ "$(jq ".$key" whole.json)" = "$(jq ".$key" plain.json)" ] ||
        fail "a periodic evaluation changes the training: $key is $(jq -c ".$key" whole.json), and" \
            "$(jq -c ".$key" plain.json) without --eval-every"
done
jq -c '.evaluations[] | [.step, .eval_loss]' whole.json >curve
for steps in 3 6 9 12; do
    run 0 "${toy[@]}" --steps $steps --save at_$steps --json json
    jq -c "[$steps, .eval_loss]" json
done >expected
cmp -s expected curve || fail "the curve is not that of runs that end there: $(diff expected curve | tr '\n' ' ')"
run 0 "${toy[@]}" --steps 8 --save at_8
run 0 "${toy[@]}" --steps 9 --resume at_8 --json json
jq -c "[9, .eval_loss]" json | grep -qxF -f - curve || fail "a checkpoint's evaluation is not in the curve"

step_of() { # of a checkpoint
    grep -a -o '"step":"[0-9]*"' "$1" | grep -o '[0-9]*'
}
lowest=$(jq -s "min_by(.[1])[0] // 0" curve)
[ "$lowest" -gt 3 ] && [ "$lowest" -lt 12 ] || fail "the lowest loss is not in the middle of the curve: $(tr '\n' ' ' <curve)"
[ "$(step_of best)" = "$lowest" ] || fail "--save-best has step $(step_of best), but the lowest loss is that of step $lowest"
"$train" "${toy[@]}" --steps $((lowest + 1)) --resume best >out 2>err || fail "the best state cannot be resumed"

[ "$(head -n 1 log)" = step,loss,learning_rate,gradient_norm,loss_scale,step_ms,exposed_comm_ms,samples_per_s ] ||
    fail "--log: another header: $(head -n 1 log)"
[ "$(tail -n +2 log | cut -d , -f 1 | tr '\n' ' ')" = "$(seq -s ' ' 12) " ] || fail "--log: not one row per step: $(cat log)"
tail -n 1 log | awk -F , -v loss="$(jq .final_loss whole.json)" '
    { d = $2 - loss; exit !(NF == 8 && d * d < 1e-14 && $3 == 0.5 && $4 > 0 && $5 == 1 && $6 > 0 && $8 > 0) }' ||
    fail "--log: the last row is wrong: $(tail -n 1 log), loss $(jq .final_loss whole.json)"
run 0 "${toy[@]}" --steps 12 --log thin --log-every 5
[ "$(cut -d , -f 1 thin | tr '\n' ' ')" = "step 5 10 " ] || fail "--log-every 5: $(cat thin)"
run 1 "${toy[@]}" --steps 1 --precision fp16 --loss-scale 16777216 --log scaled # with this one the step overflows
[ "$(tail -n 1 scaled | cut -d , -f 5)" = 16777216 ] || fail "--log: the loss scale is not 2^24: $(tail -n 1 scaled)"
run 0 --model mlp --steps 2 --eval-every 2 --eval-samples 301 --json json # the toy model has no accuracy
[ "$(jq '.eval_accuracy != null and .evaluations[0].eval_accuracy == .eval_accuracy' json)" = true ] ||
    fail "the curve has another accuracy than the summary: $(jq -c '[.evaluations, .eval_accuracy]' json)"

# ---- a run that goes on ----

# Rows after the checkpoint are replaced. The earlier best state stays, because all later ones are worse.
run 0 "${toy[@]}" --steps $lowest --eval-every 3 --save half --save-best best
cut -d , -f 1-5 log >expected
head -c -10 log >cut && mv cut log # as a run leaves it that was killed
cp best before
run 0 "${toy[@]}" --steps 12 --resume half --log log --eval-every 3 --save-best best
cut -d , -f 1-5 log | cmp -s - expected || fail "--log of a resumed run: $(cut -d , -f 1-5 log | diff expected - | tr '\n' ' ')"
cmp -s best before || fail "a resumed run has replaced the best state by a worse one"
# Over one held-out sample the loss may be lower than over all of them, and says nothing about them.
run 0 "${toy[@]}" --steps 12 --resume half --eval-every 3 --save-best best --eval-samples 7
grep -q 'note: half: its best loss, .* was measured on other held-out samples' err || fail "no note says that two losses cannot be compared"
! cmp -s best before || fail "the best loss over all samples was compared with one over 7"
# If the best state is not there, the next one is the best.
run 0 "${toy[@]}" --steps 12 --resume half --eval-every 3 --save-best another
[ -e another ] || fail "a resumed run that finds no best state has written none"
seq 9 >list
run 2 "${toy[@]}" --steps 12 --resume half --log list
grep -q 'error: --log: list exists, but does not begin like the log' err || fail "another file is taken for a log"
[ "$(wc -l <list)" -eq 9 ] || fail "another file was changed"
[ "$(find . -name 'list.*')" = '' ] || fail "a refused run leaves $(find . -name 'list.*')"
cp log unreadable
chmod 200 unreadable
bounded=()
[ "$(id -u)" -ne 0 ] || bounded=(setpriv --bounding-set=-dac_override,-dac_read_search) # else root reads all files
"${bounded[@]}" "$train" "${toy[@]}" --steps 12 --resume half --log unreadable >out 2>err
[ $? -eq 2 ] || fail "a log that cannot be read: expected status 2"
chmod 600 unreadable
cmp -s log unreadable || fail "a log that cannot be read has lost its rows"

# ---- what cannot be written ----

# A run that must not end before something has happened has no last step that it could reach: it goes on until it is told
# to stop, and then saves and ends with status 75.
toy=(--model mlp-toy --eval-samples 10)
wait_for() { # COMMAND...
    local i
    for ((i = 0; i < 600; i++)); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.05
    done
    fail "not after 30 s: $*"
}
# start LAUNCHER...: such a run with $flags. stop: tells one rank to end it, and kills it if it does not.
start() {
    rm -f err pid.*
    # shellcheck disable=SC2016 # sh expands $$
    timeout -k 5 120 "$@" sh -c 'touch pid.$$; exec "$@"' sh "$train" "${toy[@]}" --steps 100000000 "${flags[@]}" >out 2>err </dev/null &
}
stop() {
    local status pids=(pid.*)
    kill -USR1 "${pids[0]#pid.}"
    wait $!
    status=$?
    [ $status -eq 75 ] || fail "expected status 75, got $status: ${flags[*]}"
}

# The directory is gone for a while: training goes on, and later saves succeed.
mkdir place
flags=(--save place/ck --save-every 20)
# shellcheck disable=SC2086 # MPIEXEC_FLAGS is a list
start "$mpiexec" ${MPIEXEC_FLAGS:-} -n 2
wait_for test -e place/ck
mv place away
wait_for grep -q 'training goes on' err
touch away/since
mv away place
wait_for test place/ck -nt place/since
stop
[ "$(grep -c 'training goes on' err)" -eq 1 ] || fail "a save that fails: expected one note, got: $(cat err)"
[ "$(step_of place/ck)" = "$(sed -n 's/.* after step \([0-9]*\) of 100000000.*/\1/p' err)" ] ||
    fail "the last save is that of step $(step_of place/ck), but: $(cat err)"

# It stays away.
flags=(--eval-samples 0 --lr 1e-4 --eval-every 20 --save-best place/best) # it improves all the time
start env
wait_for test -e place/best
mv place away
wait_for grep -q 'training goes on' err
stop
grep -q 'fault: .*--save-best: the best state of this run could not be written to place/best' err ||
    fail "no line says that the best state is missing"

# Steps that are skipped: their norms are nan, and not -nan.
ranks=1
run 1 "${toy[@]}" --steps 20 --lr 1000 --on-nan skip --log skipped
[ "$(tail -n 1 skipped | cut -d , -f 4)" = nan ] || fail "--log: a skipped step's norm is not nan: $(tail -n 1 skipped)"

# The disk is full: no file of the process may grow by more than this. (The last row that is begun has no room.)
flags=(--log full --log-every 4)
start env
wait_for test -s full
size=$(($(stat -c %s full) + 50021))
pids=(pid.*)
prlimit --pid "${pids[0]#pid.}" --fsize=$size:$size
wait_for grep -q 'note: full: write failed: .*; the row of step [0-9]* is left out, and training goes on' err
stop
grep -q 'fault: .*full: lacks [0-9]* row' err || fail "no line says that rows are missing"
awk -F , 'NF != 8 { exit 1 }' full && [ "$(tail -c 1 full)" = "" ] || fail "--log: a row that is not whole: $(tail -n 1 full)"

# The log is gone, and the run ends by itself, with status 1. (If it has ended first, a longer one must see it.)
for steps in 40000 1000000; do
    "$train" "${toy[@]}" --steps $steps --log gone >/dev/null 2>err &
    wait_for test -s gone
    rm gone
    wait $!
    status=$?
    [ $status -eq 0 ] || break
done
[ $status -eq 1 ] || fail "a log that is gone: expected status 1, got $status"
grep -q "fault: .*gone: this run's rows are missing" err || fail "no line says that the log is gone"
finish
