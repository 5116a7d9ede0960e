#!/usr/bin/env bash
# test_sharded_runs.sh: stage 5 as a user runs it: checkpoints that every stage reads, checks and outputs in the middle of a
# run, memory in the summary, and flags that it refuses.
#
# usage: test_sharded_runs.sh STAGE5 MPIEXEC STAGE4      STAGE5, STAGE4: the programs; STAGE4 may be missing
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
stage5=$1 launcher=$2 stage4=${3:-}

# train RANKS PROGRAM ARGUMENTS...: trains a small GPT, with AdamW and clipping.
train() {
    local ranks=$1 program=$2
    shift 2
    "$launcher" -n "$ranks" "$program" --model gpt --layers 2 --heads 2 --width 32 --context 16 --batch-size 12 \
        --eval-samples 8 --lr-schedule constant --warmup-steps 0 --clip-grad-norm 0.5 --allreduce ordered \
        --json "$scratch/json" "$@" >"$scratch/out" 2>"$scratch/err" </dev/null ||
        fail "status $?: $program $*"
}

hash_of_run() {
    jq -r .weights_hash "$scratch/json"
}


# holds JQ-EXPRESSION WHAT: about the summary
holds() {
    [ "$(jq "$1" "$scratch/json")" = true ] || fail "$2: $(jq -c '{zero, memory}' "$scratch/json")"
}

# refused PATTERN ARGUMENTS...: the program ends with status 2 and says PATTERN.
refused() {
    local pattern=$1 status=0
    shift
    "$launcher" -n 1 "$@" >"$scratch/out" 2>"$scratch/err" </dev/null || status=$?
    { [ "$status" -eq 2 ] && grep -q -e "$pattern" "$scratch/err"; } ||
        fail "expected status 2 and \"$pattern\", got $status: $*"
}

# ---- checkpoints ----

if [ -n "$stage4" ]; then
    curve=(--eval-every 2 --save-best) # level 3 gives up all weights after each evaluation
    train 2 "$stage4" --steps 6 --save "$scratch/whole" "${curve[@]}" "$scratch/best4"
    expected=$(hash_of_run) evaluations=$(jq .evaluations "$scratch/json")
    train 2 "$stage4" --steps 3 --save "$scratch/half"
    for zero in 1 2 3; do
        train 2 "$stage5" --zero $zero --steps 6 --save "$scratch/saved" --save-every 3 --check-every 2 \
            "${curve[@]}" "$scratch/best5"
        [ "$(hash_of_run)" = "$expected" ] || fail "--zero $zero: weights that differ from stage 4's"
        [ "$(jq .evaluations "$scratch/json")" = "$evaluations" ] || fail "--zero $zero: other evaluations than stage 4's"
        cmp -s "$scratch/whole" "$scratch/saved" || fail "--zero $zero: the checkpoint differs from stage 4's"
        cmp -s "$scratch/best4" "$scratch/best5" || fail "--zero $zero: the best state differs from stage 4's"
        train 2 "$stage5" --zero $zero --steps 6 --resume "$scratch/half"
        [ "$(hash_of_run)" = "$expected" ] || fail "--zero $zero: a run that goes on from stage 4's checkpoint differs"
    done
    # Level 3 gathers in 16 bits what only products read; an evaluation and a checkpoint read float32.
    train 2 "$stage4" --steps 6 --precision bf16 --save "$scratch/whole" "${curve[@]}" "$scratch/best4"
    expected=$(hash_of_run)
    train 2 "$stage5" --zero 3 --steps 6 --precision bf16 --save "$scratch/saved" --save-every 3 --check-every 2 \
        "${curve[@]}" "$scratch/best5"
    [ "$(hash_of_run)" = "$expected" ] || fail "--zero 3 --precision bf16: weights that differ from stage 4's"
    cmp -s "$scratch/whole" "$scratch/saved" || fail "--zero 3 --precision bf16: the checkpoint differs from stage 4's"
    cmp -s "$scratch/best4" "$scratch/best5" || fail "--zero 3 --precision bf16: the best state differs from stage 4's"
    train 3 "$stage4" --steps 6 --resume "$scratch/half"
    expected=$(hash_of_run)
    train 3 "$stage5" --zero 3 --steps 6 --resume "$scratch/half"
    [ "$(hash_of_run)" = "$expected" ] || fail "on 3 ranks, from a checkpoint of 2: weights differ from stage 4's"
fi

# ---- shards in groups, copies across ----

numbers() { # CHECKPOINT: what follows its header, which names the flags; 8 bytes before that hold its length
    tail -c +$((9 + $(od -A n -t u8 -N 8 "$1"))) "$1"
}

same() { # WHAT
    [ "$(hash_of_run)" = "$expected" ] || fail "$1: other weights than stage 4's, which adds in the same order"
}

if [ -n "$stage4" ]; then
    by_host=(--allreduce hierarchical --ranks-per-host 2)
    train 4 "$stage4" --steps 6 "${by_host[@]}" --save "$scratch/whole"
    expected=$(hash_of_run)
    train 4 "$stage4" --steps 3 "${by_host[@]}" --save "$scratch/half"
    for zero in 1 2 3; do
        train 4 "$stage5" --zero $zero --steps 6 --shard-ranks 2 --resume "$scratch/half" --check-every 1 \
            --save "$scratch/saved" --save-every 2
        same "--zero $zero --shard-ranks 2"
        cmp -s <(numbers "$scratch/whole") <(numbers "$scratch/saved") ||
            fail "--zero $zero --shard-ranks 2: other numbers in the checkpoint than in stage 4's"
    done
    train 3 "$stage4" --steps 6
    expected=$(hash_of_run)
    train 3 "$stage5" --zero 3 --steps 6 --shard-ranks 1
    same "--shard-ranks 1: every rank has everything"
    train 3 "$stage5" --zero 3 --steps 6 --shard-ranks 3
    same "--shard-ranks 3 of 3 ranks"
