#!/usr/bin/env bash
# weights_hashes.sh: prints a hash of the trained weights for every stage, model, precision and number of ranks. Compare
# the output before and after a change that should not change a bit.
#
# usage: tests/train/weights_hashes.sh BUILD [MPIEXEC [FLAGS]]     BUILD: a build directory of all stages
set -u
export LC_ALL=C
if [ $# -lt 1 ]; then
    sed -n '5s/^# //p' "$0" >&2
    exit 2
fi
build=$1
shift
[ $# -gt 0 ] || set -- mpiexec
export OPENBLAS_NUM_THREADS=1
runs=( # of 12 steps each
    "--model mlp --batch-size 50"
    "--model mlp --activation relu --optimizer adamw --batch-size 50"
    "--model mlp-toy --batch-size 7"
    "--model gpt --layers 2 --width 64 --context 32 --batch-size 8"
    "--model gpt --layers 2 --width 64 --context 32 --batch-size 8 --optimizer sgd --clip-grad-norm 1"
)
later=( # flags that only later stages have
    "2 --model mlp --batch-size 50 --bucket-cap-mb 0.1"
    "3 --model gpt --layers 2 --width 64 --context 32 --batch-size 8 --find-unused-parameters --bucket-cap-mb 0.05"
    "4 --model gpt --layers 2 --width 64 --context 32 --batch-size 12 --accumulate 3"
    "4 --model gpt --layers 2 --width 64 --context 32 --batch-size 8 --precision bf16"
    "4 --model mlp --batch-size 50 --precision fp16 --accumulate 2"
)

# hash STAGE RANKS FLAGS
hash() {
    local program
    program=$(echo "$build"/stage"$1"_*/train)
    # shellcheck disable=SC2086 # a list of flags
    printf '%s %s ranks %s: %s\n' "$1" "$2" "$3" \
        "$("${MPIEXEC[@]}" -n "$2" "$program" $3 --steps 12 --eval-samples 1 --allreduce ordered 2>&1 </dev/null |
            grep -a -m 1 -E '^ +weights|error:|fault:')"
}

MPIEXEC=("$@")
for ranks in 1 2 3; do
    for stage in 1 2 3 4; do
        for run in "${runs[@]}"; do
            hash "$stage" "$ranks" "$run"
        done
        for run in "${later[@]}"; do
            [ "$stage" -lt "${run%% *}" ] || hash "$stage" "$ranks" "${run#* }"
        done
    done
done
