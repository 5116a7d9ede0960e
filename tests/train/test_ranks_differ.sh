#!/usr/bin/env bash
# test_ranks_differ.sh [--every-flag] TRAIN MPIEXEC [OTHER_TRAIN]: ranks of one job that were started with different
# flags, files or programs. One line names the difference and shows both sides, the status is 2, no rank hangs, and no
# step was trained. --every-flag tries all flags that TRAIN's --help lists, and nothing else; without it, a few.
# TRAIN is stage 4's; OTHER_TRAIN another stage's.
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
work=$scratch
every_flag=
[ "$1" != --every-flag ] || { every_flag=yes && shift; }
train=$1 mpiexec=$2 other_train=${3:-}
limit=30
toy="--model mlp-toy --timeout 20 --epochs 1"
gpt="--model gpt --layers 1 --heads 2 --width 16 --context 16 --batch-size 4 --steps 2 --timeout 20"
help=$("$train" --help)

# run WORDS-OF-RANK-0 WORDS-OF-RANK-1 [PROGRAM-OF-RANK-1]
run() {
    # shellcheck disable=SC2086 # lists of words
    timeout -k 2 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n 1 "$train" $1 : -n 1 "${3:-$train}" $2 \
        >"$work/out" 2>"$work/err"
    status=$?
}

# refused NAME PATTERN: checks that the last run, which ended with $status, was refused correctly.
refused() {
    [ "$status" -ne 124 ] || fail "$1: still running after $limit s"
    [ "$status" -eq 2 ] || fail "$1: expected status 2, got $status"
    grep -Eq "^train: error: .*$2" "$work/err" || fail "$1: no line matches: $2"
    [ ! -s "$work/out" ] || fail "$1: something was printed before the ranks were compared"
}

# ---- flags ----

# value_of FLAG ARGUMENT HELP: a value that FLAG accepts, taken from the help; ARGUMENT is its name there.
value_of() {
    local default
    default=$(sed -n 's/.*\[\([^ ]*\)\].*/\1/p' <<<"$3")
    [ -n "$default" ] || default=$(grep -oE -- "--$1 +[0-9][^ ]*" <<<"${help##*Shapes:}" | head -1) # "--heads 4"
    [ -n "$default" ] || default=$(grep -E -- "--$1 +.*[0-9]" <<<"${help##*depend on the model:}" | # a line of a table
        grep -oE ' [0-9][^ ]*' | head -1)
    default=${default##* }
    default=${default%,}
    case $2 in
    *[\|]*) echo "${2%%|*}" ;;
    FILE | PATH) echo "$work/$1" ;;
    *) if [ -n "$default" ]; then echo "$default"; else sed 's/,\.\.\.//; s/[^,]*[^,]/1/g' <<<"$2"; fi ;;
    esac
}

# per_rank FLAG ARGUMENT VALUE: according to the help ranks may differ in this flag, so they must train.
per_rank() {
    local base=$toy same=
    [ "$1" != data ] || base=$gpt
    case $2 in FILE | PATH) same="--$1 $3" && cp "$3" "$3.copy" && set -- "$1" "$2" "$3.copy" ;; esac
    run "$base $same" "$base --$1 $3"
    [ "$status" -eq 0 ] || fail "--$1 is per rank, but a run in which it differs ended with status $status"
}

# differs FLAG: only rank 1 has it, or only rank 0. If the stage refuses the flag, the rank that has it does so.
differs() {
    local line argument text value base words
    line=$(sed -nE "s/^  --$1( [^ ]+)? +(.*)/\1@\2/p" <<<"$help" | head -1)
    argument=${line%%@*} text=${line#*@}
    argument=${argument# }
    case $argument in '' | \[*\]) words=--$1 ;; *) value=$(value_of "$1" "$argument" "$text") words="--$1 $value" ;; esac
    case $text in *'(per rank)'*) per_rank "$1" "$argument" "$value" && return ;; esac
    for base in "$toy" "$gpt" "$toy --save $work/save" "$toy --precision fp16" "$toy --eval-every 1" \
        "$toy --log $work/log" "$toy --allreduce hierarchical"; do
        case $text in gpt*) [ "$base" = "$gpt" ] || continue ;; esac
        run "$base" "$base $words"
        ! grep -q "differently: --$1 is .* on rank 0, but .* on rank 1" "$work/err" || break
    done
    if grep -q "^train: error: --$1: this program computes on the CPU" "$work/err"; then
        refused "$words: not on a CPU" "--$1: "
        return
    fi
    refused "rank 1 alone has $words" "the ranks were started differently: --$1 is .* on rank 0, but .* on rank 1"
    run "$base $words" "$base"
    refused "rank 0 alone has $words" "the ranks were started differently: --$1 is .* on rank 0, but .* on rank 1"
}

