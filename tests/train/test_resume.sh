#!/usr/bin/env bash
# test_resume.sh: a run that was interrupted and goes on from its --save file ends where an uninterrupted one ends: the
# same weights to the bit, and the same file: optimizer state, step, loss scale, good steps. On 1 and 2 ranks.
#
# usage: test_resume.sh TRAIN MPIEXEC [FLAGS OF MPIEXEC...]     TRAIN: stage 4's
set -u
train=$1
shift
launcher=("$@")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
runs=0
failures=0

fail()
{
    failures=$((failures + 1))
    echo "FAIL on $ranks rank(s): train $arguments $part"
    echo "     $*"
    sed 's/^/     stderr: /' "$scratch/err" | head -3
}

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
    ln -f "$scratch/half.save" "$scratch/killed.save" || fail "no file after a minute"
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
    [ "$(hash_of resumed.json)" != "$(hash_of whole.json)" ] ||
        fail "resumed with another --seed and got the same weights: this test would not notice any difference"
}

# told ARGUMENTS WORDS PATTERN, after interrupted: a note says which setting changed; "": there is no note.
told()
{
    arguments=$1
    train_with 0 "--steps 6 --resume half.save $2"
    if [ -z "$3" ]; then
        grep -q 'note:' "$scratch/err" && fail "the same flags as before, but: $(cat "$scratch/err")"
    else
        grep -Eq "note: half.save: was saved from a run with $3: the weights will not be the same to the bit" "$scratch/err" ||
            fail "expected a note like '$3', got '$(cat "$scratch/err")'"
    fi
}

# The toy's epoch of 1000 samples has 5 steps, so the second part goes beyond its end.
toy="--model mlp-toy --batch-size 240 --momentum 0.9 --lr-schedule constant"
gpt="--model gpt --layers 1 --heads 2 --width 16 --context 16 --batch-size 6 --optimizer adamw --lr-schedule constant"
gpt="$gpt --warmup-steps 2 --eval-samples 4"
fp16="--precision fp16 --loss-scale 65536" # overflows at first: the saved scale is not the initial one

for ranks in 1 2; do
    interrupted "$toy"
    told "$toy" "" ""
    told "$toy" "--lr-schedule cosine" "lr [0-9.]*, constant .*; this one has lr [0-9.]*, cosine over 6 steps, .*"
    told "$toy" "--lr 0.5" "lr 0.[0-9]*, constant .*; this one has lr 0.5, constant .*"
    told "$toy" "--momentum 0.8" "momentum 0.9, .*; this one has momentum 0.8, .*"
    told "$toy" "--grad-dtype bf16" ".* sent in fp32; this one has .* sent in bf16"
    train_with 0 "--lr-schedule cosine --steps 3 --save half.save" # the rate falls towards step 3, not 6
    told "$toy" "--lr-schedule cosine" "lr .*, cosine over 3 steps, .*; this one has lr .*, cosine over 6 steps, .*"
    train_with 0 "--steps 3 --save half.save"
    killed "$toy"
    interrupted "$gpt"
    other_seed "$gpt"
    killed "$gpt"
    interrupted "$gpt $fp16"
    [ "$(state_of half.save | jq '(.loss_scale | tonumber) < 65536 and (.good_steps | tonumber) > 0')" = true ] ||
        fail "the first half must have an overflow and a good step, or this tests no loss scale: $(state_of half.save)"
done

echo "$runs runs, $failures failure(s)"
exit $((failures > 0))
