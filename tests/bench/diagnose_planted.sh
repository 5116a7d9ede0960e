#!/usr/bin/env bash
# diagnose_planted.sh: plants each cause of slow ranks, and expects scripts/diagnose.sh to name it first.
#
# usage: [KEEP=DIRECTORY] tests/bench/diagnose_planted.sh BUILD [TIMES [CAUSE...]]
# TIMES: how often (1). KEEP: where the figures are written (test_diagnose.sh has some). It needs two idle cores, as it
# measures, and MPICH, for -bind-to.
set -u
build=$1 times=${2:-1}
shift $(($# < 2 ? $# : 2))
here=$(cd "$(dirname "$0")" && pwd)
train=$build/stage3_overlap/train gpt=(--model gpt --batch-size 16) failures=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

diagnose() { "$here/../../scripts/diagnose.sh" --json "$@"; }

plant() { # CAUSE
    case $1 in
        nothing) diagnose -- "${gpt[@]}" ;;
        threads) diagnose -- "${gpt[@]}" --threads 8 ;;
        link) diagnose -- "${gpt[@]}" --wire 0.1,50 ;;
        tiny-buckets) diagnose -- "${gpt[@]}" --wire 10,10000 --bucket-cap-mb 0 --first-bucket-mb 0 ;;
        one-bucket) diagnose -- "${gpt[@]}" --wire 0.5,50 --bucket-cap-mb 100 --first-bucket-mb 100 ;;
        loader) diagnose --program "$build/tests/bench/train_slow_loader" -- --model gpt --batch-size 4 ;;
        slow-rank) TRAIN=$train diagnose --program "$here/slow_rank.sh" -- "${gpt[@]}" ;;
        binding) diagnose --launch "mpiexec -bind-to user:0,0" -- "${gpt[@]}" ;;
        kernel) OPENBLAS_CORETYPE=Prescott diagnose -- --model gpt ;;
        small-model) diagnose -- --model mlp-toy --batch-size 20 ;;
        norm) diagnose -- --model mlp --norm sync-batch --wire 10,2000 ;;
        *) echo "there is no cause $1" >&2; exit 2 ;;
    esac
}

[ $# -gt 0 ] || set -- nothing threads link tiny-buckets one-bucket loader slow-rank binding kernel small-model norm
for cause; do
    for round in $(seq "$times"); do
        start=$SECONDS
        plant "$cause" >"$scratch/json"
        case $? in 0 | 3) ;; *) echo "FAIL: $cause"; failures=$((failures + 1)); continue ;; esac
        named=$(jq -r '.suspects[0].name // (if .cannot_tell then "cannot-tell" else "nothing" end) | gsub(" "; "-")' \
            "$scratch/json")
        echo "planted: $cause; named: $named ($((SECONDS - start)) s)"
        [ -z "${KEEP:-}" ] || cp "$scratch/json" "$KEEP/$cause.$round.json"
        [ "$named" = "$cause" ] && continue
        failures=$((failures + 1))
        echo "FAIL:"
        "$here/../../scripts/diagnose.sh" --figures "$scratch/json"
    done
done
[ $failures -eq 0 ] || { echo "$failures failure(s)"; exit 1; }
