#!/usr/bin/env bash
# test_results.sh: what course/ makes of many submissions and their results. Without --grade, in seconds: each format
# of results.py is what its document says; grade_all.sh, with a grader that grades nothing, writes the right table, and
# goes on where it was interrupted. With --grade, in minutes: a directory that is laid out like Gradescope's gets 100
# points for the stage's own ddp.c and 0 for a starter's; grade.sh --line changes one line of a result.
#
# usage: test_results.sh ROOT [--grade]
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
export LC_ALL=C
root=$1
command -v python3 >/dev/null || { echo "skipped: python3 is missing"; exit 77; }
export TMPDIR=$scratch/tmp
mkdir "$TMPDIR"

# is EXPECTED WHAT GOT
is() {
    [ "$1" = "$3" ] || fail "$2: '$3', expected '$1'"
}

# ---- the formats ----

# Characters that CSV and XML must quote, and two that XML cannot hold. results_formats.py knows this result.
cat >"$scratch/result.json" <<'END'
{ "stage": "stage1_naive", "submission": "in/O'Hara, Ada.c", "seconds": 13, "built": false,
  "errors": "ddp.c:3: error: 'x' < y && z", "points": 15, "of": 30, "items": [
    { "points": 15, "of": 15, "idea": "Ranks, \"all\" <two> & more", "passed": true, "message": "", "read": "a.md" },
    { "points": 0, "of": 15, "idea": "Sums", "passed": false, "message": "is 1 < 2 é \u0001\ufffe", "read": "b" } ] }
END
export CLASSROOM=c ASSIGNMENT=a ASSIGNMENT_TYPE=individual OWNER=ada SUBMISSION_TAG=submit/1 COMMIT_URL=u RELEASE_URL=r
for format in gradescope autolab classroom50 junit csv; do
    status 0 "$root/course/results.py" $format "$scratch/result.json" &&
        mv "$scratch/out" "$scratch/written" &&
        status 0 python3 "$root/tests/results_formats.py" $format "$scratch/written"
done
status 2 env -u RELEASE_URL "$root/course/results.py" classroom50 "$scratch/result.json"
grep -q RELEASE_URL "$scratch/out" || fail "classroom50 does not name the variable that is missing"
status 2 "$root/course/results.py" moodle "$scratch/result.json"
jq '. + {name: "=1+1"}' "$scratch/result.json" >"$scratch/formula.json"
is "'=1+1,stage1_naive" "a name that is no formula" "$("$root/course/results.py" csv "$scratch/formula.json" | cut -d , -f 1-2)"
status 2 "$root/course/results.py" csv "$scratch/none.json"
echo '{"stage": "stage1_naive", "items": []}' >"$scratch/other.json"
status 2 "$root/course/results.py" csv "$scratch/other.json"

# ---- many submissions ----

# A grader that takes the points from the first line of the submission. It fails if two use one cache at the same time.
cp -r "$root/course" "$scratch/course"
cat >"$scratch/course/grade.sh" <<'END'
#!/usr/bin/env bash
mkdir "$GRADE_CACHE" || exit 1
trap 'echo ended >>"$GRADED"; exit 1' TERM
echo "$2 ${5-}" >>"$GRADED"
echo "${GRADE_CACHE##*/} $(taskset -cp $$ 2>/dev/null | sed 's/.*: //')" >>"$GRADED.cores"
read -r points <"$2"
[ "$points" != 51 ] || touch "$2" # the student hands in again, just now
[ "$points" = hangs ] && { sleep 60 & wait; }
[ "$points" = 30 ] && errors="uses exit" || errors=
[ "$points" = 9 ] && items='[{"message": "not run: the 540 s for everything were over"}]' || items='[]'
[ "$points" -ge 0 ] || { rmdir "$GRADE_CACHE"; exit 1; }
echo "table of $2" && echo "{\"stage\": \"stage1_naive\", \"points\": $points, \"built\": true, \"errors\": \"$errors\",
    \"items\": $items}" >"$4"
