#!/usr/bin/env bash
# A loss or a gradient that is infinite or NaN on one rank: the run stops in that step, and names the rank and, for a
# gradient, the parameter; or, with --on-nan skip, skips the step on all ranks and goes on.
#
# usage: test_not_finite.sh PROGRAM MPIEXEC [FLAGS OF MPIEXEC...]     PROGRAM: built from not_finite.c
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../stages/processes.sh"
program=$1
shift
launcher=("$@")
limit=60 runs=0
fault='^train: fault: rank'
stage=$("$program" --help | sed -n '1s/.*stage \([1-9]\) .*/\1/p')
buckets=() # given, so that no batch is read to choose them: the program counts batches
[ "$stage" -lt 2 ] || buckets=(--bucket-cap-mb 25)

about() { echo "$ranks ranks, $PLANT on rank $PLANT_RANK: "; }

# run RANKS FLAGS...: the program's exit status is in $status.
run() {
    ranks=$1 status=0
    shift
    runs=$((runs + 1))
    timeout -k 5 "$limit" "${launcher[@]}" -n "$ranks" "$program" --model mlp-toy --batch-size 24 --steps 6 \
        --eval-samples 8 --check-every 1 --timeout 20 --json "$scratch/json" "${buckets[@]}" "$@" \
        >"$scratch/out" 2>"$scratch/err" </dev/null || status=$?
}

# stops RANKS LINES PATTERN FLAGS...: the run ends with a fault, in LINES lines (any: in as many as there are), all of
# which are like PATTERN.
stops() {
    local lines=$2 pattern=$3 left
    run "$1" "${@:4}"
    [ "$lines" != any ] || lines=$(grep -c "$fault" "$scratch/err")
    if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
        fail "still running after $limit s: a rank waits for one that has ended"
    elif [ "$status" -ne 1 ]; then
        fail "expected status 1, got $status: the value that is not finite was not noticed, or caused another error"
    elif [ "$lines" -eq 0 ] || [ "$(grep -c "$fault" "$scratch/err")" -ne "$lines" ] ||
        [ "$(grep -c -e "$fault $pattern" "$scratch/err")" -ne "$lines" ]; then
        fail "expected $lines line(s), each like '$fault $pattern': only a rank that is the cause must report it"
    fi
    left=$(left_running "$program")
    [ -z "$left" ] || fail "left running: $left"
}

# skips RANKS FLAGS...: the run ends well, and exactly one step was skipped, on all ranks.
skips() {
    run "$@" --on-nan skip
    if [ "$status" -ne 0 ]; then
        fail "--on-nan skip: expected status 0, got $status"
    elif [ -s "$scratch/err" ]; then
        fail "--on-nan skip: there was output on stderr"
    elif ! jq -e '.steps_skipped == 1 and .final_loss != null' "$scratch/json" >/dev/null; then
        fail "--on-nan skip: expected one skipped step, and a loss at the end; got" \
            "$(jq -c '[.steps_skipped, .final_loss]' "$scratch/json")"
    fi
}

export PLANT PLANT_RANK
for PLANT_RANK in 0 2; do
    PLANT=loss
    stops 3 1 "$PLANT_RANK, step 3: this rank's own loss is -*nan (micro-batch 0), before its gradients are sent"
    PLANT=gradient
    stops 3 1 "$PLANT_RANK, step 3: the gradient of fc1.weight is not finite, and was so on this rank.*1 of 3 ranks"
done
PLANT_RANK=1 # the same batch, as the second micro-batch of step 1
PLANT=loss
[ "$stage" -lt 4 ] || stops 3 1 "1, step 1: this rank's own loss is -*nan (micro-batch 1)" --accumulate 2
PLANT=gradient
[ "$stage" -lt 4 ] ||
    stops 3 1 "1, step 1: the gradient of fc1.weight is not finite, and was so on this rank.*1 of 3 ranks" --accumulate 2
for PLANT in loss gradient; do
    skips 3
    case $stage in # int8 rounds gradients together with the gaps behind them: these must not keep the NaN
        4) skips 3 --grad-dtype int8; skips 3 --grad-dtype powersgd --powersgd-rank 1 ;;
        5) skips 3 --grad-dtype int8 --zero 1 ;;
    esac
done
[ "$stage" -ne 4 ] || stops 3 1 "1, step 3: the gradient of fc1.weight is not finite, and was so on this rank.*1 of 3 ranks" \
    --grad-dtype powersgd
PLANT=sum PLANT_RANK=all
stops 2 1 "0, step 3: the gradient of fc1.weight is not finite after the all-reduce, though each rank's own is"
PLANT=nothing PLANT_RANK=none # a learning rate with which training diverges: all ranks say so, if they get to it
stops 2 any "[01], step [0-9]*: this rank's own loss is .*before its gradients are sent.*--lr" --lr 1000 --steps 60
# Most steps are skipped, or the last one has made weights of which no loss is finite: status 1, and a line says why.
stops 2 1 "0: [0-9]* of 60 steps were skipped, .*--on-nan stop ends the run" --lr 1000 --steps 60 --on-nan skip
stops 2 1 "0: the loss on held-out data is -*\(inf\|nan\): training has diverged in its last steps" --lr 1000 --steps 2
case $program in
    *stage4*) # fp16 skips steps, and the scale keeps falling: it must not reach 0, where no step is ever taken
        stops 2 any "[01], step [0-9]*: the gradient of .* still overflows at a loss scale of .*--lr" --lr 1000 \
            --steps 100 --precision fp16 --loss-scale 1
        stops 2 1 "0: 3 of 3 steps were skipped, .*: a lower --loss-scale or more steps may help" --steps 3 \
            --precision fp16 --loss-scale 16777216
        ;;
esac

finish
