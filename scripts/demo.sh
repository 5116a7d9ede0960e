#!/usr/bin/env bash
# demo.sh: trains three models with every stage, alone and as two ranks. It shows that both give the same weights, the
# speed of each, and the cost of communication; the GPT once more over a slow link. Then a GPT generates some text.
# Less than three minutes on two cores. The first result comes after half a minute: only stage 1 is built before it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/build.sh"

# Model, steps, flags. SGD, because AdamW turns the rounding noise of a gradient that is 0 into full steps.
first="mlp 100 --optimizer sgd"
runs=("mlp-toy 1000 --optimizer sgd" "$first" "gpt 10 --optimizer sgd --eval-samples 16")
# The GPT over an emulated link of 1 Gbit/s and 50 us, with small buckets, so that the first one can be sent early. All
# lines have the same batch. The last two split it into 4 micro-batches, which stages 1 to 3 cannot do.
link="1,50"
link_flags=(--optimizer sgd --eval-samples 16 --wire "$link" --batch-size 32 --steps 6)
# The longer run at the end, with the last stage as two ranks. In so short a time a small GPT learns more than a large.
text_flags=(--layers 3 --width 128 --lr 4e-3 --batch-size 16 --steps 500 --eval-samples 16 --generate 400)

cd "$repository"
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

part() {
    printf '\n=== [%d s] %s\n' "$SECONDS" "$1"
}

# run RANKS COMMAND...: shows the command, runs it, and ends the demo if it fails.
run() {
    local ranks=$1 status=0
    shift
    printf '\n$ mpiexec -n %s %s\n' "$ranks" "$*"
    run_ranks "$ranks" "$@" || status=$?
    if [ "$status" -ne 0 ]; then
        echo "demo: error: the command above ended with status $status" >&2
        exit 1
    fi
}

# train_pair STAGE MODEL STEPS FLAG...: alone and as two ranks, unless it has been done. Saves the JSON summaries.
train_pair() {
    local stage=$1 model=$2 steps=$3
    shift 3
    [ ! -e "$results/$stage.$model.2.json" ] || return 0
    run 1 "build/$stage/train" --model "$model" --steps "$steps" "$@" --json "$results/$stage.$model.1.json"
    run 2 "build/$stage/train" --model "$model" --steps "$steps" "$@" --verify --json "$results/$stage.$model.2.json"
}

# show_pair STAGE MODEL: its two runs side by side.
show_pair() {
    local name alone both
    printf '\n%-24s %12s %12s\n' "$1, $2" "1 process" "2 ranks"
    while IFS=$'\t' read -r name alone both; do
        printf '%-24s %12.2f %12.2f\n' "$name" "$alone" "$both"
    done < <(jq -rs '
        ["median step (ms)", .[].step_ms.p50], ["right, unseen data (%)", 100 * .[].eval_accuracy] | @tsv' \
        "$results/$1.$2".[12].json)
    printf 'largest difference in any weight: %.1e, allowed: 1e-05\n' \
        "$(jq .verify.max_abs_diff "$results/$1.$2.2.json")"
}

# compare STAGE MODEL: one line of the table for each number of ranks, from the JSON summaries of the runs.
compare() {
    jq -rs --arg stage "$1" --arg model "$2" '
        .[0].step_ms.p50 as $alone | .[] |
        [$stage, $model, .world_size, .step_ms.p50, 100 * .comm_share, $alone / .step_ms.p50,
         (.verify.max_abs_diff? // "-")] | @tsv' "$results/$1.$2.1.json" "$results/$1.$2.2.json" |
        while IFS=$'\t' read -r stage model ranks step share speedup difference; do
            [ "$difference" = - ] || difference=$(printf '%.1e' "$difference")
            [ "$ranks" -gt 1 ] && share=$(printf '%.1f' "$share") || share=-
            printf '%-20s %-8s %5d %12.3f %10s %9.2fx %12s\n' \
                "$stage" "$model" "$ranks" "$step" "$share" "$speedup" "$difference"
        done
}

# over_link LABEL STAGE FLAGS...: trains over the slow link, and saves the summary for link_table.
over_link() {
    local label=$1 stage=$2
    shift 2
    [ -x "build/$stage/train" ] || return 0
    run 2 "build/$stage/train" --model gpt "${link_flags[@]}" "$@" \
        --json "$results/link.${#link_labels[@]}.json"
    link_labels+=("$label")
}

# link_table: one line for each run over the slow link; samples/s from the median step time.
link_table() {
    local first i samples hidden faster
    first=$(jq '1000 * .flags.batch_size / .step_ms.p50' "$results/link.0.json")
    printf '%-40s %10s %12s %12s\n' "stage, flags" samples/s "hidden (%)" "speed-up"
    for i in "${!link_labels[@]}"; do
        read -r samples hidden faster < <(jq -r --argjson first "$first" '
            (1000 * .flags.batch_size / .step_ms.p50) as $samples |
            [$samples, 100 * .hidden_fraction, $samples / $first] | @tsv' "$results/link.$i.json")
        printf '%-40s %10.1f %12.0f %11.2fx\n' "${link_labels[$i]}" "$samples" "$hidden" "$faster"
    done
}

part "packages"
"$repository/scripts/setup.sh"
use_own_openblas_kernels
source "$repository/scripts/mpi.sh"
[ "$(nproc)" -ge 2 ] || echo "note: one core only: two ranks take turns on it, so they cannot be faster than one"

part "stage 1 is built"
build_targets=(train_stage1)
build_preset release

part "the first result: stage 1 trains a small network alone, and as two ranks"
# shellcheck disable=SC2086 # several words
train_pair stage1_naive $first
show_pair stage1_naive mlp

part "the other stages are built"
build_targets=()
build_preset release

stages=()
for program in build/stage*/train; do
    [ -x "$program" ] && stages+=("$(basename "$(dirname "$program")")")
done
[ ${#stages[@]} -gt 0 ] || { echo "demo: error: no build/stage*/train was built" >&2; exit 1; }

part "all stages train three models, alone and as two ranks"
for stage in "${stages[@]}"; do
    for line in "${runs[@]}"; do
        # shellcheck disable=SC2086 # several words
        train_pair "$stage" $line
    done
done

cat <<'END'

Same global batch alone and as two ranks. step: median, ms. comm: share of the step in which training stood still
for communication, %. speed-up: against one rank of the same stage. difference: the largest in any weight from
training as a single process.

END
printf '%-20s %-8s %5s %12s %10s %10s %12s\n' stage model ranks "step (ms)" "comm (%)" speed-up difference
for stage in "${stages[@]}"; do
    for line in "${runs[@]}"; do
        read -r model _ <<<"$line"
        compare "$stage" "$model"
    done
done

part "the GPT as two ranks over a slow link"
link_labels=()
over_link stage1_naive stage1_naive
over_link stage2_bucketed stage2_bucketed
over_link stage3_overlap stage3_overlap
over_link "stage4_accumulation, 4 micro-batches" stage4_accumulation --accumulate 4
over_link "the same, gradients in bf16" stage4_accumulation --accumulate 4 --grad-dtype bf16

cat <<END

The GPT as two ranks over an emulated link of ${link%,*} Gbit/s and ${link#*,} us; a batch of 32, in the last two lines
in 4 micro-batches, as if 32 were too many for the memory; buckets of 1 MiB from stage 2 on.
hidden: share of the communication that training did not wait for. speed-up: samples/s against the first line.

END
link_table

last_stage=${stages[-1]}
part "$last_stage trains a smaller GPT for longer, which then writes some text"
run 2 "build/$last_stage/train" --model gpt "${text_flags[@]}"
