#!/usr/bin/env bash
# test_resume.sh: a run that was interrupted and goes on from its --save file ends where an uninterrupted one ends: the
# same weights to the bit, and the same file: optimizer state, step, loss scale, good steps. On 1 and 2 ranks. A run
# that goes on with other flags or data says what this changes.
#
# usage: test_resume.sh TRAIN MPIEXEC [FLAGS OF MPIEXEC...]     TRAIN: stage 4's
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
train=$1
shift
launcher=("$@")
runs=0

about() { echo "$ranks rank(s): train $arguments $part: "; }

# train_with STATUS WORDS: one run of `ranks` ranks with `arguments` and WORDS; did it end with STATUS?
train_with()
{
    local expected=$1 status
    part=$2
    # both are lists of words on purpose
    # shellcheck disable=SC2086
    (cd "$scratch" && "${launcher[@]}" -n "$ranks" "$train" $arguments $part) \
        >"$scratch/out" 2>"$scratch/err" </dev/null
    status=$?
    runs=$((runs + 1))
    [ $status -eq "$expected" ] || fail "expected status $expected, got $status: $(grep -a '^verify:' "$scratch/out")"
}

hash_of() # the run's summary
{
    jq -r .weights_hash "$scratch/$1"
}

state_of() # what a --save file says about the run; 8 bytes before it hold its length
{
    head -c "$((8 + $(od -A n -t d8 -N 8 "$scratch/$1")))" "$scratch/$1" | tail -c +9 |
        jq -c '.__metadata__ | {step, loss_scale, good_steps}'
}

# compare: the run that was resumed (resumed.json, resumed.save) against the whole one
compare()
{
    if [ "$(hash_of resumed.json)" != "$(hash_of whole.json)" ]; then
        fail "weights_hash $(hash_of resumed.json), but $(hash_of whole.json) without the interruption; usual causes:" \
            "optimizer state or step number not restored, or the sampler begins its epoch again"
    elif ! cmp -s "$scratch/resumed.save" "$scratch/whole.save"; then
        fail "equal weights, but another file than without the interruption: $(state_of resumed.save), expected" \
            "$(state_of whole.save); $(cd "$scratch" && cmp resumed.save whole.save 2>&1)"
    fi
}

