#!/usr/bin/env bash
# The share of communication that stage 3 hides behind backward, for several bucket sizes, compared with stage 2.
#
#   bench/bucket_sizes.sh [--rounds N] [--build DIR] [--wire GBIT,MICROSECONDS] [--batch-size N] [--caps MB,MB,...]
#
# The GPT, 2 ranks, an emulated link (1,50). All contenders run in turns, round by round. The table shows medians over
# the rounds of each run's own medians, and of the step also the smallest and largest.
set -euo pipefail
export LC_ALL=C # printf rejects a decimal comma
cd "$(dirname "$0")/../.."
source scripts/mpi.sh

rounds=3 build=build wire=1,50 batch=16 caps=0.25,1,4,25 steps=15
usage() { sed -n '2,7s/^# \{0,1\}//p' tools/bench/bucket_sizes.sh; exit 2; }
while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || usage
    case $1 in
        --rounds) rounds=$2 ;;
        --build) build=$2 ;;
        --wire) wire=$2 ;;
        --batch-size) batch=$2 ;;
        --caps) caps=$2 ;;
        *) usage ;;
    esac
    shift 2
done
stop() { echo "bucket_sizes.sh: $*" >&2; exit 2; }
[[ $rounds =~ ^[1-9][0-9]*$ ]] || stop "--rounds $rounds: expected a whole number of at least 1"
command -v jq >/dev/null || stop "jq is missing: apt-get install jq"
for stage in stage2_bucketed stage3_overlap; do
    [ -x "$build/$stage/train" ] || stop "$build/$stage/train is missing: build first, or give --build DIR"
done
unset OPENBLAS_CORETYPE # OpenBLAS chooses the kernels for this processor itself
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# one_run STAGE CAP ROUND
one_run() {
    run_ranks 2 "$build/$1/train" --model gpt --batch-size "$batch" --steps $steps --eval-samples 2 --wire "$wire" \
        --bucket-cap-mb "$2" --json "$results/$1.$2@$3.json" >"$results/log" 2>&1 ||
        { cat "$results/log" >&2; stop "the run above failed"; }
}

IFS=, read -ra sizes <<<"$caps"
[ ${#sizes[@]} -gt 0 ] || stop "--caps: expected sizes in MiB, as in 1,25"
largest=${sizes[-1]}
for round in $(seq "$rounds"); do
    echo "round $round of $rounds"
    one_run stage2_bucketed "$largest" "$round"
    for cap in "${sizes[@]}"; do
        one_run stage3_overlap "$cap" "$round"
    done
done

# row NAME STAGE CAP
row() {
    jq -rs --arg name "$1" --argjson reference "$reference" '
        def median: sort | .[length / 2 | floor];
        (map(.step_ms.p50) | median) as $step
        | [$name, .[0].buckets, (map(.backward_ms) | median), (map(.comm_ms) | median),
           (map(.exposed_comm_ms) | median), (map(100 * .hidden_fraction) | median), $step,
           (map(.step_ms.p50) | "\(min | round) .. \(max | round)"), $step / $reference] | @tsv' \
        "$results/$2.$3"@*.json
}
reference=$(jq -s 'map(.step_ms.p50) | sort | .[length / 2 | floor]' "$results/stage2_bucketed.$largest"@*.json)
printf '\nGPT, 2 ranks, batch %s, a link of %s (Gbit/s, microseconds); medians over %s runs of a run'"'"'s medians, in ms.\n' \
    "$batch" "$wire" "$rounds"
printf 'in flight: all all-reduces of a step; exposed: what training waited for; hidden: the rest.\n\n'
printf '%-18s %7s %9s %9s %8s %8s %8s %12s %10s\n' "" buckets backward "in flight" exposed "hidden %" step \
    "(min .. max)" "to stage 2"
{
    row "stage 2, $largest MiB" stage2_bucketed "$largest"
    for cap in "${sizes[@]}"; do
        row "stage 3, $cap MiB" stage3_overlap "$cap"
    done
} | while IFS=$'\t' read -r -a cells; do
    printf '%-18s %7d %9.1f %9.1f %8.1f %8.0f %8.1f %12s %10.2f\n' "${cells[@]}"
done
