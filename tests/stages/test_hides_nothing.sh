#!/usr/bin/env bash
# test_hides_nothing.sh: stages 1 and 2 hide none of their communication, and their summary must say so. They begin to
# wait before an all-reduce begins, so the hidden part is exactly 0 at any speed. (For stage 3, bench/bucket_sizes.sh
# measures the hidden part, and test_launches.c checks from events that all-reduces overlap backward.)
#
# usage: test_hides_nothing.sh TRAIN MPIEXEC [FLAGS OF MPIEXEC...]
set -u
train=$1
shift
launcher=("$@")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cat "$root"/common/*/*.[ch] >"$scratch/text" # any text will do

# The link takes longer than the computation, so that communication which is hidden by mistake is detected.
timeout -k 5 100 "${launcher[@]}" -n 2 "$train" --model gpt --data "$scratch/text" --batch-size 2 --steps 5 \
    --eval-samples 2 --wire 1,50 --json "$scratch/json" >"$scratch/out" 2>&1 </dev/null || {
    echo "FAIL: the run ended with status $?"
    tail -n 5 "$scratch/out" | sed 's/^/     /'
    exit 1
}
number_of() { # KEY
    sed -n "s/^\t\"$1\":\t\([^,]*\),*\$/\1/p" "$scratch/json"
}
communication=$(number_of comm_ms) exposed=$(number_of exposed_comm_ms) hidden=$(number_of hidden_fraction)
echo "communication $communication ms, exposed $exposed ms, hidden $hidden"
[ "$hidden" = 0 ] || {
    echo "FAIL: this stage waits for every all-reduce at once, so none can be hidden: expected 0, got $hidden." \
        "Usual cause: not all of the waiting is counted as exposed"
    exit 1
}
