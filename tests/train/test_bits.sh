#!/usr/bin/env bash
# Five stages, one set of bits: with ordered all-reduces, the weights after some steps are the same in every stage, at
# every bucket cap and every level of sharding, on one number of ranks.
#
# usage: test_bits.sh [--all] BUILD MPIEXEC [FLAGS OF MPIEXEC...]     BUILD: holds stage1_naive/train and so on
#
# First the programs built from bits.c: 3 models x 2 optimizers x 2 numbers of micro-batches x 5 caps on 2 and 3 ranks;
# --all: then stages 4 and 5 with 3 models x 3 optimizers x clipping x 3 precisions x 2 caps x 2 ways of adding. Then
# `train` itself, like a user; --all: more of that.
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
all=
if [ "${1:-}" = --all ]; then
    all=yes
    shift
fi
build=$1
shift
launcher=("$@")
stages="stage1_naive stage2_bucketed stage3_overlap stage4_accumulation stage5_sharded"
runs=0

# ---- bits.c: caps are compared within each program, stages here ----

for ranks in 2 3 ${all:+1 4}; do
    for stage in $stages; do
        number=${stage#stage}
        number=${number%%_*}
        program=$build/$stage/bits_stage$number
        "${launcher[@]}" -n "$ranks" "$program" "$scratch/$number" >"$scratch/out" 2>"$scratch/err" </dev/null ||
            fail "$(grep -a FAIL "$scratch/err" || tail -3 "$scratch/err")"
        runs=$((runs + 1))
        if [ "$(wc -l <"$scratch/$number")" -ne $((number < 4 ? 6 : 12)) ]; then
            fail "stage $number on $ranks rank(s) did not write all its hashes"
        elif ! diff "$scratch/1" <(grep ' 1 micro-batch' "$scratch/$number") >"$scratch/diff"; then
            fail "stage $number (>) has other weights than stage 1 (<); usual cause: another order of adding"
            grep '^[<>]' "$scratch/diff"
        elif [ "$number" -gt 4 ] && ! diff "$scratch/4" "$scratch/$number" >"$scratch/diff"; then
            fail "stage $number (>) has other weights than stage 4 (<); usual cause: another order of adding"
            grep '^[<>]' "$scratch/diff"
        fi
    done
done

# product RANKS: every combination in stages 4 and 5; no two of them may give the same weights, or a flag had no effect
product()
{
    local ranks=$1 number program
    for number in 4 5; do
        program=$(echo "$build"/stage"${number}"_*/bits_stage"$number")
        "${launcher[@]}" -n "$ranks" "$program" "$scratch/$number" --product >"$scratch/out" 2>"$scratch/err" \
            </dev/null || fail "$(grep -a FAIL "$scratch/err" || tail -3 "$scratch/err")"
        tail -1 "$scratch/err"
        runs=$((runs + 1))
    done
    if ! diff "$scratch/4" "$scratch/5" >"$scratch/diff"; then
        fail "stage 5 (>) has other weights than stage 4 (<)"
        grep '^[<>]' "$scratch/diff"
    fi
    if [ "$(sed 's/.*: //' "$scratch/4" | sort -u | wc -l)" -ne 108 ]; then
        fail "108 combinations of flags on $ranks rank(s) should give 108 different hashes"
        awk -F': ' '{ cases[$2] = cases[$2] "\n" $0; count[$2]++ }
            END { for (hash in count) if (count[hash] > 1) print cases[hash] }' "$scratch/4"
    fi
}

for ranks in 1 2 3 4; do
    [ -z "$all" ] || product $ranks
done

# ---- train ----

# train_hash STAGE RANKS ARGUMENTS...: the weights' hash of one run, or the reason why there is none
train_hash()
{
    local stage=$1 ranks=$2
    shift 2
    rm -f "$scratch/json"
    "${launcher[@]}" -n "$ranks" "$build/$stage/train" "$@" --steps 4 --batch-size 24 --lr 0.01 --eval-samples 8 \
        --json "$scratch/json" >"$scratch/out" 2>"$scratch/err" </dev/null || {
        echo "run failed: $(tail -1 "$scratch/err") $(grep '^verify:' "$scratch/out")"
        return
    }
    jq -r .weights_hash "$scratch/json"
}

# same_bits_sharded RANKS "ARGUMENTS" EXPECTED LEVELS "CAPS"...: stage 5 at these levels; caps as flags, "" for the default
same_bits_sharded()
{
    local ranks=$1 arguments=$2 expected=$3 levels=$4 got level caps
    shift 4
    for level in $levels; do
        for caps in "$@"; do
            # shellcheck disable=SC2086
            got=$(train_hash stage5_sharded "$ranks" $arguments --allreduce "$allreduce" --zero "$level" $caps)
            runs=$((runs + 1))
            [ "$got" = "$expected" ] || fail "stage5_sharded, $ranks rank(s), $arguments, --zero $level $caps," \
                "$allreduce: $got, but $first: $expected"
        done
    done
}

# same_bits RANKS "ARGUMENTS" CAPS...: one hash in all stages (with --accumulate: from stage 4 on); each cap is
# "FIRST:OTHERS" in MiB
same_bits()
{
    local ranks=$1 arguments=$2 expected got stage cap first=stage1_naive
    shift 2
    [[ $arguments != *--accumulate* ]] || first=stage4_accumulation
    [[ $arguments != *-dtype* && $arguments != *--precision* ]] || first=stage4_accumulation
    # the arguments are a list of words on purpose
    # shellcheck disable=SC2086
    expected=$(train_hash $first "$ranks" $arguments --allreduce "$reference" --verify exact)
    runs=$((runs + 1))
    [[ $expected =~ ^[0-9a-f]{16}$ ]] || fail "$first, $ranks rank(s), $arguments: $expected"
    for stage in stage2_bucketed stage3_overlap stage4_accumulation; do
        for cap in "$@"; do
            [ "${stage:5:1}" -ge "${first:5:1}" ] || continue
            # shellcheck disable=SC2086
            got=$(train_hash $stage "$ranks" $arguments --allreduce "$allreduce" --first-bucket-mb "${cap%:*}" \
                --bucket-cap-mb "${cap#*:}")
            runs=$((runs + 1))
            [ "$got" = "$expected" ] ||
                fail "$stage, $ranks rank(s), $arguments, bucket caps $cap MiB, $allreduce: $got," \
                    "but $first: $expected"
        done
    done
    same_bits_sharded "$ranks" "$arguments" "$expected" "$levels" "" "--first-bucket-mb ${1%:*} --bucket-cap-mb ${1#*:}"
}

gpt="--model gpt --layers 2 --heads 2 --width 32 --context 16"
momentum="--optimizer sgd --momentum 0.9"
mixed="--precision fp16 --grad-dtype bf16 --loss-scale 64 --clip-grad-norm 0.3"
allreduce=ordered reference=ordered
levels="1 2 3"
if [ -z "$all" ]; then
    same_bits 3 "--model mlp-toy $momentum --clip-grad-norm 0.05" 0:0 100:100
    same_bits 2 "$gpt --optimizer adamw $mixed --accumulate 2" 0:0
    same_bits 3 "$gpt $momentum --mask-tokens 0.7 --dropout 0.3" 0.001:0.01
    allreduce=hierarchical reference=hierarchical
    same_bits 4 "$gpt $momentum --clip-grad-norm 0.3 --ranks-per-host 2" 0.001:0.01
    allreduce=ordered reference=ordered
    allreduce=shm
    same_bits 2 "$gpt --optimizer adamw --accumulate 2 --mask-tokens 0.7 --dropout 0.3" 0:0
    allreduce=mpi
    same_bits 2 "--model mlp-toy --optimizer adamw" 0.0001:0.001
else
    for ranks in 1 2 3 4; do
        for model in "--model mlp-toy" "--model mlp --hidden 48,32" "$gpt"; do
            allreduce=ordered
            same_bits $ranks "$model $momentum" 0:0 0.001:0.01 100:100
            same_bits $ranks "$model --optimizer adamw $mixed --accumulate 3" 0:0
            same_bits $ranks "$model --optimizer sgd --precision bf16 --grad-dtype fp16" 100:100
            allreduce=shm
            same_bits $ranks "$model --optimizer adamw --accumulate 2" 0.001:0.01
            [ $ranks -gt 2 ] && continue
            allreduce=mpi
            same_bits $ranks "$model --optimizer adamw" 0.001:0.01
        done
    done
fi
finish
