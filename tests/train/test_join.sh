#!/usr/bin/env bash
# test_join.sh TRAIN [MPIEXEC]: ranks with unequal numbers of samples of their own. With --join they train on, and equal
# one process; without it, the uneven end is reported before the first step. Then ranks with unequal numbers of tokens
# (--mask-tokens). No run may hang.
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
train=$1 mpiexec=${2:-mpiexec}
limit=60
stage=$("$train" --help | sed -n '1s/.*stage \([1-9]\) .*/\1/p')
accumulate=() # it begins with stage 4
[ "$stage" -lt 4 ] || accumulate=(--accumulate 3)

about() { echo "$ranks ranks: "; }

# run ARGUMENTS...: trains the toy model; sets status.
run() {
    # shellcheck disable=SC2086 # MPIEXEC_FLAGS is a list
    timeout -k 2 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n "$ranks" "$train" --model mlp-toy --timeout 20 "$@" \
        >"$scratch/out" 2>"$scratch/err"
    status=$?
    [ "$status" -ne 124 ] || fail "$*: still running after $limit s: a rank waits for one that has run out of data"
}

# trained ARGUMENTS...: the run ends well. Its summary is in $scratch/json.
trained() {
    : >"$scratch/json"
    run "$@" --json "$scratch/json"
    [ "$status" -eq 0 ] || fail "$*: ended with status $status"
}

# refused PATTERN ARGUMENTS...: one line from rank 0, status 2, and nothing was trained.
refused() {
    local pattern=$1
    shift
    run "$@"
    [ "$status" -eq 2 ] || fail "$*: expected status 2, got $status"
    [ "$(wc -l <"$scratch/err")" -eq 1 ] || fail "$*: expected one line on stderr"
    grep -Eq "^train: error: .*$pattern" "$scratch/err" || fail "$*: no line matches: $pattern"
    [ ! -s "$scratch/out" ] || fail "$*: something was printed before the mistake was noticed"
}

value() { # KEY: of the summary
    sed -n "s/^\t\"$1\":\t\"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$scratch/json"
}

ranks=3
own=(--rank-samples 205,0,77 --batch-size 60) # 20 samples on each rank: 11 steps of an epoch on the first, 4 on the last

# Two epochs, with each divisor: like one process on the same batches, and to the bit like one on the ranks' shares.
for join in "" initial; do
    # shellcheck disable=SC2086 # no word at all, or one
    {
        trained "${own[@]}" --epochs 2 --lr 0.1 --join $join --verify
        [ "$(value steps)" = 22 ] || fail "--join $join: expected 2 epochs of 11 steps, got $(value steps) steps"
        flag=$(jq -r .flags.join "$scratch/json")
        [ "$flag" = "${join:-true}" ] || fail "--join $join: the summary says '$flag'"
        trained "${own[@]}" --epochs 2 --join $join "${accumulate[@]}" --optimizer adamw --clip-grad-norm 0.5 \
            --check-every 1 --allreduce ordered --verify exact
    }
    before=${whole:-}
    whole=$(value weights_hash)
done
[ "$before" != "$whole" ] || fail "--join and --join initial trained the same weights: do they divide alike?"

# Resumed in the middle of an epoch, after the last rank has run out: the same weights. ($whole: --join initial)
adamw=("${own[@]}" --join initial "${accumulate[@]}" --optimizer adamw --clip-grad-norm 0.5 --allreduce ordered)
trained "${adamw[@]}" --steps 8 --save "$scratch/checkpoint"
trained "${adamw[@]}" --epochs 2 --resume "$scratch/checkpoint" --verify exact
[ "$(value weights_hash)" = "$whole" ] || fail "a resumed run has other weights than one that was never interrupted"
trained --rank-samples 204,0,77 --batch-size 60 --join --optimizer adamw --steps 9 --resume "$scratch/checkpoint"
grep -q 'note: .*with --rank-samples 205,.*; this one has --rank-samples 204,' "$scratch/err" ||
    fail "--resume: no note on other --rank-samples"
grep -q 'note: .*with --join initial; this one has --join:' "$scratch/err" || fail "--resume: no note on another --join"

# A run that is much shorter than the model's default warm-up, which no flag sets here.
seq 1 2000 >"$scratch/text"
trained --model gpt --layers 1 --heads 2 --width 16 --context 16 --data "$scratch/text" --epochs 1 --batch-size 60

# Without --join.
refused "11 batches on rank 0, but only 0 on rank 1" "${own[@]}" --epochs 1
refused "--drop-last" "${own[@]}" --epochs 2 --drop-last
ranks=2
own=(--rank-samples 205,77 --batch-size 40)
refused "give --join to train on.*--drop-last" "${own[@]}" --steps 5
trained "${own[@]}" --steps 4 --verify # no rank runs out before the end
trained "${own[@]}" --epochs 2 --drop-last --verify
[ "$(value steps)" = 8 ] || fail "--drop-last: expected 2 epochs of 4 steps, got $(value steps) steps"
trained --rank-samples 79,62 --batch-size 40 --epochs 2 --verify # unequal, but 4 steps each

# masked PROBABILITY ARGUMENTS...: trains on a text with masked tokens. The reference of --verify counts by itself.
masked() {
    : >"$scratch/json"
    run --model gpt --layers 1 --heads 2 --width 16 --context 16 --data "$scratch/text" --epochs 2 --batch-size 60 \
        --optimizer sgd --mask-tokens "$@" --json "$scratch/json"
    [ "$status" -eq 0 ] || fail "--mask-tokens $*: ended with status $status; the divisor is the number of unmasked" \
        "tokens on ALL ranks, in all micro-batches: a rank that divides by its own number computes a mean of means"
}

for ranks in 1 3; do
    masked 0.7 --verify
    with=$(value collectives_per_step)
    masked 0 --verify
    without=$(value collectives_per_step)
    [ "$(jq -n "$with - $without")" = 1 ] ||
        fail "--mask-tokens: $with collectives per step, $without without it: expected one more, which counts the terms"
    masked 0.7 "${accumulate[@]}" --allreduce ordered --verify exact --clip-grad-norm 0.5 --dropout 0.2
    # Batches of few tokens, of which some have none left.
    masked 0.99 --batch-size 6 --on-nan skip --verify
    [ "$(jq '.steps_skipped > 0 and .steps_skipped < .steps' "$scratch/json")" = true ] ||
        fail "--on-nan skip: expected some steps to be skipped, not $(value steps_skipped) of $(value steps)"
    run --model gpt --layers 1 --heads 2 --width 16 --context 16 --data "$scratch/text" --batch-size 6 --mask-tokens 0.99
    { [ "$status" -eq 2 ] && grep -q "^train: error: --mask-tokens: 0.99 has masked every token" "$scratch/err"; } ||
        fail "no token is left in some step: expected status 2 and a line about --mask-tokens, got status $status"
    samples=(0 205 0 205,0,77)
    masked 0.5 --rank-samples "${samples[ranks]}" --join --verify --dropout 0.2
done

finish
