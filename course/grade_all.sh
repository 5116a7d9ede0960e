#!/usr/bin/env bash
# grade_all.sh: grades all submissions of a directory with grade.sh, several at a time, and writes a table of grades.
#
# usage: course/grade_all.sh STAGE SUBMISSIONS OUT [--jobs N] [--roster FILE] [--deadline TIME] [--line N] [--again]
#   SUBMISSIONS     a directory with NAME.c for each student, or with NAME/ that has one ddp.c, or one STAGE/ddp.c, at
#                   any depth (for collectives: collectives.c). In stage 2, buckets.c lies beside it, so it is always
#                   NAME/. Links to files are left out.
#   OUT             a directory for NAME.json, NAME.txt and grades.csv. A result that it has already is kept if the
#                   submission has not been replaced since: a grading that was interrupted goes on.
#   --jobs N        submissions at a time (1)
#   --roster FILE   CSV without a header, a line for each student: NAME first, then anything. Each gets a row.
#   --deadline TIME as date -d reads it. Late submissions lose points by course/late_days. Handed in: when the file was
#                   last modified (a copy is new), or what SUBMISSIONS/handed_in says: CSV, in lines of NAME,TIME with
#                   TIME such as 2027-05-03 23:59. TZ says in which time zone (this machine's): TZ=Europe/Berlin
#   --line N        only line N of the table again, after its test was corrected; whole, what has no result yet
#   --again         everything again
#   GRADE_CACHE     as for grade.sh; job N uses GRADE_CACHE/N (default: a temporary directory)
# Exit status 0: all graded, whatever the grades. 1: the grader failed on some, and says which. 2: wrong usage.
set -u
export LC_ALL=C # names are sorted and printed as the bytes that they are
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=names.sh
source "$here/names.sh"

stop() { # STATUS MESSAGE
    echo "grade_all: error: $2" >&2
    exit "$1"
}

# ---- the command line ----

usage=$(sed -n 's/^# usage: /usage: /p' "${BASH_SOURCE[0]}")
[ $# -ge 3 ] || stop 2 "$usage"
stage=$1 from=$2 out=$3 jobs=1 roster='' deadline='' line='' again=''
shift 3
while [ $# -gt 0 ]; do
    case $1=${2-} in
    --jobs=[1-9]*) jobs=$2 ;;
    --roster=?*) roster=$2 ;;
    --deadline=?*) deadline=$(date -d "$2" +%s 2>/dev/null) || stop 2 "--deadline: '$2' is no time" ;;
    --line=[1-9]*) line=$2 ;;
    --again=*) again=yes ;;
    *) stop 2 "$usage" ;;
    esac
    if [ "$1" = --again ]; then shift; else shift 2; fi
done
[[ $jobs$line != *[!0-9]* ]] || stop 2 "--jobs and --line want a number"
find_stage "$stage" "$here" || stop 2 "there is no such stage: take $stages"
[ -d "$from" ] || stop 2 "$from is no directory"
[ -z "$roster" ] || [ -r "$roster" ] || stop 2 "--roster: $roster cannot be read"
mkdir -p "$out" || exit 2
[ -z "$(cat "$out"/*.json 2>/dev/null | jq --arg stage "$stage" '.stage? // $stage | select(. != $stage)')" ] ||
    stop 2 "$out has results of another stage"
