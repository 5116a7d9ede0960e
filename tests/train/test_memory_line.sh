#!/usr/bin/env bash
# The summary's memory: its parts explain the peak to within 15 %, also with more buffers beside the gradients, of a
# codec; and with less, in stage 5.
#
# usage: test_memory_line.sh BUILD MPIEXEC [FLAGS OF MPIEXEC...]     BUILD: holds stage1_naive/train and so on
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
build=$1
shift
launcher=("$@")

about() { echo "$stage $arguments: "; }

# explained STAGE "ARGUMENTS" JQ-CONDITION: of 3 steps on 2 ranks; the condition is on the gradients' part / the weights'
explained()
{
    stage=$1 arguments=$2
    rm -f "$scratch/json"
    runs=$((runs + 1))
    # the arguments are a list of words on purpose
    # shellcheck disable=SC2086
    "${launcher[@]}" -n 2 "$build/$stage/train" --model gpt --steps 3 --eval-samples 2 $arguments \
        --json "$scratch/json" >"$scratch/out" 2>"$scratch/err" </dev/null || {
        fail "it ended with $?: $(tail -1 "$scratch/err")"
        return
    }
    jq -e '(.memory | add) / .peak_rss_mb | . >= 0.85 and . <= 1.05' "$scratch/json" >/dev/null ||
        fail "the parts are $(jq '100 * (.memory | add) / .peak_rss_mb | round' "$scratch/json") % of the peak, not 85" \
            "to 105 %: is there memory that add_memory() in train/loop/report.c does not count?"
    jq -e ".memory.gradients_mb / .memory.weights_mb | $3" "$scratch/json" >/dev/null ||
        fail "gradients / weights is $(jq '.memory.gradients_mb / .memory.weights_mb' "$scratch/json"), not $3"
}

plain='. > 0.99 and . < 1.01'
explained stage3_overlap "" "$plain"
explained stage4_accumulation "--accumulate 4" "$plain"
explained stage4_accumulation "--grad-dtype bf16" '. > 1.49 and . < 1.51'
# A gradient, a part of it that waits for the next step, and a buffer that would hold it whole.
explained stage4_accumulation "--grad-dtype powersgd" '. > 2.95 and . < 3.05'
# Whole weights, half of the gradients; a bucket's 16-bit copy is there only while it is sent.
explained stage5_sharded "--zero 2 --grad-dtype bf16" '. > 0.49 and . < 0.52'
finish
