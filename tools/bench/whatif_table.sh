#!/usr/bin/env bash
# whatif_table.sh: is bench/whatif right? Records two runs, predicts others from them, measures those, and prints the
# errors. Needs jq. The machine must have nothing else to do.
#
#   tools/bench/whatif_table.sh [--rounds 4] [--steps 12] [--batch 2] [--only REGEX] [--keep DIR] [--hosts]
#
# In each round all runs take turns: first the two that are fitted on (one rank; and two ranks of stage 3 over a link of
# 1,50, one gradient per bucket), then those of the list below. Of the fitted runs, the best round counts. The table has
# two predictions, because many a machine has fast and slow seconds (a virtual one has neighbours):
#   best round    the step as the fitted runs tell it, and the shortest median step of a round
#   at its speed  each step is predicted for the speed that its ranks' forward passes show (whatif --against; if ranks
#                 share cores, also their backward passes); medians over the steps of all rounds, also of the error. A
#                 step is left out if its forward passes took more than 1.6 times as long as one rank's in the best
#                 round: something else had the processor
#
#   --batch B     samples of a micro-batch of one rank
#   --only REGEX  rows whose text matches
#   --keep DIR    files go to DIR; what is there already is not measured again, so an interrupted script can go on
#   --hosts       also rows over real TCP (link tcp: bench/two_hosts.sh, 1 Gbit/s; as root), which are fitted on one
#                 rank and on 2 ranks over the same link
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

rounds=4 steps=12 batch=2 only=. work= hosts=no
while [ $# -gt 0 ]; do
    case $1 in
        --rounds) rounds=${2:?} ;;
        --steps) steps=${2:?} ;;
        --batch) batch=${2:?} ;;
        --only) only=${2:?} ;;
        --keep) work=${2:?} ;;
        --hosts) hosts=yes && shift && continue ;;
        *) sed -n '2,22s/^# \{0,1\}//p' "$0" && exit 2 ;;
    esac
    shift 2
done
[ -x build/bench/whatif ] ||
    { echo "whatif_table.sh: build/bench/whatif is missing: cmake --build build --target whatif" >&2; exit 2; }
[ -n "$work" ] || { work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT; }
mkdir -p "$work"
directories=([1]=stage1_naive [2]=stage2_bucketed [3]=stage3_overlap [4]=stage4_accumulation)

# stage ranks wire (Gbit/s, us) cap (MiB) micro-batches
rows() {
    grep -E "$only" <<'END' | if [ $hosts = yes ]; then cat; else grep -v tcp; fi
1 2 0.3,50 - 1
1 2 1,50 - 1
1 2 3,500 - 1
1 2 10,50 - 1
2 2 0.3,50 25 1
2 2 1,50 25 1
2 2 1,50 1 1
2 2 10,50 5 1
3 2 0.3,50 0.25 1
3 2 0.3,50 1 1
3 2 1,50 0.25 1
3 2 1,50 1 1
3 2 1,50 5 1
3 2 1,50 25 1
3 2 3,50 1 1
3 2 3,500 0 1
3 2 10,50 1 1
3 2 10,50 25 1
3 2 1,50 1 4
4 2 0.3,50 1 4
4 2 1,50 1 4
4 2 1,50 25 4
4 2 3,50 5 1
4 2 10,50 1 4
1 4 1,50 - 1
2 4 1,50 25 1
2 4 10,50 1 1
3 4 0.3,50 1 1
3 4 1,50 1 1
3 4 3,50 25 1
4 4 1,50 1 4
4 4 0.3,50 5 4
1 2 tcp - 1
2 2 tcp 25 1
3 2 tcp 1 1
3 2 tcp 5 1
4 2 tcp 1 4
END
}

# train NAME STAGE RANKS WIRE CAP MICRO-BATCHES: writes NAME.json, and NAME.trace. WIRE: for --wire; or -, none; or tcp.
train() {
    local name=$1 stage=$2 ranks=$3 wire=$4 cap=$5 accumulate=$6 launcher=(mpiexec -n "$3") flags=()
    [ ! -s "$work/$name.json" ] || return 0
    [ "$wire" != tcp ] || launcher=(tools/bench/two_hosts.sh run --rate 1gbit)
    [ "$wire" = - ] || [ "$wire" = tcp ] || flags+=(--wire "$wire")
    [ "$cap" = - ] || flags+=(--bucket-cap-mb "$cap" --first-bucket-mb "$cap")
    [ "$accumulate" = 1 ] || flags+=(--accumulate "$accumulate")
    # A step of several micro-batches takes longer: half as many are enough.
    "${launcher[@]}" "build/${directories[$stage]}/train" --model gpt --eval-samples 1 \
        --steps $((accumulate == 1 ? steps : steps / 2)) --batch-size $((batch * ranks * accumulate)) \
        "${flags[@]}" --trace "$work/$name.trace" --json "$work/json" >"$work/out" 2>&1 </dev/null ||
        { cat "$work/out" >&2 && exit 1; }
    mv "$work/json" "$work/$name.json"
}