read -r grace_hours points_per_day most_days < <(awk '{ value[$1] = $2 }
    END { print value["grace_hours"], value["points_per_day"], value["most_days"] }' "$here/late_days")
[[ $grace_hours/$points_per_day/$most_days =~ ^[0-9]+/[0-9]+/[0-9]+$ ]] || stop 2 "late_days lacks a whole number"

# ---- who ----

# Sets files: the files that are handed in beside PATH, and it itself.
files_beside() { # PATH
    files=("$1")
    [ ${#c_files[@]} -eq 1 ] || files=("${c_files[@]/#/"${1%/*}/"}")
}

declare -A file=() handed_in=() # by NAME: its first file; when it came, if the file handed_in says so
for entry in "$from"/*; do
    name=${entry##*/} paths=()
    if [ -d "$entry" ]; then # of several, the one in a directory of the stage's name
        mapfile -d '' paths < <(find -H "$entry" -type f -name "$c_file" -print0) # no link: it may lead to another's file
        [ ${#paths[@]} -lt 2 ] || mapfile -d '' paths < <(printf '%s\0' "${paths[@]}" | grep -z "/$stage/$c_file$")
        for path in "${paths[@]}"; do
            files_beside "$path"
            for beside in "${files[@]}"; do { [ -f "$beside" ] && [ ! -L "$beside" ]; } || paths=(); done
        done
    elif [ -f "$entry" ] && [ ! -L "$entry" ] && [[ $name = *.c ]] && [ ${#c_files[@]} -eq 1 ]; then
        paths=("$entry") name=${name%.c}
    elif [ "$name" = handed_in ]; then
        continue
    fi
    if [ ${#paths[@]} -ne 1 ] || [[ ${paths[*]} = *[[:cntrl:]]* ]]; then
        [ "$entry" = "$from/*" ] || # nothing is there
            echo "grade_all: warning: ${entry//[[:cntrl:]]/?} is no NAME.c, and does not hold one $c_names: left out" >&2
        continue
    fi
    [ -z "${file[$name]-}" ] || stop 2 "$name has two submissions: ${file[$name]} and ${paths[0]}"
    file[$name]=${paths[0]}
done
[ ${#file[@]} -gt 0 ] || stop 2 "$from has no submission: NAME.c, or NAME/ with a $c_names in it"

# rows FILE: the first two cells of each line, with a tab between them; without comments, empty lines, and what
# spreadsheets add
rows() {
    [ ! -e "$1" ] || python3 -c '
import csv, sys
try:
    lines = csv.reader(open(sys.argv[1], encoding="utf-8-sig", newline=""), skipinitialspace=True, strict=True)
    for row in lines:
        cells = [cell.strip() for cell in row] + [""]
        if not cells[0] or cells[0].startswith("#"):
            continue
        if ";" in cells[0] and len(row) == 1:
            raise ValueError("semicolons, where commas are expected")
        print(cells[0], cells[1], sep="\t")
except (csv.Error, ValueError) as error:
    sys.exit(f"grade_all: error: {sys.argv[1]}, line {lines.line_num}: {error}; expected: CSV in UTF-8")' "$1"
}
times=$(rows "$from/handed_in") && students=$(rows "$roster") || exit 2
while IFS=$'\t' read -r name time; do
    [ -n "$name" ] || continue
    if [[ ! $time =~ ^[0-9]{4}-[0-9]{2}-[0-9]{2} ]] || ! handed_in[$name]=$(date -d "$time" +%s 2>/dev/null); then
        stop 2 "$from/handed_in: $name: '$time' is no time such as 2027-05-03 23:59"
    fi
    [ -n "${file[$name]-}" ] || echo "grade_all: warning: $from/handed_in: $name has handed in nothing" >&2
done <<<"$times"
by_file=$(for name in "${!file[@]}"; do
    [ -z "$deadline" ] || [ -n "${handed_in[$name]-}" ] || echo "$name"
done | sort | paste -sd ';')
[ -z "$by_file" ] ||
    echo "grade_all: warning: $from/handed_in lacks $by_file: the time is that of the file, which its author can set" >&2
mapfile -t expected < <(cut -f 1 <<<"$students" | grep .)
mapfile -t names < <(printf '%s\n' "${!file[@]}" "${expected[@]}" | grep . | sort -u)

# ---- grading ----

scratch=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-grades.XXXXXX") || exit 1
declare -A job=() # SLOT NAME of each grader that runs, by its process
trap 'rm -rf "$scratch"' EXIT
trap '[ ${#job[@]} -eq 0 ] || { kill "${!job[@]}"; wait; }; exit 1' INT TERM

# on_own_cores SLOT: prints the command that starts a job on its share of the cores, if each job gets one. So ranks that
# wait for each other give way to each other, not to another job's.
mapfile -t cores < <(
    taskset -cp $$ 2>/dev/null | sed 's/.*: //' | tr , '\n' | awk -F - '{ for (i = $1; i <= $NF; i++) print i }'
)
on_own_cores() {
    local share=$((${#cores[@]} / jobs)) IFS=,
    [ "$jobs" -eq 1 ] || [ $share -eq 0 ] || echo "taskset -c ${cores[*]:($1 - 1) * share:share}"
}

# A file that was put there after grading began is another submission, whatever time it was modified.
is_graded() { # NAME
    files_beside "${file[$1]}"
    [ -s "$out/$1.json" ] && [ -z "$(find "${files[@]}" -cnewer "$out/$1.json")" ]
}

start() { # NAME SLOT
    local options=(--json "$scratch/$2.json") submission=${file[$1]}
    [ ${#c_files[@]} -eq 1 ] || submission=${submission%/*}
    touch "$scratch/$2.began"
    if [ -n "$line" ] && is_graded "$1"; then
        cp "$out/$1.json" "$scratch/$2.json"
        options+=(--line "$line")
    fi
    GRADE_CACHE=${GRADE_CACHE:-$scratch}/$2 $(on_own_cores "$2") "$here/grade.sh" "$stage" "$submission" "${options[@]}" \
        >"$scratch/$2.txt" 2>&1 </dev/null &
    job[$!]="$2 $1"
}

failed=0
finish() { # waits for one grader, and keeps what it wrote if it succeeded
    local process status=0 name
    wait -n -p process "${!job[@]}" || status=$?
    slot=${job[$process]%% *} name=${job[$process]#* } # a name may begin or end with a blank
    unset "job[$process]"
    if [ $status -ne 0 ]; then
        failed=1
        echo "grade_all: $name could not be graded: $(tail -n 5 "$scratch/$slot.txt")" >&2
        return
    fi
    if [ -z "$line" ] || ! is_graded "$name"; then rm -f "$out/$name.txt"; fi
    cat "$scratch/$slot.txt" >>"$out/$name.txt" # below the whole table, the table of one line
    touch -r "$scratch/$slot.began" "$scratch/$slot.json"
    jq --arg name "$name" '. + {$name}' "$scratch/$slot.json" >"$scratch/$slot.named"
    touch -r "$scratch/$slot.json" "$scratch/$slot.named"
    mv "$scratch/$slot.named" "$out/$name.json"
    echo "$name: $(jq .points "$out/$name.json") points"
}

slot=0
for name in "${names[@]}"; do
    if [ -z "${file[$name]-}" ] || { [ -z "$again$line" ] && is_graded "$name"; }; then continue; fi
    if [ ${#job[@]} -lt "$jobs" ]; then slot=$((slot + 1)); else finish; fi
    start "$name" "$slot"
done
while [ ${#job[@]} -gt 0 ]; do finish; done

# ---- grades.csv ----

# end_of_day N: when the Nth late day ends, without the grace: at the deadline's time of day, but no day is shorter than
# 24 hours. (When clocks are set back it has 25; when they are set forward, the clock would give it 23.)
end_of_day() {
    local by_clock
    by_clock=$(date -d "$1 days $(date -d "@$deadline" '+%F %T')" +%s)
    echo $((by_clock > deadline + $1 * 86400 ? by_clock : deadline + $1 * 86400))
}

late_days_of() { # NAME
    local time days
    files_beside "${file[$1]}"
    time=$((${handed_in[$1]-$(stat -c %Y "${files[@]}" | sort -n | tail -n 1)} - grace_hours * 3600))
    if [ -z "$deadline" ] || [ $time -le "$deadline" ]; then echo 0 && return; fi
    days=$(((time - deadline + 86399) / 86400))
    # Without changes of the clock a day less would not be enough.
    if [ $days -gt 1 ] && [ $time -le "$(end_of_day $((days - 1)))" ]; then days=$((days - 1)); fi
    echo $days
}

row() { # NAME
    local got=0 days=0 after=0 remark=
    if [ -z "${file[$1]-}" ]; then
        remark="nothing handed in"
    elif ! is_graded "$1"; then
        got=null days=null after=null remark="not graded"
    else
        got=$(jq .points "$out/$1.json") days=$(late_days_of "$1")
        after=$((days > most_days || days * points_per_day > got ? 0 : got - days * points_per_day))
        remark=$(jq -r 'if .built | not then "does not build" elif (.errors // "") != "" then "rejected"
            elif any(.items[]?.message; contains("for everything were over")) then "out of time" else "" end' \
            "$out/$1.json")
    fi
    [ -z "$roster" ] || printf '%s\n' "${expected[@]}" | grep -q -x -F -e "$1" ||
        { remark="not on the roster${remark:+; $remark}" && echo "$1 is not on the roster" >&2; }
    jq -n -r --arg name "$1" --arg remark "$remark" "[\$name | if test(\"^[-=+@]\") then \"'\" + . else . end, $got, $days,
        $after, \$remark] | @csv" # no spreadsheet shall take a name for a formula
}

{
    echo name,points,late_days,points_after,remark
    for name in "${names[@]}"; do row "$name"; done
} >"$scratch/grades.csv" && mv "$scratch/grades.csv" "$out/grades.csv"
echo "$out/grades.csv: ${#names[@]} names"
exit $failed
