#!/usr/bin/env bash
# How many steps does a larger batch save? Trains mlp by SGD until it has the target on unseen data, for each batch and
# learning rate, and writes a line for each run: CSV, to notes/large_batches.csv, from which the figure is drawn.
#
#   tools/bench/batches.sh [--batches 128,512,2048,8192] [--times 0.5,1,...] [--warm-ups 0,2] [--seeds 42,43,44]
#                    [--target 0.88] [--epochs 40] [--ranks 2] [--csv FILE]
#
# The learning rate is 0.02 times each of --times, and constant after a warm-up of so many epochs. A run is evaluated
# five times an epoch. It ends when it has the target, after --epochs (then its steps are empty), or when it diverges.
# Runs that the file has already are not made again, so an interrupted script can go on. Needs jq.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source scripts/mpi.sh

batches=128,512,2048,8192 times=0.5,1,2,4,8,16,32,64 warm_ups=0,2 seeds=42,43,44
target=0.88 epochs=40 ranks=2 csv=notes/large_batches.csv
while [ $# -gt 0 ]; do
    case $1 in
        --batches | --times | --seeds | --target | --epochs | --ranks | --csv) declare "${1#--}=${2:?}" ;;
        --warm-ups) warm_ups=${2:?} ;;
        *) sed -n '2,11s/^# \{0,1\}//p' "$0" && exit 2 ;;
    esac
    shift 2
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -s "$csv" ] || echo 'batch,times,warm_up_epochs,seed,steps,epochs,accuracy,end' >"$csv"

# train EPOCHS FLAG...: until so many epochs are over, from where the run before has stopped.
train() {
    local flags=(--model mlp --lr-schedule constant --epochs "$1" --save "$work/state" --json "$work/json" "${@:2}")
    [ ! -e "$work/state" ] || flags+=(--resume "$work/state")
    run_ranks "$ranks" build/stage2_bucketed/train "${flags[@]}" >"$work/log" 2>&1
}

# until_target BATCH TIMES WARM_UP SEED: prints "steps,epochs,accuracy,end". Trains five epochs at a time.
until_target() {
    local steps=$((60000 / $1)) until hit
    rm -f "$work/state"
    for ((until = 5 + $3; until <= epochs; until += 5)); do
        if ! train "$until" --batch-size "$1" --lr "$(jq -n "0.02 * $2")" --warmup-steps $(($3 * steps)) --seed "$4" \
            --eval-every $((steps / 5)); then
            grep -q 'loss is -*[ni]\|not finite' "$work/log" || { cat "$work/log" >&2 && exit 1; }
            echo ",,,diverged" && return
        fi
        hit=$(jq -r "first(.evaluations[] | select(.eval_accuracy >= $target)) |
            \"\(.step),\(.step * $1 / 600 | round / 100),\(.eval_accuracy),target\"" "$work/json")
        [ -z "$hit" ] || { echo "$hit" && return; }
    done
    echo ",,$(jq -r .eval_accuracy "$work/json"),epochs"
}

for seed in ${seeds//,/ }; do
    for warm_up in ${warm_ups//,/ }; do
        for batch in ${batches//,/ }; do
            for time in ${times//,/ }; do
                grep -q "^$batch,$time,$warm_up,$seed," "$csv" ||
                    { result=$(until_target "$batch" "$time" "$warm_up" "$seed") &&
                        echo "$batch,$time,$warm_up,$seed,$result" >>"$csv"; }
            done
        done
    done
done
