#!/usr/bin/env bash
# test_ranks_differ.sh TRAIN MPIEXEC [OTHER_TRAIN]: ranks of one job that were started with different flags, files or
# programs. One line says which and shows both sides, the status is 2, nobody hangs, and nothing was trained.
# TRAIN is stage 4's; OTHER_TRAIN another stage's.
set -u
train=$1 mpiexec=$2 other_train=${3:-}
limit=30 failures=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
common=(--model mlp-toy --timeout 20)

fail() {
    failures=$((failures + 1))
    echo "FAIL: $1"
    sed 's/^/     stderr: /' "$work/err" | head -n 5
}

# refused NAME PATTERN: what has just run, with $status, was refused as it should be.
refused() {
    [ "$status" -ne 124 ] || fail "$1: still running after $limit s"
    [ "$status" -eq 2 ] || fail "$1: expected status 2, got $status"
    grep -Eq "^train: error: .*$2" "$work/err" || fail "$1: no line matches: $2"
    [ ! -s "$work/out" ] || fail "$1: something was printed before the ranks were compared"
}

# differ PATTERN WORDS...: rank 0 without WORDS, rank 1 with them; then the other way round.
differ() {
    local pattern=$1
    shift
    # shellcheck disable=SC2086 # MPIEXEC_FLAGS is a list
    {
        timeout -k 2 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n 1 "$train" "${common[@]}" : \
            -n 1 "$train" "${common[@]}" "$@" >"$work/out" 2>"$work/err"
        status=$?
        refused "rank 1 alone has $*" "$pattern is .* on rank 0, but .* on rank 1"
        timeout -k 2 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n 1 "$train" "${common[@]}" "$@" : \
            -n 1 "$train" "${common[@]}" >"$work/out" 2>"$work/err"
        status=$?
        refused "rank 0 alone has $*" "$pattern is .* on rank 0, but .* on rank 1"
    }
}

# Flags that change how ranks talk to each other, and so how they would compare their flags.
differ '--debug-collectives' --debug-collectives
differ '--allreduce \(its number\)' --allreduce ring
differ '--allreduce \(its number\)' --allreduce shm
# Flags that make one rank do what the others do not.
differ '--verify \(its number\)' --verify
differ '--trace \(whether given\)' --trace "$work/trace"
differ '--check-every' --check-every 1
# Flags that make ranks train differently.
differ '--rank-samples \(a fingerprint\)' --rank-samples 200,100
differ '--lr' --lr 0.5
differ '--precision \(its number\)' --precision bf16
differ '--grad-dtype \(its number\)' --grad-dtype fp16 # and not --loss-scale, whose default follows from it

# Files that differ in what they hold, under names that differ here and need not on two hosts.
# files NAME PATTERN WORDS-OF-RANK-0 WORDS-OF-RANK-1
files() {
    # shellcheck disable=SC2086 # lists of words
    timeout -k 2 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n 1 "$train" --timeout 20 $3 : -n 1 "$train" --timeout 20 $4 \
        >"$work/out" 2>"$work/err"
    status=$?
    refused "$1" "the ranks read different files: $2"
}

gpt="--model gpt --layers 1 --heads 2 --width 16 --context 16 --batch-size 4 --steps 2"
seq 1 2000 >"$work/short"
seq 1 3000 >"$work/long"
files "other data" 'samples to train on: [0-9]+ on rank 0, [0-9]+ on rank 1' "$gpt --data $work/short" "$gpt --data $work/long"
for steps in 2 3; do
    # shellcheck disable=SC2086
    "$mpiexec" ${MPIEXEC_FLAGS:-} -n 2 "$train" "${common[@]}" --steps "$steps" --save "$work/after$steps" >/dev/null 2>"$work/err" ||
        fail "saving a checkpoint"
done
files "other checkpoints" 'steps done before \(--resume\): 2 on rank 0, 3 on rank 1' \
    "--model mlp-toy --steps 9 --resume $work/after2" "--model mlp-toy --steps 9 --resume $work/after3"

# Another stage's program.
if [ -n "$other_train" ]; then
    # shellcheck disable=SC2086
    timeout -k 2 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n 1 "$train" "${common[@]}" : -n 1 "$other_train" "${common[@]}" \
        >"$work/out" 2>"$work/err"
    status=$?
    refused "another stage's program" 'the stage \(program\) is 4 on rank 0, but [123] on rank 1'
fi

# A program built with one MPI under the launcher of another: every rank would believe that it is alone.
PMI_SIZE=2 "$train" "${common[@]}" >"$work/out" 2>"$work/err"
status=$?
refused "another MPI's launcher" "the launcher started 2 ranks, but this program's MPI library sees 1"
# The same under Slurm, whose srun says nothing to an MPI that it does not know ...
SLURM_STEP_NUM_TASKS=2 "$train" "${common[@]}" >"$work/out" 2>"$work/err"
status=$?
refused "srun without --mpi" "srun started 2 ranks, but this program's MPI library sees 1: .*--mpi=pmix"
# ... but not where mpiexec has started this rank, and srun only mpiexec's helpers.
# shellcheck disable=SC2086
timeout -k 2 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n 1 env SLURM_STEP_NUM_TASKS=2 "$train" "${common[@]}" --steps 2 \
    >"$work/out" 2>"$work/err" || fail "mpiexec on 2 hosts of Slurm, and 1 rank: ended with status $?"

echo "$failures failure(s)"
[ "$failures" -eq 0 ]
