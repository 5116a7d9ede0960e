#!/usr/bin/env bash
# whatif_table.sh: is bench/whatif right? Records two runs, predicts others from them, measures those, and prints the
# errors. Needs jq. The machine must have nothing else to do.
#
#   bench/whatif_table.sh [--rounds 3] [--steps 24] [--batch 2] [--others 10] [--only REGEX] [--keep DIR] [--hosts]
#
# In each round all runs take turns: first the two that are fitted on (one rank; and two ranks of stage 3 over a link of
# 1,50, one gradient per bucket), then those of the list below. A row shows medians over the rounds.
#   --batch B     samples of a micro-batch of one rank
#   --others P    repeat a run, up to 6 times, while other processes use more than P percent of the cores, or while the
#                 machine itself is slower than at its best by more than P percent: a fixed piece of work before and after
#                 each run shows this. (A virtual machine has neighbours.) The last line says how many runs were disturbed
#                 all the same
#   --only REGEX  rows whose text matches
#   --keep DIR    files go to DIR; what is there already is not measured again
#   --hosts       also rows over real TCP (link tcp: bench/two_hosts.sh, 1 Gbit/s; as root), which are fitted on one
#                 rank and on 2 ranks over the same link
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds=3 steps=24 batch=2 others=10 only=. work= hosts=no
while [ $# -gt 0 ]; do
    case $1 in
        --rounds) rounds=${2:?} ;;
        --steps) steps=${2:?} ;;
        --batch) batch=${2:?} ;;
        --others) others=${2:?} ;;
        --only) only=${2:?} ;;
        --keep) work=${2:?} ;;
        --hosts) hosts=yes && shift && continue ;;
        *) sed -n '2,19s/^# \{0,1\}//p' "$0" && exit 2 ;;
    esac
    shift 2
done
[ -n "$work" ] || { work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT; }
mkdir -p "$work"
directories=([1]=stage1_naive [2]=stage2_bucketed [3]=stage3_overlap [4]=stage4_accumulation)
cores=$(nproc)

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

# used_by_others: seconds for which all cores together were busy so far, less those of this script's children.
used_by_others() {
    times >"$work/times" # not in a subshell, which would have no children
    awk 'FNR == NR && FNR == 2 { split($0, t, /[ms ]+/); own = 60 * t[1] + t[2] + 60 * t[3] + t[4] }
         /^cpu / { print ($2 + $3 + $4 + $7 + $8 + $9) / 100 - own }' "$work/times" /proc/stat >"$work/used"
}

# probe: prints the microseconds that a fixed piece of work takes on all cores at once.
probe() {
    local start=$(date +%s%N)
    for _ in $(seq "$cores"); do
        awk 'BEGIN { for (i = 0; i < 1500000; i++) s += i }' &
    done
    wait
    echo $((($(date +%s%N) - start) / 1000))
}

# slower BEFORE AFTER: prints by how many percent the slower one of two probes was slower than the best one so far.
slower() {
    sort -g "$work/best" 2>/dev/null | cat - <(printf '%s\n' "$@") | sort -g | head -n 1 >"$work/best.new"
    mv "$work/best.new" "$work/best"
    jq -n "100 * ([$1, $2] | max) / $(<"$work/best") - 100"
}

# train NAME STAGE RANKS WIRE CAP MICRO-BATCHES [FLAGS...]: writes NAME.json. WIRE: for --wire; or -, none; or tcp.
train() {
    local name=$1 stage=$2 ranks=$3 wire=$4 cap=$5 accumulate=$6 launcher=(mpiexec -n "$3") flags=() before start first share slow
    shift 6
    [ ! -s "$work/$name.json" ] || return 0
    [ "$wire" != tcp ] || launcher=(bench/two_hosts.sh run --rate 1gbit)
    [ "$wire" = - ] || [ "$wire" = tcp ] || flags+=(--wire "$wire")
    [ "$cap" = - ] || flags+=(--bucket-cap-mb "$cap" --first-bucket-mb "$cap")
    [ "$accumulate" = 1 ] || flags+=(--accumulate "$accumulate")
    for _ in 1 2 3 4 5 6; do
        first=$(probe)
        used_by_others
        before=$(<"$work/used") start=$(date +%s%N)
        "${launcher[@]}" "build/${directories[$stage]}/train" --model gpt --steps "$steps" --eval-samples 1 \
            --batch-size $((batch * ranks * accumulate)) "${flags[@]}" "$@" --json "$work/json" >"$work/out" 2>&1 \
            </dev/null || { cat "$work/out" >&2 && exit 1; }
        used_by_others
        share=$(jq -n "100e9 * ($(<"$work/used") - $before) / ($(date +%s%N) - $start) / $cores")
        slow=$(slower "$first" "$(probe)")
        jq -en "([$share, $slow] | max) > $others" >/dev/null || break
    done
    jq -c ". + {others: ([$share, $slow] | max)}" "$work/json" >"$work/$name.json"
}

for round in $(seq "$rounds"); do
    train "one.$round" 3 1 - 0 1 --trace "$work/one.$round.trace"
    train "two.$round" 3 2 1,50 0 1 --trace "$work/two.$round.trace"
    [ $hosts = no ] || train "tcp.$round" 3 2 tcp 0 1 --trace "$work/tcp.$round.trace"
    while read -r stage ranks wire cap accumulate; do
        train "$stage.$ranks.$wire.$cap.$accumulate.$round" "$stage" "$ranks" "$wire" "$cap" "$accumulate"
    done < <(rows)
done

# ---- the table ----
median() {
    sort -g | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'
}

printf 'GPT, %s samples in a micro-batch of a rank, %s cores, %s rounds; milliseconds per step.\n' "$batch" "$cores" \
    "$rounds"
printf 'Fitted on one rank, and on 2 ranks of stage 3 over 1,50 with one gradient per bucket.\n\n'
printf '%5s %5s %8s %5s %13s %10s %10s %8s\n' stage ranks link cap micro-batches predicted measured error
while read -r stage ranks wire cap accumulate; do
    predicted=$(for round in $(seq "$rounds"); do
        fitted=("$work/two.$round.trace" --recorded-link 1,50 --link "$wire" --emulated)
        [ "$wire" != tcp ] || fitted=("$work/tcp.$round.trace")
        build/bench/whatif "$work/one.$round.trace" "${fitted[@]}" --cores "$cores" --ranks "$ranks" --stage "$stage" \
            --caps "${cap/-/0}" --accumulate "$accumulate" --json | jq .step_ms
    done | median)
    measured=$(jq .step_ms.p50 "$work/$stage.$ranks.$wire.$cap.$accumulate".*.json | median)
    printf '%5s %5s %8s %5s %13s %10.1f %10.1f %+7.1f%%\n' "$stage" "$ranks" "$wire" "$cap" "$accumulate" "$predicted" \
        "$measured" "$(jq -n "100 * ($predicted / $measured - 1)")"
done < <(rows) | tee "$work/table"
tr -d '%+' <"$work/table" | awk '
    { e = $NF < 0 ? -$NF : $NF; sum += e; worst = e > worst ? e : worst; over += e > 3 } END {
    printf "\n%d rows: mean error %.1f %%, worst %.1f %%; %d above 3 %%\n", NR, sum / NR, worst, over }'
jq -r .others "$work"/*.*.json | awk -v most="$others" '$1 > most { n++ } END {
    printf "%d of %d runs were disturbed: %g %% of the cores or more were lost to others\n", n, NR, most }'