sleep 0.2
rmdir "$GRADE_CACHE"
END
export GRADED=$scratch/graded
in=$scratch/in out=$scratch/results
mkdir -p "$in/bob"
echo 80 >"$in/ada.c" && echo 95 >"$in/bob/ddp.c" && echo 70 >"$in/007.c" && echo 9 >"$in/eve.c"
echo 50 >"$in/mallory x.c"
touch -d '2026-01-02 13:00:00' "$in"/*.c
printf 'bob,2026-01-02 13:00:01\neve,2026-01-03 13:00:01\n007,2026-01-05 13:00:01\n' >"$in/handed_in"
printf '\357\273\277# who\r\nada,Ada L.\r\nbob\r\n007\r\n\r\neve\r\nzoe\r\n' >"$scratch/roster"
grade_all() { bash "$scratch/course/grade_all.sh" 1 "$in" "$out" "$@"; }
printf '%s\n' 'grace_hours 1' 'points_per_day 10' 'most_days 3' >"$scratch/course/late_days"

status 0 grade_all --jobs 2 --roster "$scratch/roster" --deadline '2026-01-02 12:00:00'
grep -q 'mallory x is not on the roster' "$scratch/out" || fail "who is not on the roster is not named"
is 'name,points,late_days,points_after,remark
"007",70,4,0,""
"ada",80,0,80,""
"bob",95,1,85,""
"eve",9,2,0,"out of time"
"mallory x",50,0,50,"not on the roster"
"zoe",0,0,0,"nothing handed in"' grades.csv "$(cat "$out/grades.csv")"
is 5 "graded submissions" "$(wc -l <"$GRADED")"
if [ "$(nproc)" -ge 2 ] && command -v taskset >/dev/null; then # each job on its own cores
    is 2 "jobs" "$(sort -u "$GRADED.cores" | wc -l)"
    is 2 "sets of cores" "$(sort -u "$GRADED.cores" | sed 's/^[^ ]* //' | sort -u | wc -l)"
fi
is "table of $in/ada.c" ada.txt "$(cat "$out/ada.txt")"

status 0 grade_all --jobs 2
! grep 'warning' "$scratch/out" || fail "a warning without a name"
is 5 "graded again without need" "$(wc -l <"$GRADED")"
cp "$in/eve.c" "$scratch/old" && touch -d 2020-01-01 "$scratch/old" && mv "$scratch/old" "$in/ada.c" # an older file
status 0 grade_all
is "$in/ada.c " "graded because it was replaced" "$(tail -n +6 "$GRADED")"
is 9 "its new points" "$(jq .points "$out/ada.json")"
status 0 grade_all --again && is 11 "graded with --again" "$(wc -l <"$GRADED")"
rm "$out/eve.json"
status 0 grade_all --line 4
is "$in/eve.c " "whole, what has no result yet" "$(tail -n +12 "$GRADED" | grep eve)"
is 4 "with --line" "$(tail -n +12 "$GRADED" | grep -c -e --line)"
is 2 "the tables of ada.txt" "$(grep -c table "$out/ada.txt")"

# Interrupted: no result is left of what was not finished, and it goes on there.
echo hangs >"$in/007.c" && touch "$in/bob/ddp.c"
: >"$GRADED"
bash "$scratch/course/grade_all.sh" 1 "$in" "$out" --jobs 2 >"$scratch/out" 2>&1 &
until grep -q 007 "$GRADED" && grep -q bob "$GRADED"; do sleep 0.1; done
sleep 1 # until bob's is finished
kill $! && wait $!
is 1 "the exit status of an interrupted grading" $?
[ -z "$(ls -A "$TMPDIR")" ] || fail "left behind: $(ls -A "$TMPDIR")"
grep -q ended "$GRADED" || fail "a grader goes on after the interruption"
echo -1 >"$in/007.c"
: >"$GRADED"
status 1 grade_all
grep -q '007 could not be graded' "$scratch/out" || fail "whom the grader failed on is not named"
is "$in/007.c " "graded after the interruption" "$(cat "$GRADED")"
is '"007",,,,"not graded"' "its row" "$(grep 007 "$out/grades.csv")"
rm "$in/007.c" && echo 51 >"$in/ada.c"
status 0 grade_all
: >"$GRADED"
status 0 grade_all
is "$in/ada.c " "graded again, because it was replaced while it was graded" "$(cat "$GRADED")"

mkdir "$in/ada" && echo 1 >"$in/ada/ddp.c"
status 2 grade_all
rm -r "$in/ada"

# What people hand in and spreadsheets write: a path inside, a name with a comma, quotes, blanks; links; and no
# submissions.
mkdir -p "$in/Müller, Änne/stage1_naive" "$in/Müller, Änne/stage2_bucketed" "$in/nothing" "$in/both/a" "$in/both/b"
touch "$in/both/a/ddp.c" "$in/both/b/ddp.c" "$in/Müller, Änne/stage2_bucketed/ddp.c"
echo 60 >"$in/Müller, Änne/stage1_naive/ddp.c" && touch "$in/zoe.zip" && ln -s /none "$in/dangling.c"
mkdir -p "$in/tricky/x"$'\n.'/stage1_naive && echo 9 >"$in/tricky/x"$'\n.'/stage1_naive/ddp.c # ./stage1_naive/ddp.c?
echo 30 >"$in/=1+1 .c"
mkdir "$in/linked" && ln -s ../ada.c "$in/linked/ddp.c" && ln -s ada.c "$in/link.c" # ada's file is hers alone
printf '"Müller, Änne",2026-01-02 12:30\nyves,2026-01-02\n' >>"$in/handed_in"
printf '# Monday; Tuesday\n"Müller, Änne",a@x\n"eve",b\n bob ,c\n' >"$scratch/roster"
status 0 grade_all --roster "$scratch/roster" --deadline '2026-01-02 12:00:00'
is '"Müller, Änne",60,0,60,""' "a name with a comma" "$(grep Müller "$out/grades.csv")"
grep -q "^\"'=1+1 \",30,[0-9]*,0,\"not on the roster; rejected\"$" "$out/grades.csv" || fail "a name like a formula, late"
grep -q 'handed_in lacks =1+1 .*: the time is that of the file' "$scratch/out" || fail "who sets the time is not named"
is 3 "not on the roster" "$(grep -c 'not on the roster' "$out/grades.csv")" # ada, mallory x, =1+1
for left_out in nothing zoe.zip dangling.c both linked link.c tricky; do
    grep -q "warning: .*/$left_out is no NAME.c, and does not hold one ddp.c" "$scratch/out" ||
        fail "$left_out: $(cat "$scratch/out")"
