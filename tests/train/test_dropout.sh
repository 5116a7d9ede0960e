#!/usr/bin/env bash
# test_dropout.sh: N ranks drop what one process drops: under SGD they have the same weights, up to rounding. Evaluation
# drops nothing. (Resumed runs: test_resume.sh. All stages, 16 bits: test_bits.sh. Ranks without
# data: test_join.sh.)
#
# usage: test_dropout.sh TRAIN COMPARE MPIEXEC [FLAGS OF MPIEXEC...]     TRAIN: of a stage with --accumulate; COMPARE:
#                        compare_weights
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
train=$1 compare=$2
shift 2
launcher=("$@") runs=0 ranks=1

about() { echo "$ranks rank(s), $arguments: "; }

# trained WORDS...: `arguments` and WORDS; the summary is in $scratch/json
trained()
{
    arguments=$*
    runs=$((runs + 1))
    "${launcher[@]}" -n "$ranks" "$train" "$@" --json "$scratch/json" >"$scratch/out" 2>"$scratch/err" </dev/null ||
        fail "ended with status $?"
}

# as_one_process WORDS...: 1 and 3 ranks, of which one has more samples than the others
as_one_process()
{
    for ranks in 1 3; do
        trained "$@" --optimizer sgd --batch-size 10 --save "$scratch/$ranks" --verify
        difference=$("$compare" "$scratch/1" "$scratch/$ranks" 1e-5) ||
            fail "other weights than on one rank: $difference; usual cause: the mask depends on a sample's place on" \
                "its rank, not on its place in the whole batch (sampler_places())"
    done
}

value() { jq "$1" "$scratch/json"; }

gpt=(--model gpt --layers 2 --heads 2 --width 32 --context 16 --eval-samples 8)
as_one_process "${gpt[@]}" --steps 40 --dropout 0.2
as_one_process "${gpt[@]}" --steps 20 --dropout 0.2 --accumulate 2
as_one_process --model mlp --hidden 48,32 --steps 40 --dropout 0.5 --eval-samples 10

# The learning rate is too small to change a weight, so evaluation has the same weights, and must have the same loss.
ranks=1
trained "${gpt[@]}" --steps 1 --lr 1e-12
without=$(value .eval_loss) first=$(value .first_loss)
trained "${gpt[@]}" --steps 1 --lr 1e-12 --dropout 0.9
[ "$(value ".eval_loss - $without | fabs < 1e-6")" = true ] ||
    fail "the loss on unseen data is $(value .eval_loss), and $without without dropout: evaluation must drop nothing"
[ "$(value ".first_loss - $first | fabs > 1e-3")" = true ] || fail "the training loss is $first without dropout, too"
finish
