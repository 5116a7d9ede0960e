#!/usr/bin/env bash
# test_collectives.sh: tools/bench/collectives writes a row to the CSV for each algorithm and size, its sums of freshly
# written data are right, and the status is 1 when one is not. So does bench/peer_all_reduce.cpp. Times are not checked.
#
# usage: test_collectives.sh COLLECTIVES COLLECTIVES_THAT_ADD_WRONGLY COLLECTIVES_OVER_A_PLAYED_NCCL MPICC
#                            MPIEXEC [FLAGS...]
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
collectives=$1 wrong=$2 played=$3 mpicc=$4
shift 4
bench=$(cd "$(dirname "$0")/../../tools/bench" && pwd)
launcher=("$@")
quick=(--samples 3 --budget 0.01)

# ends STATUS PROGRAM WORDS...: on 2 ranks, within a minute; output goes to $scratch/out and $scratch/err.
ends() {
    local expected=$1 status=0
    shift
    timeout -k 5 60 "${launcher[@]}" -n 2 "$@" >"$scratch/out" 2>"$scratch/err" </dev/null || status=$?
    [ "$status" -eq "$expected" ] ||
        fail "${*:2}: expected status $expected, got $status (124: still running after 60 s)"
}

# ---- right sums: every operation and algorithm, three sizes ----
ends 0 "$collectives" --sizes 4,1K,100K --operations all-reduce,reduce-scatter,all-gather "${quick[@]}" \
    --csv "$scratch/csv"
[ "$(head -n 1 "$scratch/csv")" = \
    algorithm,ranks,bytes,samples,calls,min_us,p50_us,p95_us,left_p50_us,algbw_gb_s,busbw_gb_s,ratio_to_MPI_Allreduce,wrong,operation ] ||
    fail "the CSV's first line is: $(head -n 1 "$scratch/csv")"
for algorithm in MPI_Allreduce mpi root ring recursive-doubling ordered shm shm-staged; do
    for bytes in 4 1024 102400; do
        for operation in all-reduce reduce-scatter all-gather; do
            [ "$(grep -c "^$algorithm,2,$bytes,.*,$operation$" "$scratch/csv")" -eq 1 ] ||
                fail "no row, or several, for $operation, $algorithm, $bytes bytes"
        done
    done
    [ "$(grep -c "^$algorithm  *[0-9.]*  *[0-9.inf]*  *[0-9]*%  *[0-9]*%$" "$scratch/out")" -eq 3 ] ||
        fail "$algorithm: no alpha and bandwidth were fitted for one of three operations"
done
awk -F, -v OFS=, 'NR > 1 && (NF != 14 || $13 != 0 || $4 < 1 || $5 < 1 || !($6 > 0 && $6 <= $7 && $7 <= $8 && $9 > 0)) {
    print "FAIL: a row that cannot be: wrong sums, or times that are not 0 < min <= p50 <= p95: " $0; bad = 1 }
    END { exit bad }' "$scratch/csv" || failures=$((failures + 1))

for head in '# processors that rank 0, 1, ... may run on: [0-9?]' '# caches, and the processors that share them:' \
    '# a meeting of all ranks in memory takes [0-9.]* us'; do
    [ "$(grep -c "^$head" "$scratch/out")" -eq 1 ] || fail "the output's head lacks: $head"
done

# ---- wrong sums: one element, on one rank, in each call with fresh data, the first of a sample included ----
for operation in all-reduce reduce-scatter all-gather; do
    ends 1 "$wrong" --sizes 4,1K --operations "$operation" --algorithms MPI_Allreduce,ring "${quick[@]}" \
        --csv "$scratch/wrong.csv"
    [ "$(awk -F , '/^ring,/ && $13 == $4 * ($5 + 1)' "$scratch/wrong.csv" | wc -l)" -eq 2 ] ||
        fail "a wrong element was not counted: $(cat "$scratch/wrong.csv")"
    [ "$(sed -n "s/^MPI_Allreduce,.*,\(.*\),$operation$/\1/p" "$scratch/wrong.csv" | sort -u)" = 0 ] ||
        fail "a wrong element was counted for MPI's own call"
