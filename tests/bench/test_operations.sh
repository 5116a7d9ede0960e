#!/usr/bin/env bash
# test_operations.sh: bench/operations measures every kind of operation of a step, adds the rows up, and refuses a wrong
# number of rounds. How fast they are is not checked.
#
# usage: test_operations.sh OPERATIONS
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
operations=$1

"$operations" 1 >"$scratch/table" 2>&1 || fail "it ended with $?: $(cat "$scratch/table")"
for name in 'linear C -> 3C' attention layernorm gelu add embedding cross-entropy; do
    for row in "$name" "$name backward"; do
        grep -q -E "^$row +[1-9][0-9]* +[0-9]" "$scratch/table" || fail "no row '$row': $(cat "$scratch/table")"
    done
done
grep -q '^AdamW ' "$scratch/table" || fail "no row for the optimizer"
# columns from the right: of bound, GB/s, GFLOP/s, ms; the last row has only the first and the last of these
awk '$NF ~ /%$/ && $1 != "all" { sum += $(NF - 3) } $1 == "all" { all = $2 }
    END { exit !(sum > 0 && all > 0.99 * sum - 0.2 && all < 1.01 * sum + 0.2) }' "$scratch/table" ||
    fail "'all' is not the sum of the rows: $(cat "$scratch/table")"
for wrong in 0 100 many 3x '1 2'; do
    # shellcheck disable=SC2086 # two words on purpose
    "$operations" $wrong >"$scratch/out" 2>&1 && fail "operations $wrong: accepted"
    grep -q 'usage: operations' "$scratch/out" || fail "operations $wrong: no usage: $(cat "$scratch/out")"
done
finish
