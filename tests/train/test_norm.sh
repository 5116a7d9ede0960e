#!/usr/bin/env bash
# test_norm.sh TRAIN [MPIEXEC]: --norm. Over the samples of all ranks (sync-batch), the weights and the running statistics
# are those of one process: with uneven batches, micro-batches, ranks without samples, resumed. Over a rank's own (batch),
# all ranks have rank 0's running statistics.
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
train=$1 mpiexec=${2:-mpiexec}
stage=$("$train" --help | sed -n '1s/.*stage \([1-9]\) .*/\1/p')
accumulate=() levels=("")
[ "$stage" -lt 4 ] || accumulate=(--accumulate 2)
[ "$stage" -lt 5 ] || levels=("--zero 1" "--zero 2" "--zero 3")

about() { echo "$ranks ranks: "; }

# run ARGUMENTS...: trains the toy model; sets status, and hash of the weights.
run() {
    : >"$scratch/json"
    # shellcheck disable=SC2086 # MPIEXEC_FLAGS is a list
    timeout -k 2 60 "$mpiexec" ${MPIEXEC_FLAGS:-} -n "$ranks" "$train" --model mlp-toy --timeout 20 "$@" \
        --json "$scratch/json" >"$scratch/out" 2>"$scratch/err"
    status=$?
    hash=$(jq -r .weights_hash "$scratch/json" 2>/dev/null)
}

trained() {
    run "$@"
    [ "$status" -eq 0 ] || fail "$*: ended with status $status; usual cause: statistics that are not those of all ranks'" \
        "samples, or a backward pass that lacks its collective"
}

# same HASH WHAT
same() {
    [ "$hash" = "$1" ] || fail "$2: other weights ($hash, not $1)"
}

refused() { # PATTERN ARGUMENTS...
    run "${@:2}"
    [ "$status" -ne 0 ] || fail "${*:2}: expected an error"
    grep -Eq "^train: (error|fault): .*$1" "$scratch/err" || fail "${*:2}: no line matches: $1"
}

# An epoch of 1000 samples ends with a batch of 20, of which the ranks' shares are uneven.
sync=(--norm sync-batch --batch-size 70 --lr 0.05)
ranks=3
# shellcheck disable=SC2086 # a flag and its value
for level in "${levels[@]}"; do
    trained "${sync[@]}" --steps 20 $level --allreduce ordered --verify
    ordered=$hash
    trained "${sync[@]}" --steps 20 $level --allreduce shm
    same "$ordered" "--allreduce shm"
done
trained "${sync[@]}" --steps 20 "${accumulate[@]}" --momentum 0.9 --allreduce ordered --verify --check-every 1
whole=$hash
trained "${sync[@]}" --steps 9 "${accumulate[@]}" --momentum 0.9 --allreduce ordered --save "$scratch/checkpoint"
trained "${sync[@]}" --steps 20 "${accumulate[@]}" --momentum 0.9 --allreduce ordered --resume "$scratch/checkpoint" --verify
same "$whole" "resumed (running statistics are saved, too)"
trained --norm sync-batch --steps 5 --batch-size 3 --verify     # one sample on each rank
trained --norm batch --batch-size 70 --steps 20 --check-every 1 # all ranks have equal buffers
trained --norm sync-batch --batch-size 30 --epochs 1 --rank-samples 100,37,0 --join --verify
trained --norm batch --batch-size 30 --epochs 1 --rank-samples 100,37,0 --join --check-every 1
# Rank 0 never has a sample, but rank 1 does: the running statistics are rank 1's, and no longer the first ones.
trained --norm batch --batch-size 30 --epochs 1 --rank-samples 0,300,300 --join --save "$scratch/without"
file=$scratch/without length=$(od -A n -t u8 -N 8 "$scratch/without")
offset=$(head -c $((8 + length)) "$file" | tail -c +9 | jq '."bn1.running_var".data_offsets[0]')
[ "$(od -A n -t f4 -j $((8 + length + offset)) -N 4 "$file" | tr -d ' ')" != 1 ] ||
    fail "the running statistics have not moved: they are those of a rank without samples"
refused "a single sample on one rank, which has no variance" --norm batch --batch-size 3 --steps 2
refused "step 3 of an epoch has a micro-batch with a single sample" --norm batch --batch-size 333 --epochs 1
[ ! -s "$scratch/out" ] || fail "a last batch of a single sample on each rank: seen only after steps were trained"
trained --norm batch --batch-size 333 --steps 3
trained --norm batch --batch-size 30 --steps 2 --save "$scratch/normalized"
refused "normalized: .*--norm batch or sync-batch" --batch-size 30 --steps 4 --resume "$scratch/normalized"
trained --norm sync-batch --batch-size 30 --steps 4 --resume "$scratch/normalized" # it says so
grep -q -- "--norm" "$scratch/err" "$scratch/out" || fail "resumed with another --norm, without a word"
ranks=1
trained --norm batch --batch-size 70 --steps 20 "${accumulate[@]}" --verify exact

finish
