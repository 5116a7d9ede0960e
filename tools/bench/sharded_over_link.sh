#!/usr/bin/env bash
# Stage 5 beside stage 4 over an emulated link: step time, and how much of the communication is hidden. Needs jq.
#
#   tools/bench/sharded_over_link.sh [--rounds N] [--wire GBPS,US] [--launch "MPIEXEC FLAGS"] [--build DIR]
#
# gpt, 2 ranks, batch 16, buckets of 1 MB. All run in turns; a round's result is the median of its steps, and its ratio
# is that to stage 4's in the same round. The table shows the median, minimum and maximum over the rounds.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."

rounds=5 wire=1,50 launch="mpiexec" build=build
while [ $# -gt 0 ]; do
    case $1 in
        --rounds) rounds=$2 ;;
        --wire) wire=$2 ;;
        --launch) launch=$2 ;;
        --build) build=$2 ;;
        *) sed -n '2,7s/^# \{0,1\}//p' tools/bench/sharded_over_link.sh; exit 2 ;;
    esac
    shift 2
done
[ -x "$build/stage5_sharded/train" ] ||
    { echo "sharded_over_link.sh: $build/stage5_sharded/train is missing: build, or give --build DIR" >&2; exit 2; }
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

for ((round = 0; round < rounds; round++)); do
    for level in 0 1 2 3; do
        program="stage5_sharded/train --zero $level"
        [ $level -gt 0 ] || program=stage4_accumulation/train
        # shellcheck disable=SC2086 # lists of words
        $launch -n 2 "$build"/$program --model gpt --batch-size 16 --steps 25 --eval-samples 2 --bucket-cap-mb 1 \
            --wire "$wire" --json "$results/$level.$round" >"$results/log" 2>&1 || { cat "$results/log" >&2; exit 1; }
    done
done

jq --null-input --raw-output '
    def median: sort | if length % 2 == 1 then .[length / 2 | floor] else (.[length / 2 - 1] + .[length / 2]) / 2 end;
    def show(digits): . * pow(10; digits) | round / pow(10; digits);
    def spread(digits): "\(median | show(digits)) [\(min | show(digits)) .. \(max | show(digits))]";
    [inputs | {level: (.flags.zero // 0), ms: .step_ms.p50, hidden: (100 * .hidden_fraction)}]
    | (map(select(.level == 0).ms)) as $stage4
    | group_by(.level)[]
    | (if .[0].level == 0 then "stage 4         " else "stage 5 --zero \(.[0].level)" end)
      + "  step \(map(.ms) | spread(1)) ms"
      + "   to stage 4 \([map(.ms), $stage4] | transpose | map(.[0] / .[1]) | spread(3))"
      + "   hidden \(map(.hidden) | spread(1)) %"' "$results"/[0-9].*
