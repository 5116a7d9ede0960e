#!/usr/bin/env bash
# Mixed precision on several ranks, with gradients sent in 32, 16 or 8 bits, or as thin matrices: --verify exact (the
# run of one process by shares) must give the same bits, and --verify (whole batches) the same weights within 1e-4.
#
# usage: test_precision_runs.sh TRAIN MPIEXEC [FLAGS OF MPIEXEC...]     TRAIN: stage 4's
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
train=$1
shift
launcher=("$@")
runs=0
gpt="--model gpt --layers 2 --heads 2 --width 32 --context 16 --lr 0.003"
sgd="--optimizer sgd --lr 0.05 --momentum 0" # AdamW amplifies noise to the learning rate, so 1e-4 is too strict for it
toy="--model mlp-toy $sgd"

about() { echo "$ranks ranks, $arguments: "; }

# verified RANKS "ARGUMENTS" JQ-CONDITION: fails unless the run succeeds and its summary fulfils the condition
verified()
{
    ranks=$1 arguments=$2
    rm -f "$scratch/json"
    # the arguments are a list of words on purpose
    # shellcheck disable=SC2086
    "${launcher[@]}" -n "$ranks" "$train" $arguments --steps 5 --batch-size 24 --eval-samples 8 --json "$scratch/json" \
        >"$scratch/out" 2>"$scratch/err" </dev/null
    status=$?
    runs=$((runs + 1))
    if [ $status -ne 0 ]; then
        fail "status $status: $(grep '^verify:' "$scratch/out" || grep -m 1 -E 'fault:|error:' "$scratch/err"); usual" \
            "cause, where it is verify: weights or sums rounded at another place than in one process"
    elif ! jq -e "$3" "$scratch/json" >/dev/null; then
        fail "the summary does not fulfil $3:" \
            "$(jq -c '[.steps_skipped, .loss_scale, .bytes_per_step, .verify]' "$scratch/json")"
    fi
}

exact='.verify.mode == "exact" and .verify.max_abs_diff == 0'
for ranks in 2 3; do
    for precision in bf16 fp16; do
        verified "$ranks" "$gpt --precision $precision --allreduce ordered --verify exact" "$exact"
        verified "$ranks" "$gpt $sgd --precision $precision --verify" '.verify.passed and .verify.max_abs_diff <= 1e-4'
        verified "$ranks" "$toy --precision $precision --verify" '.verify.passed and .verify.max_abs_diff <= 1e-4'
    done
    verified "$ranks" "$gpt --precision bf16 --grad-dtype bf16 --accumulate 2 --allreduce ordered --verify exact" \
        "$exact"
    verified "$ranks" "$gpt --precision fp16 --grad-dtype fp16 --allreduce ordered --verify exact" \
        "$exact and .steps_skipped == 0"
    verified "$ranks" "$toy --grad-dtype bf16 --allreduce ordered --verify exact" "$exact"
    verified "$ranks" "$gpt --grad-dtype int8 --accumulate 2 --allreduce ordered --verify exact" "$exact"
    verified "$ranks" "$toy --grad-dtype int8 --allreduce ring --verify exact" "$exact and .allreduce == \"ordered\""
    verified "$ranks" "$gpt --grad-dtype powersgd --powersgd-rank 2 --accumulate 2 --allreduce ordered --verify exact \
--rebuild-buckets --first-bucket-mb 0.001 --bucket-cap-mb 0.02" "$exact"
    verified "$ranks" "$toy --grad-dtype powersgd --powersgd-rank 1 --allreduce ordered --verify exact" \
        "$exact and .bytes_per_step == 4 * (20 + 10 + 20 + 20 + 5 + 20 + 40)"
done

# Over MPI, 16-bit gradients are added in rank order for every --allreduce, and the summary names the algorithm used.
for algorithm in mpi ring recursive-doubling root; do
    runs_as=ordered
    [ $algorithm = root ] && runs_as=root
    verified 3 "$toy --grad-dtype bf16 --allreduce $algorithm --verify exact" \
        "$exact and .allreduce == \"$runs_as\" and .flags.grad_dtype == \"bf16\""
    line=$(grep '^gradients: ' "$scratch/out")
    [[ $line == *"sent in bf16, added in float32 and in rank order by $runs_as"* ]] ||
        fail "no line 'gradients: sent in bf16, ... by $runs_as', but '$line'"
    expected="because $algorithm cannot"
    [ $algorithm = root ] && expected="order by root"
    [[ $line == *"$expected" ]] || fail "the line on gradients does not end with '$expected': '$line'"
    grep -q '^  all-reduce .* MB in bf16, ' "$scratch/out" ||
        fail "the summary does not say 'MB in bf16', but '$(grep '^  all-reduce' "$scratch/out")'"
done
verified 3 "$toy --allreduce ring" '.allreduce == "ring" and .flags.grad_dtype == "fp32"'
! grep -E '^gradients: |MB in' "$scratch/out" || fail "gradients are sent in 32 bits: no line about them is expected"

# In shared memory, also with gradients and 16-bit copies in windows that are freed and made again.
verified 3 "$gpt --allreduce shm --verify exact" "$exact"
verified 3 "$gpt --precision bf16 --grad-dtype bf16 --accumulate 2 --rebuild-buckets --first-bucket-mb 0.001 \
--bucket-cap-mb 0.02 --allreduce shm --verify exact" "$exact"

# Half the bytes on the wire (apart from the gaps between slices, which are the same).
verified 2 "$gpt --grad-dtype bf16" '.bytes_per_step > 0'
half=$(jq .bytes_per_step "$scratch/json")
verified 2 "$gpt" ".bytes_per_step == 2 * $half"
verified 2 "$gpt --grad-dtype int8 --allreduce shm --verify exact" "$exact and .bytes_per_step == 10 / 16 * $half"
verified 2 "$gpt --grad-dtype powersgd --allreduce shm --verify exact" "$exact"
grep -q '^gradients: [1-9][0-9]* matrices sent as two of 4 columns' "$scratch/out" || fail "nothing says what powersgd sends"

# The last batch of an epoch has 2 samples: what was not sent of 333 may not be divided by 2.
for codec in fp32 "powersgd --powersgd-rank 1"; do
    # the codec is a list of words on purpose
    # shellcheck disable=SC2086
    "${launcher[@]}" -n 2 "$train" --model mlp-toy --batch-size 333 --epochs 3 --grad-dtype $codec \
        --log "$scratch/${codec%% *}.csv" >"$scratch/out" 2>"$scratch/err" </dev/null || fail "$codec: $(cat "$scratch/err")"
done
paste -d, "$scratch/fp32.csv" "$scratch/powersgd.csv" | awk -F, 'NR > 1 && $12 > 3 * $4 { exit 1 }' ||
    fail "a small last batch enlarges what powersgd keeps: gradient norms $(cut -d, -f4 "$scratch/powersgd.csv" | xargs)"
verified 2 "$gpt --grad-dtype noop" '.bytes_per_step == 0'
grep -q '^gradients: NOT sent, ' "$scratch/out" || fail "nothing says that no gradients are sent"

# A scale that overflows: steps are skipped, the scale is halved each time, and all ranks equal the reference. (A run that
# skips most steps, but takes the last one, has status 0.)
verified 3 "$gpt --precision fp16 --loss-scale 65536 --allreduce ordered --verify exact" \
    "$exact and .steps_skipped > 0 and .loss_scale == 65536 / pow(2; .steps_skipped)"
verified 3 "$toy --precision fp16 --loss-scale 262144 --allreduce ordered --verify exact" \
    "$exact and .steps_skipped == 3"

finish