fi
train 4 "$stage5" --zero 2 --shard-ranks 2 --steps 4 --rank-samples 20,12,4,0 --join --accumulate 2 --verify exact
grep -q '^verify: passed' "$scratch/out" || fail "--verify exact with --shard-ranks and --join did not pass"
train 4 "$stage5" --zero 1 --shard-ranks 2 --steps 4 --find-unused-parameters --skip-layer 1 --allreduce shm --verify exact
grep -q '^verify: passed' "$scratch/out" || fail "--verify exact with --shard-ranks and unused parameters did not pass"
train 4 "$stage5" --zero 3 --shard-ranks 2 --steps 4 --precision fp16 --recompute --accumulate 2 --verify exact
grep -q '^verify: passed' "$scratch/out" || fail "--verify exact with --shard-ranks and --precision fp16 did not pass"
train 4 "$stage5" --zero 3 --shard-ranks 2 --steps 2 --trace "$scratch/trace" --debug-collectives
of_groups=$(jq -c '.memory | [.weights_mb, .gradients_mb, .gathered_weights_mb]' "$scratch/json")
grep -q 'all_reduce gradients of bucket 0' "$scratch/trace" || fail "the trace has no sum over the copies"
# A step gathers and scatters each bucket within the group, and adds half of its gradients over the copies.
holds '.collectives_per_step >= 4 * .buckets' "--shard-ranks 2: collectives are not counted"
train 2 "$stage5" --zero 3 --steps 2
holds "(.memory | [.weights_mb, .gradients_mb, .gathered_weights_mb]) == $of_groups" "not as with 4 ranks in groups of 2"
"$launcher" -n 3 "$stage5" --model mlp-toy --allreduce hierarchical --ranks-per-host 2 >"$scratch/out" 2>"$scratch/err"
{ [ $? -eq 2 ] && grep -q 'the hosts have 1 to 2' "$scratch/err"; } || fail "hosts of 2 ranks and of 1 are not refused"
refused "give one of the two" "$stage5" --shard-ranks 1 --allreduce hierarchical

# ---- outputs and checks ----

train 2 "$stage5" --zero 3 --steps 4 --check-every 1 --verify exact --generate 5 --trace "$scratch/trace" \
    --debug-collectives --accumulate 2
grep -q '^verify: passed' "$scratch/out" || fail "--verify exact did not pass"
for name in "all_gather weights of bucket 0" "reduce_scatter gradients of bucket 0"; do
    grep -q "$name" "$scratch/trace" || fail "the trace has no \"$name\""
done
train 3 "$stage5" --zero 2 --steps 4 --rank-samples 20,12,4 --join --verify exact
grep -q '^verify: passed' "$scratch/out" || fail "--verify exact with --join did not pass"
train 2 "$stage5" --zero 1 --steps 4 --find-unused-parameters --verify exact
grep -q '^verify: passed' "$scratch/out" || fail "--verify exact with --find-unused-parameters did not pass"

# ---- memory ----

for zero in 1 2 3; do
    train 4 "$stage5" --zero $zero --steps 2
    cp "$scratch/json" "$scratch/json$zero"
    holds '.memory.optimizer_mb <= 2 * .parameters * 4 / 4 / 1e6 * 1.5' "--zero $zero: optimizer on 4 ranks"
done
padded=$(jq .memory.weights_mb "$scratch/json1")
for check in "2 weights_mb 1" "2 gradients_mb 4" "3 weights_mb 4" "3 gradients_mb 4"; do
    read -r zero key divisor <<<"$check"
    jq -e "(.memory.$key * $divisor - $padded) | fabs < 1e-9" "$scratch/json$zero" >/dev/null ||
        fail "--zero $zero, 4 ranks: $key is $(jq ".memory.$key" "$scratch/json$zero"), not $padded / $divisor"
done
jq -e '.memory | .gathered_weights_mb > 0 and .gathered_weights_mb < '"$padded" "$scratch/json3" >/dev/null ||
    fail "--zero 3: weights that are whole at once"

# ---- bytes ----

# What each rank's link carries on 2 ranks: all gradients (or weights) once at levels 1 and 2, as in stage 4; half as
# much again at level 3. And the squares of the norm, 8 bytes for 4096. The first step gathers less.
for zero in 1 2 3; do
    train 2 "$stage5" --zero $zero --steps 40
    jq -e ".flags.zero == \"$zero\" and (.wire_bytes_per_step / 1e6 / .memory.weights_mb / ($zero == 3 | if . then 3 else 1 end) |
        . > 0.98 and . < 1.003)" "$scratch/json" >/dev/null ||
        fail "--zero $zero: $(jq -c '[.wire_bytes_per_step, .memory.weights_mb]' "$scratch/json") bytes per step, MB"
done

# ---- refused ----

refused "rebuild-buckets: not in stage 5" "$stage5" --rebuild-buckets
refused "find-unused-parameters: not with --zero 3" "$stage5" --zero 3 --find-unused-parameters
refused "zero: .4. is unknown; the choices are: 1, 2, 3" "$stage5" --zero 4
[ -z "$stage4" ] || refused "zero: stage 4 (accumulation) has no sharding: take stage5_sharded" "$stage4" --zero 2
finish