done
grep -q 'handed_in: yves has handed in nothing' "$scratch/out" || fail "handed_in names yves, who has no submission"
printf 'M\374ller,b\n' >"$scratch/roster" && status 2 grade_all --roster "$scratch/roster"
grep -q 'roster, line 0: .*expected: CSV in UTF-8' "$scratch/out" || fail "Latin-1: $(cat "$scratch/out")"
printf 'eve;b\n' >"$scratch/roster" && status 2 grade_all --roster "$scratch/roster"
grep -q 'roster, line 1: semicolons, where commas' "$scratch/out" || fail "semicolons: $(cat "$scratch/out")"
for time in 2027 '' tomorrow 2027-13-01; do
    cp "$in/handed_in" "$scratch/kept" && echo "eve,$time" >>"$in/handed_in"
    status 2 grade_all
    grep -q "eve: '$time' is no time" "$scratch/out" || fail "handed in at '$time': $(cat "$scratch/out")"
    cp "$scratch/kept" "$in/handed_in"
done
rm -r "$in"/{nothing,both,zoe.zip,dangling.c,"Müller, Änne",linked,link.c,tricky,"=1+1 .c"}
status 2 bash "$scratch/course/grade_all.sh" 1 "$TMPDIR" "$out"
grep -q 'has no submission' "$scratch/out" || fail "an empty directory: $(cat "$scratch/out")"
for wrong in '--jobs 0' '--jobs' '--line x' '--deadline never' '--roster /none' '--agian'; do
    # shellcheck disable=SC2086 # two words
    status 2 grade_all $wrong
