#!/bin/sh
# test_outputs.sh: the output at the end of a run: the evaluation, which must not depend on the number of ranks; bits
# per byte and the share of communication; the advice after --verify; the generated text.
# Its usage: cli/cases.sh. TRAIN: a stage with a communication row, 3 or 4.

# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/cli/cases.sh"

# succeeds RANKS ARGUMENTS...
succeeds()
{
    run "$@"
    shift
    ended 0 "$@"
}

# ---- evaluation ----

# 60 + 20 pictures made from the bytes of a program. They must differ, or a missing sample would not show.
image_directory noise
pixels()
{
    tail -c "$2" "$train" | dd of="$scratch/noise/$1" bs=16 seek=1 conv=notrunc 2>/dev/null
}
labels()
{
    for label in $(seq 0 $(($2 - 1))); do byte $((label % 10)); done |
        dd of="$scratch/noise/$1" bs=8 seek=1 conv=notrunc 2>/dev/null
}
pixels train-images-idx3-ubyte $((60 * 784))
pixels t10k-images-idx3-ubyte $((20 * 784))
labels train-labels-idx1-ubyte 60
labels t10k-labels-idx1-ubyte 20

# evaluated RANKS SAMPLES: with the initial weights, because trained ones differ in their last bits
evaluated()
{
    succeeds "$1" --model mlp --hidden 16,16 --data "$scratch/noise" --steps 1 --batch-size 12 --lr 1e-12 --momentum 0 \
        --eval-samples "$2" --json "$scratch/$1.json"
}
evaluated 1 13
for count in 2 3; do # 13 is a multiple of neither
    evaluated $count 13
    jq -es '.[0].weights_hash == .[1].weights_hash' "$scratch/1.json" "$scratch/$count.json" >/dev/null ||
        fail "the initial weights are not those of one rank, so the evaluations cannot be compared" "13 samples"
    jq -es 'def close(f): (.[0] | f) - (.[1] | f) | fabs <= 1e-6; close(.eval_loss) and close(.eval_accuracy)' \
        "$scratch/1.json" "$scratch/$count.json" >/dev/null ||
        fail "eval_loss, eval_accuracy $(jq -c '[.eval_loss, .eval_accuracy]' "$scratch/$count.json"), but
     $(jq -c '[.eval_loss, .eval_accuracy]' "$scratch/1.json") on one rank: one left out or seen twice?" "13 samples"
done
evaluated 2 12
jq -es '.[0].eval_loss - .[1].eval_loss | fabs > 1e-5' "$scratch/1.json" "$scratch/2.json" >/dev/null ||
    fail "12 samples have the loss of 13: this test would not notice a sample left out" "12 samples"

# ---- bits per byte, only for text ----

tiny="--model gpt --layers 1 --heads 2 --width 16 --context 16 --eval-samples 1"
# shellcheck disable=SC2086 # a list of words
succeeds 2 $tiny --steps 2 --first-bucket-mb 0.5 --json "$scratch/json"
bits=$(LC_ALL=C printf %.4f "$(jq '.eval_loss / 0.6931471805599453' "$scratch/json")")
jq -e '.eval_bits_per_byte - .eval_loss / 0.6931471805599453 | fabs < 1e-9' "$scratch/json" >/dev/null ||
    fail "eval_bits_per_byte is $(jq .eval_bits_per_byte "$scratch/json"), but eval_loss / ln 2 is $bits" "$tiny"
grep -q "; on unseen data [0-9.]* nats, $bits bits per byte\$" "$scratch/out" ||
    fail "no '... nats, $bits bits per byte' in the summary, but '$(grep '^  loss' "$scratch/out")'" "$tiny"
jq -e '.flags.first_bucket_mb == 0.5 and .flags.bucket_cap_mb == 1' "$scratch/json" >/dev/null ||
    fail "the caps of the buckets are not those of the flags" "$tiny"
share=$(jq '100 * .exposed_comm_ms / .step_ms.p50' "$scratch/json")
jq -e '100 * .comm_share - '"$share"' | fabs < 1e-6' "$scratch/json" >/dev/null ||
    fail "comm_share is $(jq .comm_share "$scratch/json"), but exposed / step is $share %" "$tiny"
