#!/usr/bin/env bash
# test_diagnose.sh: what scripts/diagnose.sh decides. Figures that were recorded when a cause was planted
# (diagnose_planted.sh) name that cause first; and figures a little below and above each threshold differ in it. No times
# are measured here.
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
diagnose=$here/../../scripts/diagnose.sh
for tool in jq python3; do command -v $tool >/dev/null || { echo "skipped: $tool is missing"; exit 77; }; done

# names CAUSE FILE: the cause is the first suspect, in both forms of the output; the exit status is 0.
names() {
    local said shown
    said=$("$diagnose" --json --figures "$2" | jq -r '.suspects[0].name // "nothing" | gsub(" "; "-")')
    "$diagnose" --figures "$2" >"$scratch/out" || fail "$(basename "$2"): it does not exit with 0"
    shown=$(sed -n 's/^first suspect: \([^,]*\).*/\1/p' "$scratch/out")
    [ "$said" = "$1" ] || fail "$(basename "$2"): it names $said, not $1"
    [ "${shown// /-}" = "$said" ] || fail "$(basename "$2"): it prints $shown, but --json says $said"
}

# prints STATUS TEXT ARGUMENT...: this exit status, and this text is the first line.
prints() {
    "$diagnose" "${@:3}" >"$scratch/out" 2>&1
    local status=$?
    [ "$status $(head -n 1 "$scratch/out")" = "$1 $2" ] || fail "${*:3}: status $status: $(cat "$scratch/out")"
}

# near CAUSE JQ: $x is just below a threshold of diagnose.py, so that nothing is named; then just above it.
near() {
    for x in 0.95 1.05; do
        jq --argjson x $x ".figures |= ($2)" "$here/diagnose_figures/nothing.json" >"$scratch/$1_$x.json"
    done
    names nothing "$scratch/$1_0.95.json"
    names "$1" "$scratch/$1_1.05.json"
}

for file in "$here"/diagnose_figures/*.json; do
    names "$(basename "$file" .json)" "$file"
done
[ "$(ls "$here/diagnose_figures" | wc -l)" -eq 11 ] || fail "there are not eleven files of figures: ten causes, and nothing"

near link '.all.step as $s | .link = $s | .all.exposed = 0.15 * $x * $s'           # WORTH: of the step
near link '.all.step as $s | .all.exposed = 0.3 * $s | .link = 0.5 * $x * 0.3 * $s' # SAME: as the wait
near slow-rank '.slowest = {rank: 1, ratio: (1.3 * $x)} | .all.ranks[1].own = 2 * .all.ranks[0].own' # APART
near kernel '.coretype = "Prescott" | .best_kernel = .share | .share.ranks[0].own *= 1.3 * $x'
near binding '.cores_of_ranks = 1 | .all.step = 1.3 * $x * .share.step'
near quota '.quota = 1 | .all.step = 1.3 * $x * .share.step'
near loader '.share.ranks[0].own as $o | .all.ranks[].data = 0.5 * .all.step | .loading = 0.5 * $x * $o | .fixed = 0'
near norm '.all.step as $s | .norm = "batch" | .all.exposed = 0.5 * $s | .link = 0 | .no_norm = {exposed: ((0.5 - 0.15 * $x) * $s)}'
near small-model '.share.ranks[0].own as $o | .fixed = 0.2 * $x * $o | .all.step = $o | .all.exposed = 0'

# A container's limit: of cgroups version 2, of its parent, of version 1, of the container itself; and none.
groups() { # QUOTA LINE FILE=TEXT...: this process is in the group of LINE, and the files have these texts.
    rm -rf "$scratch/root"
    printf '%s\n' "$2" >"$scratch/groups"
    local file said
    for file in "${@:3}"; do
        mkdir -p "$(dirname "$scratch/root/${file%%=*}")"
        echo "${file#*=}" >"$scratch/root/${file%%=*}"
    done
    said=$(python3 -B "$here/../../scripts/cores.py" "$scratch/groups" "$scratch/root" | cut -d ' ' -f 4)
    [ "$said" = "$1" ] || fail "cores.py, $*: it says $said"
}
groups 1.5 "0::/a/b" "a/b/cpu.max=150000 100000" "a/cpu.max=max 100000"
groups 0.5 "0::/a/b" "a/b/cpu.max=150000 100000" "a/cpu.max=50000 100000"
groups 2.0 "0::/" "cpu.max=200000 100000"
groups 1.0 "4:cpu,cpuacct:/docker/1" cpu/cpu.cfs_quota_us=100000 cpu/cpu.cfs_period_us=100000
groups inf "4:cpu,cpuacct:/" cpu/cpu.cfs_quota_us=-1 cpu/cpu.cfs_period_us=100000
groups inf "0::/a" "a/cpu.max=max 100000"
groups inf "0::/a"

# The order is that of what they cost.
jq '.figures |= (.all.step as $s | .link = $s | .all.exposed = 0.2 * $s | .all.ranks[].data = 0.4 * $s |
    .loading = $s)' "$here/diagnose_figures/nothing.json" >"$scratch/two.json"
[ "$("$diagnose" --json --figures "$scratch/two.json" | jq -c '.suspects | map(.name)')" = '["loader","link"]' ] ||
    fail "a loader that costs 40 % of the step does not come before a link that costs 20 %"

# Other programs: 14 % of the cores do not matter. 16 %: it cannot tell, unless there is a suspect.
jq '.figures.others = 0.28' "$here/diagnose_figures/nothing.json" >"$scratch/few.json"
jq '.figures.others = 0.32' "$here/diagnose_figures/nothing.json" >"$scratch/others.json"
jq '.figures.others = 0.32' "$here/diagnose_figures/link.json" >"$scratch/link.json"
names nothing "$scratch/few.json"
names link "$scratch/link.json"
cannot="cannot tell: other programs used the cores (16 %); run it again when they have ended"
prints 3 "$cannot" --figures "$scratch/others.json"
! grep -q 'nothing\|^Other' "$scratch/out" || fail "it cannot tell, and says more: $(cat "$scratch/out")"
"$diagnose" --json --figures "$scratch/others.json" >"$scratch/out"
[ $? -eq 3 ] && [ "$(jq -r .cannot_tell "$scratch/out")" = "$cannot" ] || fail "--json: $(head -n 2 "$scratch/out")"
"$diagnose" --help | tr -s ' \n' ' ' | grep -q '3 it cannot tell' || fail "--help does not say status 3"

# The flags of the slow run stand after --.
others="is no flag of this script; those of the slow run come after --, as in: scripts/diagnose.sh --"
prints 2 "diagnose.sh: error: --model $others --model gpt --threads 2" --model gpt --threads 2
prints 2 "diagnose.sh: error: --wire $others --wire 1,50 --threads 2" --ranks 3 --wire 1,50 -- --threads 2

"$diagnose" --program "$(command -v false)" -- --save-best mine.st --eval-every 5 --log mine.csv >"$scratch/out" 2>&1
[ $? -eq 1 ] && grep -q '^diagnose: this failed: .*false' "$scratch/out" || fail "a run that fails: $(cat "$scratch/out")"
! grep -q 'mine' "$scratch/out" || fail "it would write the user's files: $(cat "$scratch/out")"
"$diagnose" --ranks 1 >"$scratch/out" 2>&1
[ $? -eq 2 ] || fail "--ranks 1 is not refused"
finish