done
status 2 bash "$scratch/course/grade_all.sh" 9 "$in" "$out"
status 2 bash "$scratch/course/grade_all.sh" 2 "$in" "$out" # which has results of stage 1
mkdir -p "$scratch/in0/ada" && echo 40 >"$scratch/in0/ada/collectives.c"
status 0 bash "$scratch/course/grade_all.sh" 0 "$scratch/in0" "$scratch/out0" &&
    is '"ada",40,0,40,""' "points of assignment 0" "$(tail -n 1 "$scratch/out0/grades.csv")"
# Two files are handed in for stage 2, in one directory.
mkdir -p "$scratch/in2"/{ada/stage2_bucketed,bob} "$scratch/out2"
touch "$scratch/in2/ada/stage2_bucketed"/{ddp,buckets}.c "$scratch/in2/bob/ddp.c" "$scratch/in2/eve.c"
: >"$GRADED"
sed -i 's,^read -r points <"$2",[ ! -d "$2" ] \&\& & || points=60,' "$scratch/course/grade.sh"
bash "$scratch/course/grade_all.sh" 2 "$scratch/in2" "$scratch/out2" >"$scratch/out" 2>&1
is "$scratch/in2/ada/stage2_bucketed " "graded of two files" "$(cat "$GRADED")"
for left_out in bob eve.c; do
    grep -q "warning: .*/$left_out is no NAME.c, and does not hold one ddp.c and buckets.c" "$scratch/out" ||
        fail "$left_out: $(cat "$scratch/out")"
done
echo ada >>"$in/handed_in" && status 2 grade_all && sed -i '$d' "$in/handed_in"
sed -i /most_days/d "$scratch/course/late_days"
status 2 grade_all

# ---- late days when clocks change ----

# late DAYS ZONE DEADLINE TIME: ada, who handed in at TIME, is late by DAYS.
late() {
    echo "ada,$4" >"$clock/handed_in"
    status 0 env TZ="$2" bash "$scratch/course/grade_all.sh" 1 "$clock" "$scratch/late" --deadline "$3"
    ! grep warning "$scratch/out" || fail "handed_in has everyone, and there is a warning"
    is "$1" "late days in $2, deadline $3, handed in $4" \
        "$(sed -n 's/^"ada",80,\([0-9]*\),.*/\1/p' "$scratch/late/grades.csv")"
}
clock=$scratch/clock
mkdir "$clock" && echo 80 >"$clock/ada.c"
printf '%s\n' 'grace_hours 1' 'points_per_day 10' 'most_days 3' >"$scratch/course/late_days"
# Berlin, New York and St. John's: the day on which clocks are set back has 25 hours.
for zone in CET-1CEST,M3.5.0,M10.5.0/3@2027-10-30@2027-11-01 EST5EDT,M3.2.0,M11.1.0@2027-11-06@2027-11-08 \
    NST3:30NDT,M3.2.0,M11.1.0@2027-11-06@2027-11-08; do
    IFS=@ read -r zone before after <<<"$zone"
    late 0 "$zone" "$before 23:59" "$before 23:59"
    late 1 "$zone" "$before 23:59" "$after 00:59" # the same time, and the hour of grace
    late 2 "$zone" "$before 23:59" "$after 01:00"
done
zone=CET-1CEST,M3.5.0,M10.5.0/3
late 0 "$zone" '2027-10-31 02:30 +0200' '2027-10-31 02:30 +0100' # an hour later, on the same time of the clock
late 1 "$zone" '2027-10-31 02:30 +0200' '2027-10-31 02:31 +0100'
late 3 "$zone" '2027-10-30 23:59' '2027-11-03 00:59'
# The day on which clocks are set forward has 23 hours: nobody loses one.
late 1 "$zone" '2027-03-27 23:59' '2027-03-29 01:59'
late 2 "$zone" '2027-03-27 23:59' '2027-03-29 02:00'
late 1 EST5EDT,M3.2.0,M11.1.0 '2027-03-13 23:59' '2027-03-15 01:59'
late 1 EST5EDT,M3.2.0,M11.1.0 '2027-03-13 02:30' '2027-03-14 04:30' # there is no 02:30 on the next day
late 1 UTC '2027-10-30 23:59' '2027-11-01 00:59'
late 2 UTC '2027-10-30 23:59' '2027-11-01 01:00'