for round in $(seq "$rounds"); do
    train "one.$round" 3 1 - 0 1
    train "two.$round" 3 2 1,50 0 1
    [ $hosts = no ] || train "tcp.$round" 3 2 tcp 0 1
    while read -r stage ranks wire cap accumulate; do
        train "$stage.$ranks.$wire.$cap.$accumulate.$round" "$stage" "$ranks" "$wire" "$cap" "$accumulate"
    done < <(rows)
done

# ---- the table ----
# best NAME: the milliseconds and the trace of its best round.
best() {
    jq -r '"\(.step_ms.p50) \(input_filename | sub("json$"; "trace"))"' "$work/$1".*.json | sort -g | head -n 1
}

# ask ROW...: what whatif predicts for a row, and with --against for each step of a run of it.
ask() {
    local stage=$1 ranks=$2 wire=$3 cap=$4 accumulate=$5 fitted
    shift 5
    fitted=("$two" --recorded-link 1,50 --link "$wire" --emulated)
    [ "$wire" != tcp ] || fitted=("$tcp")
    build/bench/whatif "$one" "${fitted[@]}" --cores "$(nproc)" --ranks "$ranks" --stage "$stage" --caps "${cap/-/0}" \
        --accumulate "$accumulate" --json "$@"
}

error='def error: 100 * (.predicted_ms / .measured_ms - 1);'
fastest=$(jq -s 'map(.forward_ms) | min' "$work"/one.*.json)
median='def median: sort | (.[(length - 1) / 2 | floor] + .[length / 2 | floor]) / 2;'
read -r _ one <<<"$(best one)"
read -r _ two <<<"$(best two)"
[ $hosts = no ] || read -r _ tcp <<<"$(best tcp)"
printf 'GPT, %s samples in a micro-batch of a rank, %s cores, %s rounds; milliseconds per step.\n' "$batch" "$(nproc)" \
    "$rounds"
printf 'Fitted on one rank, and on 2 ranks of stage 3 over 1,50 with one gradient per bucket.\n\n'
printf '%44s %-28s   %-28s\n' '' '| best round' '| at its speed'
printf '%5s %5s %8s %5s %13s   | %9s %9s %8s | %9s %9s %8s\n' stage ranks link cap micro-batches \
    predicted measured error predicted measured error
while read -r -a row; do
    name=$(IFS=. && echo "${row[*]}")
    read -r measured _ <<<"$(best "$name")"
    ask "${row[@]}" | jq -c "{predicted_ms: .step_ms, measured_ms: $measured}" >"$work/best"
    for trace in "$work/$name".*.trace; do
        ask "${row[@]}" --against "$trace"
    done | jq -c "select(.forward_ms < 1.6 * $fastest * ([1, ${row[1]} / $(nproc)] | max))" >"$work/steps"
    # shellcheck disable=SC2046 # six numbers
    printf '%5s %5s %8s %5s %13s   | %9.1f %9.1f %+7.1f%% | %9.1f %9.1f %+7.1f%%\n' "${row[@]}" $(
        jq -r "$error \"\(.predicted_ms) \(.measured_ms) \(error)\"" "$work/best"
        jq -rs "$error $median \"\(map(.predicted_ms) | median) \(map(.measured_ms) | median) \(
            map(error) | median)\"" "$work/steps")
done < <(rows) | tee "$work/table"
tr -d '%+|' <"$work/table" | awk '
    function count(place, e) { e = e < 0 ? -e : e; sum[place] += e; over[place] += e > 3
                               worst[place] = e > worst[place] ? e : worst[place] }
    { count("best round", $8); count("at its speed", $11) }
    function show(place) { printf "%-12s %d rows: mean error %.1f %%, worst %.1f %%; %d above 3 %%\n", place, NR,
                                  sum[place] / NR, worst[place], over[place] }
    END { print ""; show("best round"); show("at its speed") }'
