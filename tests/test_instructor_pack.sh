#!/usr/bin/env bash
# test_instructor_pack.sh: course/make_instructor_pack.sh makes a whole pack, and the pack fits the project. Every
# exercise of a chapter and every question of an assignment has its solution, by number and first words, and the other
# way round. The quiz has 34 questions with one key each, and keys that are numbers are computed. Every file that a
# document names is there.
#
# usage: test_instructor_pack.sh ROOT
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
root=$1
command -v python3 >/dev/null || { echo "skipped: python3 is missing (Debian, Ubuntu: apt-get install it)"; exit 77; }

# ---- the script ----

make_pack=$root/course/make_instructor_pack.sh
status 2 "$make_pack"
mkdir "$scratch/there"
status 2 "$make_pack" "$scratch/there"
[ -d "$scratch/there" ] || fail "it has removed a directory that existed before"
status 0 env PANDOC=no-such-program "$make_pack" "$scratch/text"
grep -q 'pandoc is missing' "$scratch/out" || fail "without pandoc it does not say so: $(cat "$scratch/out")"
[ ! -e "$scratch/text/lecture.html" ] || fail "lecture.html without pandoc"
status 1 env PANDOC=false "$make_pack" "$scratch/broken"
[ ! -e "$scratch/broken" ] || fail "pandoc has failed, and an incomplete pack is left"
pack=$scratch/text
if command -v pandoc >/dev/null; then
    status 0 "$make_pack" "$scratch/pack"
    pack=$scratch/pack
    slides=$(grep -c '^# ' "$pack/lecture.md")
    sections=$(grep -c '<section .*class="slide' "$pack/lecture.html")
    [ "$sections" -eq "$slides" ] || fail "lecture.html has $sections slides, lecture.md has $slides"
    ! grep -n -o -E '(src|href)="[^d#][^"]{0,60}' "$pack/lecture.html" || fail "lecture.html needs these other files"
fi

# ---- the lecture ----

minutes=$(sed -n 's/^\[\([0-9]*\) min\]{.minutes}$/\1/p' "$pack/lecture.md" |
    awk '{ sum += $1 } END { print sum + 0, NR }')
[ "$minutes" = "45 $(grep -c '^# ' "$pack/lecture.md")" ] ||
    fail "lecture.md: minutes and slides that have them are $minutes: all slides need them, and 45 in all"

# ---- solutions ----

