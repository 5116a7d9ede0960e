#!/usr/bin/env bash
# The time of a step by formula, by bench/whatif and by measurement: writes notes/costs.csv, from which the figure of
# notes/costs.md is drawn. The GPT, stage 3, 2 ranks, buckets of 1 MiB, links of 0.3 to 10 Gbit/s. Needs jq.
#
#   tools/bench/costs.sh DIR [ROUNDS]     DIR keeps the runs, as --keep of whatif_table.sh; ROUNDS: 3
#
# A row for each run, medians over its steps: the samples of a rank, the link, and in milliseconds a forward pass, what
# the link takes for a step's bytes, and the step, predicted by whatif for the speed of these steps and measured.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[ $# -ge 1 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" && exit 2; }

# best DIR NAME: the trace of its best round.
best() {
    jq -r '"\(.step_ms.p50) \(input_filename | sub("json$"; "trace"))"' "$1/$2".*.json | sort -g | sed -n '1s/.* //p'
}

csv=notes/costs.csv
echo 'samples,gbit_per_s,forward_ms,link_ms,whatif_ms,measured_ms' >"$csv.new"
for samples in 2 8; do
    kept=$1/$samples
    tools/bench/whatif_table.sh --only '^3 2 [0-9.]+,50 1 1$' --batch $samples --rounds "${2:-3}" --keep "$kept" >&2 || true
    for trace in "$kept"/3.2.*.trace; do
        gbit=${trace##*/3.2.}
        gbit=${gbit%%,*}
        build/bench/whatif "$(best "$kept" one)" "$(best "$kept" two)" --recorded-link 1,50 --link "$gbit,50" \
            --emulated --cores "$(nproc)" --ranks 2 --stage 3 --caps 1 --json --against "$trace" |
            jq -rs --argjson samples $samples --argjson gbit "$gbit" '
                def median: sort | (.[(length - 1) / 2 | floor] + .[length / 2 | floor]) / 2;
                [$samples, $gbit, (map(.forward_ms) | median), 13031424 * 8e-6 / $gbit, (map(.predicted_ms) | median),
                (map(.measured_ms) | median)] | map(10 * . | round / 10) | @csv'
    done
done >>"$csv.new"
mv "$csv.new" "$csv"
