#!/usr/bin/env bash
# How long a run stands still when a rank is killed: scripts/elastic.sh beside torchrun, both with 4 ranks, the same small
# GPT, and a checkpoint in every step. Seconds from kill -9 to the first checkpoint of a later step. In turns.
#
#   bench/restart_vs_torchrun.sh [--kills N] [--build DIR] [--python PYTHON]        PYTHON has torch beside it (torchrun)
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kills=15 build=build python=${PYTHON:-python3}
while [ $# -gt 0 ]; do
    case $1 in
    --kills) kills=${2:?} ;;
    --build) build=${2:?} ;;
    --python) python=${2:?} ;;
    *) sed -n '2,5s/^# \{0,1\}//p' bench/restart_vs_torchrun.sh && exit 2 ;;
    esac
    shift 2
done
train=$(realpath "$build/stage3_overlap/train")
work=$(mktemp -d)
trap 'end_runs; rm -rf "$work"' EXIT

ours_step() {
    [ -s "$work/ours" ] || { echo 0 && return; }
    local copy=$work/ours.copy # of one moment: the file is replaced in every step
    cat "$work/ours" >"$copy"
    head -c $(($(od -A n -t u8 -N 8 "$copy") + 8)) "$copy" | tail -c +9 | jq -r .__metadata__.step
}
theirs_step() { cat "$work/theirs.step" 2>/dev/null || echo 0; }
ours_ranks() { pgrep -f "^$train --model gpt .*$work/ours"; }
theirs_ranks() { pgrep -f "torch_elastic.py $work/theirs" | while read -r p; do
    grep -q -a torchrun "/proc/$p/cmdline" || echo "$p"; done; }
begin_ours() {
    scripts/elastic.sh --ranks 4:4 "$train" --model gpt --layers 2 --width 64 --context 32 --steps 1000000 --eval-samples 8 \
        --lr-schedule constant --save "$work/ours" --save-every 1 >>"$work/log" 2>&1 &
}
begin_theirs() {
    "$(dirname "$python")/torchrun" --nproc-per-node 4 --max-restarts 1000 bench/torch_elastic.py "$work/theirs" \
        >>"$work/log" 2>&1 &
}
end_runs() {
    pkill -KILL -f "$work/ours" || true
    pkill -KILL -f "torch_elastic.py $work/theirs" || true
    wait 2>/dev/null || true
}

for who in ours theirs; do
    begin_$who
    for _ in $(seq "$kills"); do
        before=$(${who}_step)
        until [ "$(${who}_step)" -gt $((before + 5)) ]; do sleep 0.1; done
        victim=$(${who}_ranks | shuf -n 1)
        start=$EPOCHREALTIME
        kill -KILL "$victim"
        sleep 0.1 # a step that was under way may still be saved
        before=$(${who}_step)
        until [ "$(${who}_step)" -gt "$before" ]; do sleep 0.005; done
        jq -n "$EPOCHREALTIME - $start" >>"$work/$who.seconds"
    done
    end_runs
    sort -n "$work/$who.seconds" | awk -v who=$who '{ t[NR] = $1 }
        END { printf "%-7s %d kills: median %.2f s, worst %.2f s\n", who, NR, t[int((NR + 1) / 2)], t[NR] }'
done
