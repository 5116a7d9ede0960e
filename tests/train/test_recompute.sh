#!/usr/bin/env bash
# test_recompute.sh: with --recompute a run has the same weights, to the bit, and sends as many bytes; it keeps less than
# half of the activations. In the stages that listen to events, with what could get into its way.
#
# usage: test_recompute.sh BUILD MPIEXEC [FLAGS OF MPIEXEC...]
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
build=$1
shift
launcher=("$@")
runs=0

about() { echo "$stage $arguments: "; }

# train [FLAG]: 4 steps on 2 ranks; the summary is $scratch/json
train()
{
    # the arguments are a list of words on purpose
    # shellcheck disable=SC2086
    "${launcher[@]}" -n 2 "$build/$stage/train" --model gpt --layers 6 --heads 2 --width 32 --context 16 --steps 4 \
        --batch-size 26 --eval-samples 4 --allreduce ordered $arguments ${1-} --json "$scratch/json" \
        >"$scratch/out" 2>"$scratch/err" </dev/null || fail "${1-} ended with $?: $(tail -1 "$scratch/err")"
    runs=$((runs + 1))
}

same()
{
    stage=$1 arguments=$2
    local before
    train
    before=$(jq -c '[.weights_hash, .bytes_per_step, .memory.activations_mb]' "$scratch/json")
    train --recompute
    jq -e --argjson before "$before" '.weights_hash == $before[0] and .bytes_per_step == $before[1]' "$scratch/json" \
        >/dev/null || fail "with --recompute other weights or bytes: $before," \
        "$(jq -c '[.weights_hash, .bytes_per_step, .memory.activations_mb]' "$scratch/json")"
    jq -e --argjson before "$before" '.memory.activations_mb < $before[2] / 2' "$scratch/json" >/dev/null ||
        fail "$(jq .memory.activations_mb "$scratch/json") MB of activations, and $before without --recompute"
}

same stage4_accumulation "--dropout 0.2 --accumulate 2 --batch-size 25 --rebuild-buckets"
same stage3_overlap "--skip-layer 2 --find-unused-parameters"
same stage4_accumulation "--precision bf16 --grad-dtype bf16 --clip-grad-norm 0.1"
for zero in 2 3; do
    same stage5_sharded "--zero $zero --dropout 0.2 --accumulate 2"
    same stage5_sharded "--zero $zero --precision fp16 --bucket-cap-mb 0.01"
done
same stage5_sharded "--zero 2 --static-graph --skip-layer 1"
finish
