#!/usr/bin/env bash
# test_hides_nothing.sh: stages 1 and 2 hide none of their communication, and their summary says so: they begin to wait
# before an all-reduce begins, so it is exactly 0 at any speed. How much stage 3 hides is a matter of time, and
# bench/bucket_sizes.sh measures it; that its all-reduces overlap backward, test_overlap.c sees from the events.
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

# A link that takes longer than the computation: what is hidden by mistake is seen.
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
    echo "FAIL: this stage waits for every all-reduce as it comes, so none can be hidden: expected 0, got $hidden." \
        "Usual cause: not all of the waiting is counted as exposed"
    exit 1
}