# ---- Gradescope: a results.json whatever happens ----

export AUTOGRADER=$scratch/failing
mkdir -p "$AUTOGRADER/source/lockstep/course" "$AUTOGRADER/submission"
echo stage1_naive >"$AUTOGRADER/source/stage" && touch "$AUTOGRADER/submission/ddp.c"
cp "$root"/course/{results.py,names.sh} "$AUTOGRADER/source/lockstep/course"
autograder() { # TEXT: what grade.sh does
    rm -rf "$AUTOGRADER/results"
    printf '#!/usr/bin/env bash\n%s\n' "$1" >"$AUTOGRADER/source/lockstep/course/grade.sh"
    chmod +x "$AUTOGRADER/source/lockstep/course/grade.sh"
    "$root/course/gradescope/run_autograder" >"$scratch/out" 2>&1
}
not_graded() { # TEXT
    autograder "$1"
    is '0 Not graded' "results.json if the grader does this: $1" \
        "$(jq -r '"\(.score) \(.output[:10])"' "$AUTOGRADER/results/results.json" 2>&1)"
}
autograder "[ \$GRADE_TOTAL = 540 ] && cp '$scratch/result.json' \"\$4\""
is 15 "the score at Gradescope" "$(jq '.tests | map(.score) | add' "$AUTOGRADER/results/results.json")"
not_graded 'exit 1'
not_graded 'echo "{}" >"$4"'
not_graded ': >"$4"'
not_graded 'kill -KILL $$'
not_graded 'kill -KILL $PPID'
not_graded 'kill -KILL $(cut -d " " -f 4 /proc/$PPID/stat); sleep 1' 2>/dev/null # run_autograder itself
GRADE_LIMIT=2 not_graded 'trap "" TERM; for i in $(seq 30); do sleep 1; done'
not_graded "cp '$scratch/result.json' \"\$4\"; mkdir \"\$AUTOGRADER/results/new.json\"" # it cannot be written
mkdir "$scratch/tools"
for tool in bash cat cp env find mkdir mv rm timeout; do ln -s "$(command -v $tool)" "$scratch/tools"; done
autograder_without() { PATH=$scratch/tools "$root/course/gradescope/run_autograder" >"$scratch/out" 2>&1; } # jq, python3
autograder_without
is '0 Not graded' "results.json without python3" \
    "$(jq -r '"\(.score) \(.output[:10])"' "$AUTOGRADER/results/results.json")"
rm "$AUTOGRADER/submission/ddp.c"
autograder_without
is '0 Hand in one file with the name ddp.c. There are 0.' "results.json without a ddp.c" \
    "$(jq -r '"\(.score) \(.output)"' "$AUTOGRADER/results/results.json")"
echo collectives >"$AUTOGRADER/source/stage" && touch "$AUTOGRADER/submission/collectives.c"
autograder "[ \$1 = collectives ] && [ -f \$2/collectives.c ] && cp '$scratch/result.json' \"\$4\""
is 15 "assignment 0 at Gradescope" "$(jq '.tests | map(.score) | add' "$AUTOGRADER/results/results.json")"

# ---- grades ----

# at_gradescope SUBMISSION POINTS: what Gradescope does with a submission, in a directory of its own.
at_gradescope() {
    rm -rf "$AUTOGRADER/submission" && mkdir "$AUTOGRADER/submission" && cp "$1" "$AUTOGRADER/submission/ddp.c"
    status 0 "$AUTOGRADER/run_autograder" || return
    cp "$AUTOGRADER/results/results.json" "$scratch/gradescope.json"
    is "$2 of 100" "$1 at Gradescope" "$(
        jq -r '.tests | "\(map(.score) | add) of \(map(.max_score) | add)"' "$scratch/gradescope.json"
    )"
}

