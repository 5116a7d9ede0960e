#!/usr/bin/env bash
# test_instructor_pack.sh: course/make_instructor_pack.sh makes a whole pack, and the pack fits the project. Every
# exercise of a chapter and every question of an assignment has its solution, by number and first words, and the other
# way round. The quiz has 30 questions with one key each, and keys that are numbers are computed. Every file that a
# document names is there. With --commands, in minutes: the commands of the solutions and of the lecture print what is
# written below them.
#
# usage: test_instructor_pack.sh ROOT [--commands]
set -u
root=$1
command -v python3 >/dev/null || { echo "skipped: python3 is missing (Debian, Ubuntu: apt-get install it)"; exit 77; }
if [ "${2-}" = --commands ]; then
    exec python3 "$root/scripts/check_examples.py" "$root/course/instructor/solutions.md" \
        "$root/course/instructor/lecture.md"
fi
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
failures=0

fail() {
    failures=$((failures + 1))
    echo "FAIL: $*"
}

# status EXPECTED COMMAND...: checks the exit status; output goes to $scratch/out
status() {
    local expected=$1 got
    shift
    "$@" >"$scratch/out" 2>&1
    got=$?
    [ $got -eq "$expected" ] || fail "$*: exit status $got, expected $expected: $(tail -n 5 "$scratch/out")"
}

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
        END { put() }' notes/*.md course/*.assignment.md)
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
[ "$(grep -c '^[0-9]*\. \*\*' "$pack/oral.md")" -eq 20 ] || fail "oral.md has not 20 questions"

# ---- links and names ----

for document in "$pack"/*.md; do
    name=$(basename "$document")
    grep -v '^    ' "$document" | tr '\n' ' ' | sed 's/`[^`]*`//g' | grep -o -E '\]\([^() ]+\)' | tr -d ']()' |
        sed 's/#.*//' | grep -v -E '^(https?:.*)?$' | while IFS= read -r target; do
            [ -e "$pack/$target" ] || echo "FAIL: $name: there is no $target in the pack"
        done
    # Files of the project, and mutants by name.
    grep -o -E '\b(course|notes|tests|common|train|scripts|bench|gpu|stage[1-5]_[a-z]+)/[A-Za-z0-9_./-]*[A-Za-z0-9_]' \
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
