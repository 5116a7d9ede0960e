#!/usr/bin/env bash
# test_course.sh: course/ still fits the stages. Without --grade, in seconds: the patches that empty the stages apply;
# each starter's files compile without warnings and hold no solution, and stage 1's starter, which lacks most, links;
# points name cases that exist; wrong usage is reported. With --grade, in minutes: a starter gets no points, the stage's
# own files get all, classical mistakes lie between and are named. With --mistakes, in an hour: all mistakes of
# tests/mutants that are in these files alone lose points, by a message that names them. (test_course_hostile.sh has
# submissions that mean harm.)
#
# usage: test_course.sh ROOT [--grade | --mistakes] [PATTERN]
#   PATTERN   grade only what it matches, for example stage3, 'stage[12] ddp' or wait-missing
#   GRADE_CACHE   a directory that keeps the builds for the next call, as in grade.sh (none)
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
export LC_ALL=C
root=$1 only=${3-}
command -v patch >/dev/null || { echo "skipped: patch is missing (Debian, Ubuntu: apt-get install patch)"; exit 77; }

# shellcheck source-path=SCRIPTDIR source=../course/names.sh
source "$root/course/names.sh"

own() { # STAGE: the project's own solution, as grade.sh takes it: a file, or a directory with several
    find_stage "$1" "$root/course" || return
    if [ ${#c_files[@]} -eq 1 ]; then echo "$root/$home/$c_file"; else echo "$root/$home"; fi
}

# patched STAGE PATCH TO: the project's own solution, changed by a patch, as the file or directory TO.
patched() {
    find_stage "$1" "$root/course"
    rm -rf "$scratch/patched" && mkdir -p "$scratch/patched/$home" && cp "$root/$home"/*.[ch] "$scratch/patched/$home"
    status 0 patch -s -d "$scratch/patched" -p1 --fuzz=0 --no-backup-if-mismatch -r - -i "$2" || return
    if [ ${#c_files[@]} -eq 1 ]; then cp "$scratch/patched/$home/$c_file" "$3"; else cp -r "$scratch/patched/$home" "$3"; fi
}

# ---- starters ----

compiles() { # STARTER STAGE [SUBMISSION]
    local compiler=cc name from=${3:-$1/$2}
    set_names "$2"
    [ "$number" -gt 0 ] || compiler=mpicc # it includes mpi.h
    for name in "${c_files[@]}"; do
        if [ -d "$from" ]; then name=$from/$name; else name=$from; fi
        status 0 "${CC:-$compiler}" -std=gnu11 -D_GNU_SOURCE -O2 -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion \
            -Werror -I "$1/common" -iquote "$1" -iquote "$1/$2" -c "$name" -o "$scratch/ddp.o"
    done
}

# Among the lines that the patch removes, those that communicate, scale or count must not be in the starter.
holds_no_solution() { # STARTER STAGE
    find "$1" \( -name .git -o -name course -o -name mutants -o -path '*/stage*/ddp.c' ! -path "$1/$2/*" \) >"$scratch/left"
    [ ! -s "$scratch/left" ] || fail "$2: the starter also holds $(cat "$scratch/left")"
    sed -n 's/^-  *//p' "$root/course/$2.patch" |
        grep -E 'exchange\(|combine\(|(pg|replicas|readiness|shards|weights|work|device|tape|parameters)_[a-z_]+\(|pending|of_parameter' |
        grep -v -F -x -e 'int pending = 0;' -e 'wait_for_messages(pg, c, pending, requests);' \
            -e 'device_free(bucket->encoded);' >"$scratch/lines" # an example in a comment, or given code, has these
    [ -s "$scratch/lines" ] || fail "$2.patch removes nothing"
    ! grep -r -F -f "$scratch/lines" "$1/$2" "$1/notes" "$1/tests" || fail "$2: it holds this line of the solution"
}

# A file of the project that the starter lacks is named only with the words "[not here]", or where a chapter shows
# commands. (Scripts name what is handed in, in all assignments.)
names_nothing_else() { # STARTER STAGE
    (cd "$root" && find ./* -name 'build*' -prune -o -type f -print) | sed 's|.*/||' |
        grep -E '\.(c|h|cu|cpp|sh|py|cmake|md|patch|supp)$' | sort -u >"$scratch/all"
    find "$1" -type f | sed 's|.*/||' | sort -u >"$scratch/here"
    comm -23 "$scratch/all" "$scratch/here" | grep -v -x -E 'ddp\.c|collectives\.[ch]' >"$scratch/elsewhere"
    ! grep -r -n -F '[not here] [not here]' "$1" || fail "$2: says twice that something is not here"
    ! grep -r -n -w -F --exclude=names.sh -f "$scratch/elsewhere" "$1" | grep -v -E '\[not here\]|\.md:[0-9]+:    ' ||
        fail "$2: these lines name what is not handed out"
}

solution() { # NAME: another correct version of a stage, tests/stages/solutions/NAME.c or .patch, as $scratch/NAME.c
    cp "$root/tests/stages/solutions/$1.c" "$scratch" 2>/dev/null ||
        patched "${1:5:1}" "$(realpath "$root/tests/stages/solutions/$1.patch")" "$scratch/$1.c"
}
solutions() {
    find "$root/tests/stages/solutions" -type f -printf '%f\n' | sed 's/\..*//' | sort
}

# Every file that a starter's sources include is in the starter. (--grade builds the starters, which takes minutes.)
has_all_headers() { # STARTER STAGE
    (cd "$1" && grep -r -E '^#include "' --include='*.[ch]' . | sed -E 's/^\.\/([^:]*):#include "([^"]*)".*/\1 \2/' |
        while read -r file header; do
            [ -e "common/$header" ] || [ -e "$header" ] || [ -e "tests/stages/$header" ] ||
                [ -e "collectives/$header" ] || [ -e "$(dirname "$file")/$header" ] || echo "$file: $header"
        done) >"$scratch/no_headers"
    [ ! -s "$scratch/no_headers" ] || fail "$2: the starter lacks these headers:" "$(cat "$scratch/no_headers")"
}

# Every relative link and picture in a starter's documents leads to a file.
has_good_links() { # STARTER STAGE
    find "$1" -name '*.md' | while IFS= read -r document; do
        sed 's/`[^`]*`//g' "$document" | tr '\n' ' ' | grep -o -E '\]\([^() ]+\)' | sed -E 's/^\]\(//; s/[#)].*//' |
            grep -v -E '^(https?:.*)?$' | while IFS= read -r target; do
                [ -e "$(dirname "$document")/$target" ] || echo "${document#"$1"/}: $target"
            done
        grep -n -E '^!([^[]|$)' "$document" | sed "s|^|${document#"$1"/}: half a picture: |"
    done >"$scratch/bad_links"
    [ ! -s "$scratch/bad_links" ] || fail "$2: these links lead nowhere:" "$(cat "$scratch/bad_links")"
}

# A starter is built with the project's warnings and other flags.
flags() { # FILE
    sed -E '/for_cuda|Werror|checked_calls|-z,relro/d; s/ *#.*//' "$1" |
        grep -o -E -e '-(W[a-z-]+|f[a-z=,-]+|O3|march=native)' | sort -u
}
status 0 diff <(flags "$root/cmake/lockstep.cmake") <(flags "$root/course/flags.cmake")

has_good_points() { # STAGE
    local worth program cases case sum=0
    while read -r worth program _ cases _; do
        sum=$((sum + worth))
        program=${program##*:}
        for case in ${cases//+/ }; do
            [ "$case" = - ] || cat "$root"/tests/{stages,collectives}/{test_,}"$program".c 2>/dev/null |
                grep -q -E "(cmocka_unit_test\(|judge_case_is_over\(\"|^ +\{\")${case#*:}\b" ||
                fail "$1.points: there is no case $case in tests/stages/test_$program.c"
        done
    done < <(grep -v -E '^#|^ +read: ' "$root/course/$1.points")
    [ $sum -eq 100 ] || fail "$1.points: the points add up to $sum"
}

for patch in "$root"/course/{collectives,stage[1-9]_*}.patch; do
    stage=$(basename "$patch" .patch)
    starter=$scratch/$stage
    status 0 "$root/course/make_starter.sh" "$stage" "$starter" || continue
    compiles "$starter" "$stage"
    holds_no_solution "$starter" "$stage"
    names_nothing_else "$starter" "$stage"
    has_all_headers "$starter" "$stage"
    has_good_links "$starter" "$stage"
    has_good_points "$stage"
    set_names "$stage"
    [ "$number" -eq 0 ] || grep -q '^set(graded .*equivalence' "$starter/CMakeLists.txt" ||
        fail "$stage: CMakeLists.txt does not name the graded tests"
    grep -q '| 5 | A' "$starter/ASSIGNMENT.md" || fail "$stage: ASSIGNMENT.md has no table of points"
    while read -r worth _ _ cases _; do # each line of the table names its cases
        names=$(grep -o 'test_[a-z_0-9]*' <<<"$cases" | sed 's/.*/`&`.*/' | tr -d '\n')
        grep -q "^| $worth | [A-Z].* | [a-z].*$names|$" "$starter/ASSIGNMENT.md" ||
            fail "$stage: the table of points does not name $cases"
    done < <(grep -v -E '^#|^ +read: ' "$root/course/$stage.points")
    if [ -f "$root/course/assistants.md" ]; then # a lecturer may remove it
        for name in "${c_files[@]}"; do
            grep -q "code in .*\`$stage/$name\`" "$starter/AGENTS.md" || fail "$stage: AGENTS.md does not name its $name"
        done
    fi
    grep -q '^| all-reduce |' "$starter/ASSIGNMENT.md" || fail "$stage: ASSIGNMENT.md explains no words"
    [ "$number" -eq 0 ] || grep -q '^| .* | .*all-reduce' "$starter/tests/README.md" || fail "$stage: tests/README.md explains no messages"
done

for name in $(solutions); do # --grade grades them
    find_stage "${name:5:1}" "$root/course"
    solution "$name" && compiles "$scratch/$stage" "$stage" "$scratch/$name.c"
done

# The starter of stage 1 links without the files that left_out.c replaces.
status 0 cmake -S "$scratch/stage1_naive" -B "$scratch/linked" -DCMAKE_BUILD_TYPE=Debug &&
    status 0 cmake --build "$scratch/linked" --parallel 2 --target train

# That of the collectives links, and says what is missing.
status 0 cmake -S "$scratch/collectives" -B "$scratch/linked0" &&
    status 0 cmake --build "$scratch/linked0" --parallel 2 --target test_collectives_stage0 &&
    status 2 "$scratch/linked0/collectives/test_collectives_stage0" --case test_ring &&
    { grep -q 'ring_all_reduce() is not written yet' "$scratch/out" || fail "collectives: $(cat "$scratch/out")"; }

# Its tests run all ranks in one process. What a rank takes from another one without a message is no solution.
starter=$scratch/collectives/collectives/collectives.c
cp "$starter" "$scratch/empty.c"
sed -i 's/die("broadcast() is not.*/static void *all; static int left; const size_t bytes = 8 * c->count;\
    if (left == 0) { left = pg->world_size; all = NULL; }\
    if (pg->rank == c->root) all = memcpy(alloc_or_fault(bytes + 1), c->receive, bytes);\
    while (all == NULL) wait_for_messages(pg, c, 0, NULL);\
    memcpy(c->receive, all, bytes), left--;/' "$starter"
status 0 cmake --build "$scratch/linked0" --target test_collectives_stage0 &&
    status 1 "$scratch/linked0/collectives/test_collectives_stage0" --case test_broadcast &&
    { grep -q 'send 0 elements, and their results need' "$scratch/out" || fail "no message: $(cat "$scratch/out")"; }
mv "$scratch/empty.c" "$starter"

# What is searched for English words is in English, whatever language the student has chosen.
mkdir "$scratch/tools"
cat >"$scratch/tools/cmake" <<'END'
#!/bin/sh
case $1=${LC_ALL:-${LC_MESSAGES:-${LANG-}}} in
-S=*) ;;
--build=C) echo "ddp.c:1:1: error: 'x' undeclared" && exit 1 ;;
*) echo "ddp.c:1:1: Fehler: »x« nicht deklariert" && exit 1 ;;
esac
END
chmod +x "$scratch/tools/cmake"
status 1 env PATH="$scratch/tools:$PATH" LC_ALL=de_DE.UTF-8 LANGUAGE=de "$scratch/stage1_naive/check"
grep -q "error: 'x' undeclared" "$scratch/out" || fail "check finds no error of a German compiler: $(cat "$scratch/out")"
rm -rf "$scratch/stage1_naive/build"

# outcome ENDING: the table, if its one case ends in this way. A case whose result cannot be written has failed.
outcome() (
    # shellcheck disable=SC2034 # read by cases.sh
    points=$scratch/points work=$scratch/work stage=stage1_naive number=1 build='' seconds=1 total_seconds=600 \
        at_once=1 mpiexec_options=() not_run='' ending=$1
    printf '15 bits - - Sums\n read: a.md\n' >"$points"
    mkdir -p "$work"
    # shellcheck source-path=SCRIPTDIR source=../course/cases.sh
    source "$root/course/cases.sh"
    # shellcheck source-path=SCRIPTDIR source=../tests/stages/messages.sh
    source "$root/tests/stages/messages.sh"
    limited() { "$ending" "$1"; }
    report() { :; }
    trap '' XFSZ # a limit of file sizes is like a full disk: files that stay empty
    run_lines < <(lines_of_points) 2>/dev/null
)
ends_late() { began=$((began - 600)) && return 124; }
passes() { echo 'test: 0 failure(s)' >"$1"; }
says_passed() { echo 'ERROR: passed' >"$1" && return 1; }
fills_the_disk() { ulimit -f 0 && return 1; }
[[ $(outcome ends_late) = *'running when the 600 s for everything were over'* ]] || fail "late: $(outcome ends_late)"
[[ $(outcome passes) = *'15/ 15  passed'* ]] || fail "a case that passes: $(outcome passes)"
[[ $(outcome says_passed) = *'0/ 15  FAILED'* ]] || fail "a failed case that says passed: $(outcome says_passed)"
[[ $(outcome fills_the_disk) = *'0/ 15  FAILED'* ]] || fail "a case on a full disk: $(outcome fills_the_disk)"

# A variant compiles. So does the stage's own ddp.c, if it is rewritten as well, but not as it is.
variant=$scratch/variant
status 0 "$root/course/make_starter.sh" 3 "$variant" --variant 7 && compiles "$variant" stage3_overlap
cp "$root/stage3_overlap/ddp.c" "$variant/stage3_overlap/ddp.c"
(compiles "$variant" stage3_overlap) >/dev/null && fail "a copy of the public solution compiles in a variant"
status 0 "$root/course/variant.sh" 7 "$variant/stage3_overlap/ddp.c" && compiles "$variant" stage3_overlap
calls='^ *ddp_(before_forward|begin_micro_batch|next_micro_batch|prepare_forward)\('
grep -r -n -E "$calls" "$variant"/{tests,train} >"$scratch/calls"
[ "$(wc -l <"$scratch/calls")" -gt 5 ] && ! grep -v '!(' "$scratch/calls" ||
    fail "variant 7 does not call with the other meaning: $(cat "$scratch/calls")"
status 2 "$root/course/make_starter.sh" 3 "$scratch/none" --variant x
status 2 "$root/course/make_starter.sh"
status 2 "$root/course/make_starter.sh" 6 "$scratch/none"
status 2 "$root/course/make_starter.sh" 0 "$scratch/none" --variant 7
status 2 "$root/course/make_starter.sh" 1 "$scratch"
grep -q 'exists' "$scratch/out" || fail "make_starter.sh does not say that the directory exists"
status 2 "$root/course/grade.sh"
status 2 "$root/course/grade.sh" 1
status 2 "$root/course/grade.sh" 1 "$scratch/none.c"
status 2 "$root/course/grade.sh" stage5 "$root/course/README.md"
status 2 "$root/course/grade.sh" 1 "$root/course/README.md" --jsn "$scratch/json"
status 2 "$root/course/grade.sh" 1 "$root/course/README.md" --json "$scratch/none/json"

# ---- from an archive that was unpacked inside another repository, which ignores it ----

unpacked=$scratch/other/vendor/lockstep
mkdir -p "$unpacked" && echo vendor/ >"$scratch/other/.gitignore"
(cd "$root" && cp -r CMakeLists.txt CMakePresets.json cmake common course notes scripts stage[1-9]_* tests "$unpacked")
if command -v git >/dev/null; then # without git, the test is simpler
    git -C "$scratch/other" init -q || fail "git init"
fi
status 0 "$unpacked/course/make_starter.sh" 1 "$scratch/from_archive" &&
    status 0 diff -r "$scratch/stage1_naive/stage1_naive" "$scratch/from_archive/stage1_naive"

# An incomplete starter is removed, but not a directory that existed before.
echo '/* another file */' >"$unpacked/stage1_naive/ddp.c"
status 1 "$unpacked/course/make_starter.sh" 1 "$scratch/half" && {
    grep -q 'no longer applies' "$scratch/out" || fail "a patch that does not apply: $(cat "$scratch/out")"
    [ ! -e "$scratch/half" ] || fail "make_starter.sh has failed and left an incomplete starter"
}
mkdir "$scratch/empty"
status 2 "$unpacked/course/make_starter.sh" 1 "$scratch/empty"
[ -d "$scratch/empty" ] || fail "make_starter.sh has removed a directory that existed before"
rm "$unpacked/stage1_naive/ddp.c"
status 1 "$unpacked/course/make_starter.sh" 1 "$scratch/half" && {
    grep -q 'is that all of the repository' "$scratch/out" || fail "a missing ddp.c: $(cat "$scratch/out")"
}

# ---- grades ----

count=0
chosen() { # NAME
    [[ $1 =~ $only ]] && count=$((count + 1))
}

# graded STAGE SUBMISSION FROM TO [PATTERN]: checks the points and a message, and that no process or file is left.
graded() {
    local points name
    name=$(basename "$2" .c)
    [ ! -d "$root/$name" ] || name=ddp
    chosen "stage$1 $name" || return 0
    status 0 env TMPDIR="$scratch/tmp" "$root/course/grade.sh" "$1" "$2" --json "$scratch/json" || return
    points=$(jq .points "$scratch/json")
    echo "$(basename "$2"), stage $1: $points points"
    if [ "$points" -lt "$3" ] || [ "$points" -gt "$4" ]; then
        fail "$(basename "$2"), stage $1: expected $3 to $4 points"
        cat "$scratch/out"
    fi
    grep -a -E -q -e "${5-}" "$scratch/out" || {
        fail "$(basename "$2"), stage $1: no output matches: $5"
        cat "$scratch/out"
    }
    [ "$(jq '[.items[].points] | add' "$scratch/json")" = "$points" ] || fail "JSON: the points do not add up"
    find /proc/[0-9]*/exe -lname "$scratch/*" 2>/dev/null | grep . && fail "$(basename "$2"): left running"
    [ -z "$(ls -A "$scratch/tmp")" ] || fail "$(basename "$2"): left behind: $(ls -A "$scratch/tmp")"
}

# A mistake of tests/mutants as a submission, and the message that its patch expects: "Grader:" or else "Expect:". What
# symbols.sh rejects is graded once more without it, because the tests must find it, too.
mistake() { # STAGE NAME [MOST POINTS]
    local patch file=$scratch/$2.c expect rejected
    patch=$(realpath "$root/tests/mutants/$2.patch")
    patched "$1" "$patch" "$file" || fail "$2.patch does not apply"
    expect=$(sed -n 's/^Expect: *//p' "$patch") rejected=$(sed -n 's/^Grader: *//p' "$patch")
    if [ -n "$rejected" ]; then
        graded "$1" "$file" 0 0 "$rejected"
        export GRADE_SYMBOLS=any
    fi
    graded "$1" "$file" 0 "${3-90}" "$expect"
    unset GRADE_SYMBOLS
}

if [ "${2-}" = --grade ]; then
    mkdir "$scratch/tmp"
    GRADE_CACHE='' graded 1 "$root"/stage1_*/ddp.c 100 100
    export GRADE_CACHE=${GRADE_CACHE:-$scratch/cache}
    for assignment in 0 1 2 3 4 5; do
        find_stage $assignment "$root/course"
        graded $assignment "$scratch/$stage/$stage" 0 0 'is not written yet'
        [ $assignment -eq 1 ] || graded $assignment "$(own $assignment)" 100 100
    done
    for name in $(solutions); do # correct, with other designs
        graded "${name:5:1}" "$scratch/$name.c" 100 100
    done
    # A cache of other files than these is not used.
    echo other >"$GRADE_CACHE/stage1_naive/complete" && rm "$GRADE_CACHE/stage1_naive/tree/points"
    graded 1 "$root"/stage1_*/ddp.c 100 100
    GRADE_RANKS=4 graded 3 "$scratch/stage3_linked_list.c" 100 100 'overlap on 4 ranks'
    # What students run prints the same table.
    starter=$scratch/stage1_naive
    # shellcheck source-path=SCRIPTDIR source=../scripts/mpi.sh
    source "$root/scripts/mpi.sh"
    if chosen "stage1 check"; then
        status 1 "$starter/check" && grep -q '0/ 95  total' "$scratch/out" || fail "check: $(cat "$scratch/out")"
        grep -q 'For the first line that failed, read: ' "$scratch/out" || fail "check does not say what to read"
        cp "$root/stage1_naive/ddp.c" "$starter/stage1_naive"
        status 0 "$starter/check" && grep -q '95/ 95  total' "$scratch/out" || fail "check: $(cat "$scratch/out")"
        status 0 "$starter/check" --sanitize && grep -q '5/  5  total' "$scratch/out" ||
            fail "check: $(cat "$scratch/out")"
        status 0 "$starter/check" 4 12 && grep -q '20/ 20  total' "$scratch/out" || fail "check: $(cat "$scratch/out")"
        for flag in "--save $scratch/x" "--trace $scratch/x" "--flight-recorder $scratch/x" "--allreduce root" "--allreduce ring"; do
            # shellcheck disable=SC2086 # two words
            ! run_ranks 2 "$starter/build/stage1_naive/train" --model mlp-toy --steps 2 $flag >"$scratch/out" 2>&1 &&
                grep -q -e "${flag% /*}: this directory leaves it out" "$scratch/out" ||
                fail "$flag: $(cat "$scratch/out")"
        done
        status 2 "$starter/check" 14
        status 2 "$starter/check" --sanitise
        status 2 "$starter/check" 11 # it needs the other build
    fi

    # A variant's solution is the stage's, rewritten.
    if chosen "stage3 check of a variant"; then
        status 0 "$variant/check" && grep -q '95/ 95  total' "$scratch/out" || fail "variant: $(cat "$scratch/out")"
    fi

    # One mistake costs the points of one property.
    mistake 0 all-ranks-send-first 95
    mistake 0 scratch-from-malloc 95
    mistake 1 broadcast-missing 75
    sed 's/, gradient_scale,/, 0.5f * gradient_scale,/' "$root"/stage1_*/ddp.c >"$scratch/half.c"
    graded 1 "$scratch/half.c" 70 70 'every element is 0.5 times what it should be'
    mistake 2 last-bucket-not-reduced
    for name in bucket-closed-too-late last-bucket-not-planned view-offset-wrong; do mistake 2 "$name"; done
    mkdir "$scratch/frozen_too" && cp "$root"/stage2_*/ddp.c "$scratch/frozen_too"
    sed '/^ *if (parameters->items\[i\]->tensor.requires_grad)$/d' "$root"/stage2_*/buckets.c >"$scratch/frozen_too/buckets.c"
    graded 2 "$scratch/frozen_too" 0 90 'is frozen, but has a place in bucket'
    mistake 3 wait-missing
    mistake 3 waits-after-each-launch
    mistake 3 launched-in-ready-order
    mistake 4 no-sync-ignored
    mistake 4 sync-on-first-micro-batch
    mistake 5 gathered-before-the-update
    mistake 5 dropped-while-it-is-sent
    mistake 5 gradients-pile-up 95
    mistake 5 grad-dtype-ignored 95
    mistake 5 waits-for-all-gathers 95
    # The solution of the stage before: right weights, but not in the new way. The last one has stage 2's number.
    mkdir "$scratch/as_stage_1" "$scratch/as_stage_2"
    cp "$root"/stage1_*/ddp.c "$root"/stage2_*/buckets.c "$scratch/as_stage_1"
    graded 2 "$scratch/as_stage_1" 20 80 "is this ddp.c another stage's"
    graded 3 "$root"/stage2_*/ddp.c 10 30 'does not listen to gradient-ready events'
    graded 4 "$root"/stage3_*/ddp.c 20 60 '4 micro-batches need [0-9]* collectives'
    graded 5 "$root"/stage4_*/ddp.c 0 0 'does not build'
    cp "$root"/stage2_*/buckets.c "$scratch/as_stage_2"
    sed 's/ddp_stage_number = 1/ddp_stage_number = 2/' "$root"/stage1_*/ddp.c >"$scratch/as_stage_2/ddp.c"
    graded 2 "$scratch/as_stage_2" 20 80 'a bucket closes once it holds its cap'
fi

if [ "${2-}" = --mistakes ]; then
    mkdir "$scratch/tmp"
    export GRADE_CACHE=${GRADE_CACHE:-$scratch/cache}
    for patch in "$root"/tests/mutants/*.patch; do
        file=$(sed -n 's|^+++ b/||p' "$patch" | sort -u)
        if [[ $file == stage?_*/ddp.c || $file == stage2_*/buckets.c ]]; then mistake "${file:5:1}" "$(basename "$patch" .patch)" 95; fi
        if [ "$file" = course/collectives/collectives.c ]; then mistake 0 "$(basename "$patch" .patch)" 95; fi
    done
fi

if [ -n "${2-}" ] && [ $count -eq 0 ]; then fail "no submission matches '$only'"; fi
echo "$count submission(s) graded, $failures failure(s)"
[ $failures -eq 0 ]