done
# Each call has the result of the call before: every call has other data, so it is wrong.
WRONG_SUM=stale ends 1 "$wrong" --sizes 1K --algorithms ring "${quick[@]}" --csv "$scratch/wrong.csv"
awk -F , '/^ring,/ { exit !($13 >= 256 * $4 * $5) }' "$scratch/wrong.csv" ||
    fail "the sum of the call before was not noticed: $(cat "$scratch/wrong.csv")"

# ---- the peers' program, here with the MPI library of lockstep; and with its sums spoiled ----
# peer WORDS...: builds $scratch/peer with these files, too.
peer() {
    "$mpicc" -O1 "$bench/peer_all_reduce.cpp" "$bench/fresh.c" "$bench/ranks.c" "$@" -lstdc++ -o "$scratch/peer" \
        2>"$scratch/err" || fail "peer_all_reduce.cpp does not compile"
}
if command -v g++ >/dev/null; then
    peer
    ends 0 "$scratch/peer" 4 1024
    [ "$(grep -c '^\(4\|1024\) [0-9.]* [0-9.]*$' "$scratch/out")" -eq 2 ] ||
        fail "peer_all_reduce has not one line of two times for each size: $(cat "$scratch/out")"
    cat >"$scratch/spoil.c" <<'END'
#include <mpi.h>

int MPI_Allreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    int error = PMPI_Allreduce(send, receive, count, type, op, comm);
    if (type == MPI_FLOAT)
        ((float *)receive)[count / 2] += 1;
    return error;
}
END
    peer "$scratch/spoil.c"
    ends 3 "$scratch/peer" 1024
else
    echo "note: no C++ compiler: peer_all_reduce.cpp is not tested"
fi

# ---- a file that is not to be replaced: found before the measurement ----
echo mine >"$scratch/mine.csv"
chmod 444 "$scratch/mine.csv"
ends 2 "$collectives" --sizes 4 --algorithms ring "${quick[@]}" --csv "$scratch/mine.csv"
grep -q "^collectives: error: --csv $scratch/mine.csv: cannot be written: it is write-protected" "$scratch/err" ||
    fail "no line says that the CSV is write-protected: $(cat "$scratch/err")"

# ---- an emulated link: 1 MB at 0.1 Gbit/s takes 80 ms at least, and 2 messages of 5 ms ----
ends 0 "$collectives" --sizes 1000000 --algorithms ring "${quick[@]}" --wire 0.1,5000 --csv "$scratch/wire.csv"
awk -F, 'NR == 2 { exit !($6 >= 90000) } END { exit NR != 2 }' "$scratch/wire.csv" ||
    fail "1 MB is faster than the emulated link: $(tail -n 1 "$scratch/wire.csv")"

# ---- NCCL, imitated by tests/gpu/fake_nccl: on a GPU's memory, beside the others ----
ends 0 "$played" --sizes 4,1K,100K --operations all-reduce,reduce-scatter,all-gather \
    --algorithms MPI_Allreduce,shm,nccl "${quick[@]}" --csv "$scratch/nccl.csv"
[ "$(sed -n 's/^nccl,2,\([0-9]*\),.*,0,[a-z-]*$/\1/p' "$scratch/nccl.csv" | paste -sd ' ')" = \
    "4 1024 102400 4 1024 102400 4 1024 102400" ] ||
    fail "nccl has not nine rows without wrong sums: $(cat "$scratch/nccl.csv")"
FAKE_NCCL=illegal ends 1 "$played" --sizes 4 --algorithms nccl "${quick[@]}"
grep -q 'illegal memory access' "$scratch/err" ||
    fail "nccl does not use NCCL: its kernels crash, but the run ends well"

# ---- mistakes ----
ends 2 "$collectives" --algorithms mpi,nccl
grep -q -- 'without NCCL; collectives_cuda has nccl' "$scratch/err" || fail "nccl in a build without NCCL: no message"
ends 2 "$collectives" --algorithms mpi,tree
grep -q -- '--algorithms: there is no tree' "$scratch/err" || fail "an unknown algorithm is not named"
ends 2 "$collectives" --operations all-reduce,scatter
grep -q -- '--operations: there is no scatter' "$scratch/err" || fail "an unknown operation is not named"
ends 2 "$collectives" --wire 1
grep -q -- '--wire: 1 is no link' "$scratch/err" || fail "half a link is not named"
ends 2 "$collectives" --sizes 1X
grep -q -- '--sizes: 1X is no size' "$scratch/err" || fail "a wrong size is not named"

finish