if [ "${2-}" = --grade ]; then
    export AUTOGRADER=$scratch/autograder
    mkdir -p "$AUTOGRADER"
    status 0 "$root/course/make_gradescope_zip.sh" 1 "$scratch/autograder.zip"
    python3 - "$scratch/autograder.zip" "$AUTOGRADER/source" <<'END' || fail "the archive cannot be unpacked"
import os, sys, zipfile
archive = zipfile.ZipFile(sys.argv[1])
for entry in archive.infolist():
    assert "/build" not in entry.filename.replace("/build.sh", "") and ".git/" not in entry.filename, entry.filename
    os.chmod(archive.extract(entry, sys.argv[2]), entry.external_attr >> 16)
END
    cp "$AUTOGRADER/source/run_autograder" "$AUTOGRADER"
    status 0 "$AUTOGRADER/source/setup.sh"
    [ -z "$(find "$AUTOGRADER/source" -name ddp.c -o -path '*/solutions/*' -o -name quiz_key.md)" ] ||
        fail "solutions lie where a submission could include them"
    "$root/course/make_starter.sh" 1 "$scratch/starter" >/dev/null
    at_gradescope "$root/stage1_naive/ddp.c" 100
    at_gradescope "$scratch/starter/stage1_naive/ddp.c" 0
    echo 'int ddp(' >"$scratch/broken.c" && at_gradescope "$scratch/broken.c" 0
    jq -r .output "$scratch/gradescope.json" | grep -q 'ddp.c:1:.*error' || fail "the compiler's error is not shown"
    cp "$scratch/broken.c" "$AUTOGRADER/submission/sub.c" && rm "$AUTOGRADER/submission/ddp.c"
    status 0 "$AUTOGRADER/run_autograder"
    is 0 "the score without a ddp.c" "$(jq .score "$AUTOGRADER/results/results.json")"

    # One line again: only that one changes.
    export GRADE_CACHE=$AUTOGRADER/cache
    status 0 "$root/course/grade.sh" 1 "$scratch/starter/stage1_naive/ddp.c" --json "$scratch/json"
    status 0 "$root/course/grade.sh" 1 "$root/stage1_naive/ddp.c" --json "$scratch/json" --line 4
    is "15 15 [4]" "points, line 4's, and which passed" "$(jq -r '"\(.points) \(.items[3].points) \(
        [.items | to_entries[] | select(.value.passed) | .key + 1])"' "$scratch/json")"
    is 12 "lines in all" "$(jq '.items | length' "$scratch/json")"
    status 2 "$root/course/grade.sh" 1 "$root/stage1_naive/ddp.c" --line 13
    status 2 "$root/course/grade.sh" 1 "$root/stage1_naive/ddp.c" --json "$scratch/other.json" --line 4
    [ -z "$(ls -A "$TMPDIR")" ] || fail "left behind: $(ls -A "$TMPDIR")"

    # Each case hangs, and so would the compiler: it is over in GRADE_TOTAL, with a result.
    over() { # TOTAL PATTERN SUBMISSION
        status 0 env GRADE_SECONDS=300 GRADE_TOTAL="$1" timeout 200 \
            "$root/course/grade.sh" 1 "$3" --json "$scratch/json"
        grep -q -e "$2" "$scratch/out" || fail "$3: no output matches '$2': $(cat "$scratch/out")"
        is "0 of 100" "$3" "$(jq -r '"\(.points) of \(.of)"' "$scratch/json")"
    }
    sed '/^Ddp \*ddp_create(/,/^{/s/^{/{ for (volatile int i = 0;; i++) { }/' "$root/stage1_naive/ddp.c" \
        >"$scratch/hangs.c"
    over 60 'not run: the 60 s for everything were over' "$scratch/hangs.c"
    { echo '#define A0' && for i in $(seq 40); do echo "#define A$i A$((i - 1)) A$((i - 1))"; done && echo A40; } \
        >"$scratch/expands.c"
    over 15 'the compiler was still running when its time was over' "$scratch/expands.c"
    printf '#include __FILE__\n#include __FILE__\n' >"$scratch/includes.c"
    over 15 'does not build' "$scratch/includes.c"
fi

finish