# DOCUMENT <tab> NUMBER <tab> TEXT for each exercise (numbered, of chapters) and question (a list, of assignments).
exercises() {
    (cd "$root" && awk '
        function put() { if (text != "") print document "\t" number "\t" text; text = "" }
        FNR == 1 { put(); inside = number = 0 }
        /^## / { put(); inside = /^## (Exercises|Try it yourself|Questions to answer for yourself)$/; next }
        !inside { next }
        /^([0-9]+\.|-) / { put(); document = FILENAME; number++; sub(/^([0-9]+\.|-) /, ""); text = $0; next }
        /^ *$/ || /^\(/ || /^    / { put(); next }
        text != "" { sub(/^ +/, ""); text = text " " $0 }
        END { put() }' notes/*.md course/*.assignment.md course/measured.md)
}
# The same for solutions: TEXT is the quoted beginning.
solutions() {
    awk '/^## / { document = $2; next }
         match($0, /^\*\*[0-9]+\.\*\* /) { number = $0; sub(/^\*\*/, "", number); sub(/\..*/, "", number)
             text = $0; sub(/^\*\*[0-9]+\.\*\* /, "", text); quoted = 1 }
         quoted && !match($0, /^\*\*[0-9]+\.\*\* /) { text = text " " $0 }
         quoted && match(text, /^\*[^*].*[^*]\*( |$)/) { sub(/^\*/, "", text); sub(/\* .*|\*$/, "", text)
             print document "\t" number "\t" text; quoted = 0 }' "$pack/solutions.md"
}
exercises >"$scratch/exercises"
solutions >"$scratch/solutions"
[ "$(wc -l <"$scratch/exercises")" -ge 60 ] || fail "found only $(wc -l <"$scratch/exercises") exercises"
tab=$(printf '\t')
while IFS=$tab read -r document number text; do
    start=$(awk -F "$tab" -v d="$document" -v n="$number" '$1 == d && $2 == n { print $3 }' "$scratch/solutions")
    [ -n "$start" ] || { fail "$document, $number has no solution in solutions.md: $text"; continue; }
    [ "${text#"$start"}" != "$text" ] || fail "$document, $number begins '$text', but its solution begins '$start'"
done <"$scratch/exercises"
cut -f 1,2 "$scratch/solutions" | sort | uniq -d | while read -r twice; do echo "FAIL: two solutions for $twice"; done |
    grep . && failures=$((failures + 1))
while IFS=$tab read -r document number text; do
    grep -q "^$document$tab$number$tab" "$scratch/exercises" ||
        fail "solutions.md solves $document, $number, which does not exist: $text"
done <"$scratch/solutions"

# ---- quiz ----

status 0 "$pack/compute.py" "$pack"
[ "$(grep -c '^question ' "$scratch/out")" -ge 12 ] || fail "too few keys were computed: $(cat "$scratch/out")"
[ "$(grep -c '^[0-9]*\. \*\*' "$pack/oral.md")" -eq 14 ] || fail "oral.md has not 14 questions"

# ---- measured figures: the answers in the pack can be true, and each of these wrong ones is found ----

measured=$root/course/measured.py
status 0 "$measured" "$pack/measured_answers.txt"
grep -q '^8 exercise(s), 0 complaint(s)' "$scratch/out" || fail "measured.py: $(cat "$scratch/out")"

# wrong EXERCISE NAME VALUE [TEXT]: with this one figure changed, a complaint names it, and says TEXT.
wrong() {
    awk -v exercise="$1" -v name="$2" -v value="$3" '$1 == "exercise:" { inside = $2 == exercise; if (inside) print; next }
        inside && $1 == name ":" { if (value != "none") print name ": " value; next }
        inside' "$pack/measured_answers.txt" >"$scratch/answers"
    status 1 "$measured" "$scratch/answers"
    grep -q "^exercise $1: ${4-$2 is }" "$scratch/out" || fail "measured.py, $2 $3 in exercise $1: $(cat "$scratch/out")"
}
wrong 1 ranks 1
wrong 1 parameters 500000
wrong 1 mb_per_step 5.4         # 8 bytes
wrong 1 all_reduces 12
wrong 1 latency_ms 6            # one message for each all-reduce
wrong 1 in_flight_ms 20         # faster than the link
wrong 1 exposed_ms 50           # more than is in flight
wrong 1 exposed_ms 20           # stage 1 hides nothing
wrong 1 step_ms 30              # less than what is exposed
wrong 2 speed_up 0.72           # the other way round
wrong 2 samples_per_s 9000 'speed_up is '
wrong 2 samples_per_s_1 2000 'speed_up is '
wrong 2 batch 256 'samples_per_s is '
wrong 3 all_reduces_many 2
wrong 3 all_reduces_few 6
wrong 3 exposed_many_ms 25
wrong 3 exposed_few_ms 12
wrong 3 saved_ms 3.8
wrong 4 wire_mb_2 5.358         # without (N-1)/N
wrong 4 wire_mb_3 2.679
wrong 4 wire_mb_4 8.037         # without 1/N
wrong 5 parameters 669706
wrong 5 in_flight_ms 90
wrong 5 exposed_ms 300
wrong 5 backward_ms 200 'exposed_ms is '
wrong 5 hidden_percent 10       # what is exposed
wrong 5 step_ms 800
wrong 6 all_reduces_4 8         # in every micro-batch
wrong 6 mb_1 5.358
wrong 6 parameters 334853
wrong 6 mb_4 10.7
wrong 6 mb_bf16 2.679
wrong 7 weights_mb_2 3.281
wrong 7 parameters 669706
wrong 7 gradients_mb_1 3.281
wrong 7 gradients_mb_2 13.124
wrong 7 optimizer_mb_1 26.05
wrong 7 optimizer_mb_3 3.262    # 4 bytes
wrong 7 weights_mb_1 6.5
wrong 7 weights_mb_3 13.124
wrong 7 gradients_mb_3 13.124
wrong 7 optimizer_mb_2 26.05
wrong 8 ranks 4
wrong 8 ring_long_us 20000     # a longer buffer in less time
wrong 8 alpha_us 5422          # 5 messages instead of 10
wrong 8 beta_us_per_mb 13525   # without 2 (N-1)/N
wrong 8 predicted_kb 334       # alpha / beta
wrong 8 ring_faster_from_kb 99999
wrong 2 step_ms 10 "step_ms is "
sed -i 's/^samples_per_s: 4804/samples_per_s: 9000/; s/^step_ms: 98.36/step_ms: 57/' "$pack/measured_answers.txt"
wrong 2 speed_up 2.62           # more than N times as fast
wrong 1 step_ms none 'missing: step_ms'
wrong 1 why because 'missing: a sentence'
wrong 5 in_flight_ms 0
# refused TEXT LINE...: a file of these lines is refused, in one line that says TEXT.
refused() {
    printf '%s\n' "${@:2}" >"$scratch/answers"
    status 2 "$measured" "$scratch/answers"
    grep -q "^measured: error: $1" "$scratch/out" || fail "measured.py, lines ${*:2}: $(cat "$scratch/out")"
}
refused "line 1, 'exercise: 9': expected 'exercise: 1' (to 8)" 'exercise: 9'
refused "line 1, 'ranks: 2': expected 'exercise: 1' (to 8) before it" 'ranks: 2'
refused "line 2, 'ranks: two': expected a number without a unit" 'exercise: 1' 'ranks: two'
refused "line 2, 'ranks: -2': expected a number" 'exercise: 1' 'ranks: -2'
refused "line 2, 'all_reduce: 6': exercise 1 has no 'all_reduce'; it has ranks, " 'exercise: 1' 'all_reduce: 6'
refused "line 2, 'batch': exercise 1 has no 'batch'" 'exercise: 1' batch
refused "line 4, 'ranks: 3': ranks is given twice in exercise 1" 'exercise: 1' 'ranks: 2' '# a remark' 'ranks: 3'
refused "line 3, 'why: b': why is given twice" 'exercise: 2' 'why: a' 'why: b'
refused "line 3, 'exercise: 1': exercise 1 is given twice" 'exercise: 1' 'exercise: 2' 'exercise: 1'
refused "no line begins an exercise" '# a remark'
# As Windows writes it.
{ printf '\357\273\277'; sed 's/$/\r/' "$root/course/instructor/measured_answers.txt"; } >"$scratch/answers"
status 0 "$measured" "$scratch/answers"
status 2 "$measured" "$scratch/none"
status 2 "$measured"

# ---- links and names ----

for document in "$pack"/*.md; do
    name=$(basename "$document")
    grep -v '^    ' "$document" | tr '\n' ' ' | sed 's/`[^`]*`//g' | grep -o -E '\]\([^() ]+\)' | tr -d ']()' |
        sed 's/#.*//' | grep -v -E '^(https?:.*)?$' | while IFS= read -r target; do
            [ -e "$pack/$target" ] || echo "FAIL: $name: there is no $target in the pack"
        done
    # Files of the project, and mutants by name.
    grep -o -E '\b(course|notes|tests|common|train|scripts|tools|backends|stage[1-5]_[a-z]+)/[A-Za-z0-9_./-]*[A-Za-z0-9_]' \
        "$document" | grep -v -E '^stage.*/train$' | sort -u | while IFS= read -r path; do
            [ -e "$root/$path" ] || grep -q -F "build/$path" "$document" || # a program
                echo "FAIL: $name names $path, which does not exist"
        done
    # Mutants: "Mutant NAME" in the solutions; in the key, a name alone in brackets.
    grep -o -E '\(?Mutant [a-z0-9-]+|\([a-z]+(-[a-z0-9]+)+\)' "$document" | sed -E 's/.*Mutant //; s/[()]//g' |
        while IFS= read -r mutant; do
            [ -e "$root/tests/mutants/$mutant.patch" ] || echo "FAIL: $name: there is no mutant $mutant"
        done
done >"$scratch/names"
if [ -s "$scratch/names" ]; then
    cat "$scratch/names"
    failures=$((failures + $(wc -l <"$scratch/names")))
fi

echo "$(wc -l <"$scratch/exercises") exercises, $(wc -l <"$scratch/solutions") solutions; $failures failure(s)"
[ $failures -eq 0 ]