grep -q " ms exposed ($(LC_ALL=C printf %.1f "$share") % of the step): [0-9]* % hidden\$" "$scratch/out" ||
    fail "no 'ms exposed ($share % of the step)' in '$(grep '^  all-reduce' "$scratch/out")'" "$tiny"
jq -e '.eval_bits_per_byte == null' "$scratch/1.json" >/dev/null || fail "pictures have no bits per byte" "--model mlp"

# ---- advice, if training on whole batches gives other weights ----

# verified_with STATUS ADVICE ARGUMENTS...: ADVICE: a pattern, or nothing. The model contains the critical case, the
# bias of attention's keys.
verified_with()
{
    expected=$1 advice=$2
    shift 2
    # shellcheck disable=SC2086 # a list of words
    run 2 $tiny --steps 4 --batch-size 8 --warmup-steps 0 --lr-schedule constant "$@"
    ended "$expected" "$@" || return
    grep '^advice: ' "$scratch/out" >"$scratch/advice"
    if [ -z "$advice" ]; then
        [ ! -s "$scratch/advice" ] || fail "no advice was needed, got '$(cat "$scratch/advice")'" "$@"
    else
        grep -q "^advice: .*$advice.*--verify exact --allreduce ordered" "$scratch/advice" ||
            fail "expected advice with '$advice' and --verify exact, got '$(cat "$scratch/advice")'" "$@"
    fi
}
verified_with 1 '--optimizer sgd' --optimizer adamw --lr 0.3 --verify
verified_with 0 '' --optimizer adamw --lr 0.3 --verify exact
verified_with 0 '' --optimizer sgd --lr 0.1 --verify
verified_with 1 '(--steps 1).*relu' --optimizer sgd --lr 3 --momentum 0.99 --clip-grad-norm 0 --verify

# ---- text ----

for count in 1 2; do
    arguments="$tiny --steps 1 --generate 20"
    # shellcheck disable=SC2086 # a list of words
    succeeds $count $arguments || continue
    sed -n '/^  weights /,$p' "$scratch/out" | sed 1d >"$scratch/text"
    # The prompt, 20 bytes and the end of the line, which are more than the context. Three bytes may be missing, of a
    # character that is not complete.
    size=$(wc -c <"$scratch/text")
    if [ "$(head -c 4 "$scratch/text")" != "The " ] || [ "$(tail -c 1 "$scratch/text" | od -A n -c)" != '  \n' ] ||
        [ "$size" -lt 22 ] || [ "$size" -gt 25 ]; then
        fail "expected 'The ' and 20 bytes of text at the end, got '$(cat "$scratch/text")'" "$arguments"
    fi
done

# A model that has learned a text in another alphabet prints that alphabet. Its last character is cut, and left out.
for _ in $(seq 3000); do printf 'щж'; done >"$scratch/alphabet"
arguments="$tiny --data $scratch/alphabet --steps 150 --batch-size 16 --lr 0.01 --generate 41"
# shellcheck disable=SC2086 # a list of words
succeeds 1 $arguments
sed -n 's/^The //p' "$scratch/out" >"$scratch/text"
grep -q 'щжщж' "$scratch/text" || fail "expected Cyrillic letters, got '$(cat "$scratch/text")'" "$arguments"
iconv -f UTF-8 -t UTF-8 <"$scratch/text" >/dev/null || fail "the generated text is not UTF-8" "$arguments"

# Binary data is refused, unless it is meant.
head -c 30000 "$train" >"$scratch/program"
run 1 --model gpt --steps 1 --data "$scratch/program"
ended 2 --data "$scratch/program"
grep -q "program' is not plain text, but a compiled program (ELF), .*; --binary-data trains on" "$scratch/err" ||
    fail "expected to hear that this is a program" --data "$scratch/program"
# shellcheck disable=SC2086 # a list of words
succeeds 1 $tiny --steps 1 --data "$scratch/program" --binary-data

finish