# interrupted ARGUMENTS: 6 steps at once, and 3 + 3. --verify exact, because the reference must resume, too.
interrupted()
{
    arguments=$1
    rm -f "$scratch"/*
    train_with 0 "--steps 6 --save whole.save --json whole.json"
    train_with 0 "--steps 3 --save half.save"
    train_with 0 "--steps 6 --resume half.save --save resumed.save --json resumed.json --verify exact"
    compare
}

# killed ARGUMENTS: a run that saves every 3 steps is ended from outside when its file exists; a second run resumes from
# it and takes 3 more steps.
killed()
{
    arguments=$1 part="--steps 1000000 --save half.save --save-every 3"
    rm -f "$scratch"/*.save
    # both are lists of words on purpose
    # shellcheck disable=SC2086
    (cd "$scratch" && exec "${launcher[@]}" -n "$ranks" "$train" $arguments $part) \
        >"$scratch/out" 2>"$scratch/err" </dev/null &
    local launched=$!
    for _ in $(seq 600); do
        [ -e "$scratch/half.save" ] && break
        sleep 0.1
    done
    # neither a hard link nor cp: both fail if the run puts the next file in this one's place meanwhile
    cat "$scratch/half.save" >"$scratch/killed.save" || fail "no file after a minute"
    kill $launched
    wait $launched
    local steps=$(($(state_of killed.save | jq '.step | tonumber') + 3))
    train_with 0 "--steps $steps --save whole.save --json whole.json"
    train_with 0 "--steps $steps --resume killed.save --save resumed.save --json resumed.json"
    compare
}

# other_seed ARGUMENTS, after interrupted: resumes half.save with samples in another order. The hash must change, and a
# note must say it, only once, although --verify reads half.save a second time.
other_seed()
{
    arguments=$1
    train_with 0 "--steps 6 --seed 43 --resume half.save --json resumed.json --verify exact"
    notes=$(grep -c -- 'note: .*--seed 42; this one has --seed 43' "$scratch/err")
    [ "$notes" -eq 1 ] ||
        fail "the note about another --seed came $notes times, expected once: does --verify repeat it?"
    grep -q -- '--seed 43: the rest of the epoch comes in another order' "$scratch/err" ||
        fail "expected to read what another seed does: $(cat "$scratch/err")"
    [ "$(hash_of resumed.json)" != "$(hash_of whole.json)" ] ||
        fail "resumed with another --seed and got the same weights: this test would not notice any difference"
}

# told ARGUMENTS WORDS [PATTERN EFFECT]..., after interrupted: a note says which setting changed; EFFECT "": what follows
# from most changes. Without a pattern, there is no note.
told()
{
    arguments=$1
    train_with 0 "--steps 6 --resume half.save $2"
    shift 2
    [ $# -gt 0 ] || ! grep -q 'note:' "$scratch/err" || fail "the same flags as before, but: $(cat "$scratch/err")"
    while [ $# -gt 0 ]; do
        grep -Eq "note: half.save: was saved from a run with $1: ${2:-the weights will not be the same to the bit}\$" \
            "$scratch/err" || fail "expected a note like '$1: $2', got '$(cat "$scratch/err")'"
        shift 2
    done
}

# told_of_flags: what a note says does not depend on the number of ranks
told_of_flags()
{
    told "$toy" "--lr 0.0100 --momentum 9e-1"
    told "$toy" "--lr-schedule cosine" "lr constant after .*; this one has lr cosine over 6 steps, .*" \
        "the learning rate goes from 0.01 in step 2 to 0.00410942 in the next"
    told "$toy" "--lr 0.5 --threads 2 --momentum 0.8 --grad-dtype bf16 --drop-last" \
        "--lr 0.01; this one has --lr 0.5" "the learning rate goes from 0.01 in step 2 to 0.5 in the next" \
        "--threads 1; this one has --threads 2" "" "--momentum 0.9; this one has --momentum 0.8" "" \
        "--grad-dtype fp32; this one has --grad-dtype bf16" "" "no --drop-last; this one has --drop-last" ""
    told "$toy" "--lr 0.01000001" "--lr 0.01; this one has --lr 0.01000001" ".*"
    train_with 0 "--lr-schedule cosine --steps 3 --save half.save" # the rate falls towards step 3, not 6
    told "$toy" "--lr-schedule cosine" "lr cosine over 3 steps, .*; this one has lr cosine over 6 steps, .*" \
        "the learning rate goes from 0.001 in step 2 to 0.00410942 in the next"
}

# losses: of each step that was printed, without its number
losses()
{
    sed -n 's/^step [0-9/]*, loss \([0-9.]*\),.*/\1/p' "$scratch/out"
}

# another_batch: after an epoch in steps of 100 samples, --epochs 2 trains the second epoch, in steps of 200. With a
# rate that changes no weight, its losses are those of a run that has had steps of 200 from the start.
another_batch()
{
    local whole
    arguments="--model mlp-toy --lr 1e-12"
    train_with 0 "--batch-size 200 --epochs 2"
    whole=$(losses)
    train_with 0 "--batch-size 100 --epochs 1 --save half.save"
    train_with 0 "--batch-size 200 --epochs 2 --resume half.save --save resumed.save --verify exact"
    [ "$(losses)" = "$(echo "$whole" | tail -5)" ] ||
        fail "the second epoch has losses $(losses | xargs), expected the last 5 of $(echo "$whole" | xargs)"
    grep -q 'trained again' "$scratch/err" && fail "no sample is trained again, but: $(cat "$scratch/err")"
    train_with 0 "--batch-size 100 --epochs 3 --resume resumed.save" # 10 + 5 + 10 steps
    [ "$(grep -c '^data: .* steps 15 to 24 of 100' "$scratch/out")" -eq 1 ] || fail "expected steps 15 to 24"
    train_with 2 "--batch-size 200 --epochs 2 --resume resumed.save"
    grep -q 'after 15 steps, and the run ends there' "$scratch/err" || fail "expected to read that the run ends there"

    train_with 0 "--batch-size 100 --steps 3 --save half.save"
    train_with 0 "--batch-size 160 --epochs 1 --resume half.save --verify exact"
    grep -q 'note: half.save: was saved after 300 samples of an epoch, .* the last 140 of them are trained again' \
        "$scratch/err" || fail "expected a note about 140 samples"
    [ "$(losses | wc -l)" -eq 6 ] || fail "expected 6 steps: the epoch has 7, and one is done"
}

