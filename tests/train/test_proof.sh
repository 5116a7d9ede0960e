#!/usr/bin/env bash
# test_proof.sh: N ranks train what one process trains on whole batches (--verify), for every seed and with every kernel
# of the BLAS. --verify allows 1e-5; here the largest difference must stay below a tenth of that, because a proof that
# only just passes on this machine may fail on another one.
#
# usage: test_proof.sh quick|seeds|training TRAIN MPIEXEC [FLAGS OF MPIEXEC...]
#   quick      40 steps of mlp, 20 of gpt
#   seeds      mlp: 400 steps, seeds 1 to $SEEDS [20], 2 and 3 ranks, with the kernels that OpenBLAS has for several
#              processors; gpt: 100 steps, seeds 1 to 5
#   training   mlp: the whole training of 10 epochs, which must also end with 88 % of the test pictures right
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
part=$1 train=$2
shift 2
launcher=("$@")
worst=0

# key FILE KEY: a number from the summary
key() {
    sed -n "s/^.*\"$2\":[[:space:]]*\([^,]*\),*\$/\1/p" "$1"
}

# proved RANKS FLAGS...: trains, compares, and checks the difference
proved() {
    local ranks=$1 difference
    shift
    if ! "${launcher[@]}" -n "$ranks" "$train" "$@" --verify --json "$scratch/json" >"$scratch/out" 2>&1 </dev/null; then
        fail "$ranks ranks, $*, OPENBLAS_CORETYPE=${OPENBLAS_CORETYPE-}:"
        grep -E 'error|fault' "$scratch/out" || tail -n 3 "$scratch/out"
        return
    fi
    difference=$(key "$scratch/json" max_abs_diff)
    worst=$(printf '%s\n' "$worst" "$difference" | sort -g | tail -n 1)
    if [ "$(printf '%s\n' "$difference" 1e-6 | sort -g | tail -n 1)" != 1e-6 ]; then
        fail "$ranks ranks, $*, OPENBLAS_CORETYPE=${OPENBLAS_CORETYPE-}: the largest difference from one process is" \
            "$difference; expected at most 1e-6. Usual cause: a gradient that is not the same sum, or an operation" \
            "whose derivative jumps"
    fi
}

# Kernels that this processor can run: "" is OpenBLAS's own choice.
kernels=("")
if grep -q -w avx2 /proc/cpuinfo; then kernels+=(Haswell); fi
if grep -q -w avx512bw /proc/cpuinfo; then kernels+=(SkylakeX); fi

gpt="--model gpt --optimizer sgd --eval-samples 8"
case $part in
    quick)
        proved 2 --model mlp --steps 40 --eval-samples 500
        proved 2 $gpt --steps 20
        ;;
    seeds)
        for OPENBLAS_CORETYPE in "${kernels[@]}"; do
            if [ -n "$OPENBLAS_CORETYPE" ]; then export OPENBLAS_CORETYPE; else unset OPENBLAS_CORETYPE; fi
            for seed in $(seq "${SEEDS:-20}"); do
                for ranks in 2 3; do
                    proved $ranks --model mlp --steps 400 --eval-samples 500 --seed "$seed"
                done
            done
        done
        unset OPENBLAS_CORETYPE
        for seed in 1 2 3 4 5; do
            proved 2 $gpt --steps 100 --seed "$seed"
        done
        ;;
    training)
        proved 2 --model mlp --epochs 10
        accuracy=$(key "$scratch/json" eval_accuracy)
        echo "right: $accuracy of the test pictures"
        if [ "$(printf '%s\n' "${accuracy:-0}" 0.88 | sort -g | head -n 1)" != 0.88 ]; then
            fail "$accuracy of the test pictures are right, expected at least 0.88"
        fi
        ;;
esac
echo "largest difference from one process: $worst"
finish