seq 1 2000 >"$work/data"
for name in resume:1 other:2; do # two checkpoints of one step
    # shellcheck disable=SC2086
    "$mpiexec" ${MPIEXEC_FLAGS:-} -n 2 "$train" --model mlp-toy --steps 2 --seed "${name#*:}" --save "$work/${name%:*}" \
        >/dev/null 2>"$work/err" || fail "saving a checkpoint"
done

may_differ=$(grep '(per rank)$' <<<"$help" | grep -oE '^  --[a-z-]+' | xargs)
[ "$may_differ" = "--data --resume" ] || fail "why do ranks that differ in them train the same: $may_differ"
if [ -n "$every_flag" ]; then
    listed=$(sed -nE 's/^  --([a-z0-9-]+).*/\1/p' <<<"${help%%Defaults that*}")
    [ "$(wc -w <<<"$listed")" -ge 50 ] || fail "the help lists too few flags: $listed"
    for flag in ${listed/help/}; do # of --help on one rank: below
        differs "$flag"
    done
    echo "$(wc -w <<<"$listed") flags, $failures failure(s)"
    exit "$((failures > 0))"
fi
for flag in debug-collectives allreduce trace heads data resume; do
    differs "$flag"
done

# Typing the default's number is not the same as not typing it: only the default is shortened to fit the run.
run "$gpt --steps 200" "$gpt --steps 200 --warmup-steps 100"
refused "a default typed" "differently: --warmup-steps is not given on rank 0, but 100 on rank 1"

# Only one rank has made a mistake.
run "$toy" "$toy --no-such-flag"
refused "a wrong flag" '--no-such-flag: no such flag.* \(rank 1\)'
run "$gpt --data $work/data" "$gpt --data $work/missing"
refused "a missing file" "--data: there is no file '$work/missing'.* \(rank 1\)"
run "$toy" "$toy --help"
[ "$status" -eq 1 ] || fail "--help on one rank: expected status 1, got $status"
grep -q 'fault: rank 0: .* rank 1 has left the group' "$work/err" || fail "--help on one rank: no line reports it"

# ---- files, under different names here; on two hosts the names may be equal ----

# idx FILE DIMENSIONS COUNT [BYTES]: an IDX file of COUNT items: labels as given, or black images.
idx() {
    printf '%b' "\0\0\010\0$2\0\0\0\0$3" >"$1"
    if [ "$2" -eq 3 ]; then
        { printf '\0\0\0\34\0\0\0\34' && head -c $((784 * $3)) /dev/zero; } >>"$1"
    else
        printf '%b' "$4" >>"$1"
    fi
}

# pictures DIRECTORY LABELS: four to train on and four to evaluate on.
pictures() {
    mkdir "$1"
    idx "$1/train-images-idx3-ubyte" 3 4
    idx "$1/train-labels-idx1-ubyte" 1 4 "$2"
    idx "$1/t10k-images-idx3-ubyte" 3 4
    idx "$1/t10k-labels-idx1-ubyte" 1 4 '\00\01\02\03'
}

seq 1 3000 >"$work/long"
tr 1 2 <"$work/data" >"$work/altered"
run "$gpt --data $work/data" "$gpt --data $work/long"
refused "a longer text" 'the ranks read different files: the data to train on is [0-9]+ samples, .* on rank 0, but [0-9]+ '
run "$gpt --data $work/data" "$gpt --data $work/altered"
refused "another text" 'the data to train on is 499 samples, checksum .* on rank 0, but 499 samples, checksum .* on rank 1'
pictures "$work/pictures" '\00\01\02\03'
pictures "$work/swapped" '\01\00\02\03'
run "--data $work/pictures --batch-size 2 --steps 1" "--data $work/swapped --batch-size 2 --steps 1"
refused "swapped labels" 'the data to train on is 4 samples, checksum .* on rank 0, but 4 samples, checksum .* on rank 1'