# other_data: the same length, and another byte; then another length
other_data()
{
    local words="data of [0-9]* samples, checksum [0-9a-f]*"
    seq 1000 >"$scratch/text"
    sed '1s/1/2/' "$scratch/text" >"$scratch/changed"
    arguments=$gpt
    train_with 0 "--steps 3 --data text --save half.save"
    told "$gpt" "--data text"
    told "$gpt" "--data changed" "data of 218 samples, checksum [0-9a-f]*; this one has data of 218 samples, checksum \
[0-9a-f]*" "from here on it trains on other data"
    grep -Eq 'checksum ([0-9a-f]{8});.*checksum \1:' "$scratch/err" && fail "two equal checksums for two texts"
    seq 2000 >"$scratch/changed"
    told "$gpt" "--data changed" "$words; this one has $words" "from here on it trains on other data"
    train_with 0 "--steps 3 --batch-size 300 --data text" # also without --resume
    grep -q 'note: --batch-size: 300 is more than the 218 samples of an epoch' "$scratch/err" ||
        fail "expected a note about a batch that is longer than the epoch"
}

# power_sgd: each rank resumes with what it has not sent yet, which is of no use to another number of ranks.
power_sgd()
{
    local here=$ranks
    interrupted "$gpt --grad-dtype powersgd --powersgd-rank 1"
    arguments=$gpt
    train_with 2 "--steps 6 --resume half.save"
    grep -q 'error: half.save: was saved from a run with .* --powersgd-rank 1 on [12] rank(s), this one has' \
        "$scratch/err" || fail "resumed without powersgd: expected to read why that cannot be: $(cat "$scratch/err")"
    ranks=$((3 - here))
    train_with 2 "--grad-dtype powersgd --powersgd-rank 1 --steps 6 --resume half.save"
    grep -q "on $here rank(s), this one has .* on $ranks rank(s)" "$scratch/err" ||
        fail "resumed on another number of ranks: expected to read why that cannot be: $(cat "$scratch/err")"
    arguments="--model mlp-toy --norm batch --optimizer adamw --grad-dtype powersgd --powersgd-rank 1000" # many words
    train_with 0 "--steps 2 --save half.save"
    ranks=$here
    train_with 2 "--steps 4 --resume half.save"
    grep -q "on [12] rank(s), this one has .* on $here rank(s)" "$scratch/err" ||
        fail "a long description of a run is cut off: $(cat "$scratch/err")"
}

# The toy's epoch of 1000 samples has 5 steps, so the second part goes beyond its end.
toy="--model mlp-toy --batch-size 240 --momentum 0.9 --lr-schedule constant"
gpt="--model gpt --layers 1 --heads 2 --width 16 --context 16 --batch-size 6 --optimizer adamw --lr-schedule constant"
gpt="$gpt --warmup-steps 2 --eval-samples 4 --dropout 0.1"
fp16="--precision fp16 --loss-scale 65536" # overflows at first: the saved scale is not the initial one

for ranks in 1 2; do
    interrupted "$toy"
    [ $ranks -gt 1 ] || told_of_flags
    interrupted "$gpt"
    other_seed "$gpt"
    killed "$gpt"
    interrupted "$gpt $fp16"
    [ "$(state_of half.save | jq '(.loss_scale | tonumber) < 65536 and (.good_steps | tonumber) > 0')" = true ] ||
        fail "the first half must have an overflow and a good step, or this tests no loss scale: $(state_of half.save)"
    told "$gpt --precision bf16" "--json resumed.json" "--precision fp16; this one has --precision bf16" ""
    jq -e '.loss_scale == 1' "$scratch/resumed.json" >/dev/null || fail "bf16 has taken the loss scale of fp16"
done
power_sgd # on 2 ranks
another_batch
ranks=1
other_data

finish