toy="--model mlp-toy --steps 9 --timeout 20"
run "$toy --resume $work/resume" "$toy --resume $work/other"
refused "another checkpoint" 'the checkpoint \(--resume\) is of step 2, .* on rank 0, but of step 2, .* on rank 1'
run "$toy --resume $work/resume" "$toy"
refused "a checkpoint on one rank" 'the checkpoint \(--resume\) is of step 2, .* on rank 0, but none on rank 1'
# Rank 0's weights are broadcast, so the difference is in the optimizer's state. Such a rate leaves weights unchanged.
for batch in 50 100; do
    "$train" --model mlp-toy --steps 1 --lr 1e-12 --momentum 0.9 --batch-size "$batch" --save "$work/after$batch" \
        >/dev/null 2>"$work/err" || fail "saving a checkpoint"
done
run "$toy --momentum 0.9 --resume $work/after50" "$toy --momentum 0.9 --resume $work/after100"
refused "another optimizer state" 'the checkpoint \(--resume\) is of step 1, .* on rank 0, but of step 1, .* on rank 1'

# ---- programs ----

if [ -n "$other_train" ]; then
    run "$toy" "$toy" "$other_train"
    refused "another stage" 'the program is that of stage 4 \(cpu, mpi\) on rank 0, but that of stage [123] \(cpu, mpi\) on rank 1'
fi

# A program that was built with one MPI, under another MPI's launcher: every rank would train alone.
# shellcheck disable=SC2086
{
    PMI_SIZE=2 PMI_RANK=0 "$train" $toy >"$work/out" 2>"$work/err"
    status=$?
    refused "another MPI's launcher" "the launcher started 2 ranks \(PMI_SIZE\), but this program's MPI library sees 1: .*; or unset PMI_SIZE"
    # The same under Slurm, whose srun sets no variables for an MPI that it does not support ...
    SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 "$train" $toy >"$work/out" 2>"$work/err"
    status=$?
    refused "srun without --mpi" "srun started 2 ranks \(SLURM_STEP_NUM_TASKS\), but this program's MPI library sees 1: .*--mpi=pmix"
    # ... but not if mpiexec has started this rank, and srun only mpiexec's helpers.
    timeout -k 2 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n 1 env SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 "$train" $toy \
        >"$work/out" 2>"$work/err" || fail "mpiexec on 2 hosts of Slurm, and 1 rank: ended with status $?"
}

# One rank computes with other kernels: it trains, and a note names both.
for core in Prescott Sandybridge; do # two that every x86-64 processor of the last ten years can run
    # shellcheck disable=SC2086
    timeout -k 2 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n 1 env OPENBLAS_CORETYPE=Prescott "$train" $toy : \
        -n 1 env OPENBLAS_CORETYPE=$core "$train" $toy >"$work/out" 2>"$work/err" || fail "kernels of $core: status $?"
    said=$(grep -c 'note: rank 0 computes with .*Prescott kernels, .*, rank 1 with .*Sandybridge kernels, .*exact' "$work/err")
    if ! grep -q 'Prescott kernels' "$work/out"; then
        echo "not run: other kernels on one rank, because this BLAS has no choice of them"
        break
    fi
    [ "$said" -eq $([ "$core" = Prescott ]; echo $?) ] || fail "rank 0 has kernels of Prescott, rank 1 of $core: $said notes"
done

# stale SETTING RANKS: what a shell or a container's settings hold is no launcher's. Trains on RANKS ranks.
stale() {
    local command=(env "$1" "$train")
    [ "$2" -eq 1 ] || command=("$mpiexec" ${MPIEXEC_FLAGS:-} -n "$2" env "$1" "$train")
    # shellcheck disable=SC2086
    timeout -k 2 "$limit" "${command[@]}" $toy >"$work/out" 2>"$work/err" || fail "$1, $2 rank(s): ended with status $?"
    [ "$2" -gt 1 ] || [ "${1#*=}" -eq 1 ] || grep -q "note: $1 is set, but no launcher has given" "$work/err" ||
        fail "$1 without a launcher: no note names it"
}
for setting in PMI_SIZE=4 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_SIZE=4 SLURM_STEP_NUM_TASKS=4; do
    case $setting in PMI*) ;; *) stale "$setting" 2 ;; esac # MPI itself would believe PMI_SIZE
    stale "$setting" 1
done

finish
