#!/usr/bin/env bash
# grade.sh: puts a submission into a fresh copy of its stage, builds it, runs the stage's test cases one by one under
# limits, in a sandbox, and prints a table of points. README.md says what a hostile one can do.
#
# usage: course/grade.sh STAGE SUBMISSION [--json FILE] [--line N]     STAGE: collectives, stage1_naive, ... or 0 to 5
#   SUBMISSION      a directory with the files that are handed in (names.sh); or the file, if it is one
#   --line N        only line N of the table; with --json, puts the new result into FILE, which has an earlier one
#   GRADE_SECONDS   for one test case (60)           GRADE_MEMORY_MB   for one process (4096)
#   GRADE_TOTAL     for everything, with all that is built (540 seconds); what has not run by then has failed
#   GRADE_JOBS      compilers at a time (2)
#   GRADE_RANKS     run every test case of several ranks on this many, whatever the points file says (as it says)
#   GRADE_VARIANT   the seed of the variant that was handed out (none)
#   GRADE_CACHE     a directory that keeps the build of everything but that file, for one call at a time (none)
#   GRADE_SANDBOX   auto: bwrap's, if it can run here; require: an error if it cannot; none: not at all (auto)
#   GRADE_SYMBOLS   check: reject a file that uses what no solution needs (symbols.sh); any: allow it (check)
# Exit status 0: graded, whatever the grade. 1: the grader itself failed. 2: wrong usage.
set -u
export LC_ALL=C # tools' messages are searched for English words, and submissions may hold any bytes
umask 022 # what is copied here is read by another user
exec </dev/null
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seconds=${GRADE_SECONDS:-60} total_seconds=${GRADE_TOTAL:-540} memory=${GRADE_MEMORY_MB:-4096} jobs=${GRADE_JOBS:-2}

stop() { # STATUS MESSAGE
    echo "grade: error: $2" >&2
    exit "$1"
}

# ---- the command line ----

# shellcheck source-path=SCRIPTDIR source=names.sh
source "$here/names.sh"
usage="usage: course/grade.sh STAGE SUBMISSION [--json FILE] [--line N]     STAGE: $stages"
[ $# -ge 2 ] || stop 2 "$usage"
submission=$2 json='' line=''
for ((i = 3; i <= $#; i += 2)); do
    value=$((i + 1))
    case ${!i}=${!value-} in
    --json=?*) json=${!value} ;;
    --line=?*) line=${!value} ;;
    *) stop 2 "$usage" ;;
    esac
done
find_stage "$1" "$here" || stop 2 "there is no stage '$1': take $stages"
points=$here/$stage.points
submitted() { # NAME: the path of this file of the submission
    if [ ${#c_files[@]} -gt 1 ] || [ -d "$submission" ]; then echo "$submission/$1"; else echo "$submission"; fi
}
for name in "${c_files[@]}"; do
    file=$(submitted "$name")
    { [ -f "$file" ] && [ -r "$file" ]; } || stop 2 "$file is no file to read: give a directory with the student's $c_names"
done
[[ ${GRADE_SANDBOX-auto} =~ ^(auto|require|none)$ ]] || stop 2 "GRADE_SANDBOX is auto, require or none"
[[ $seconds/$total_seconds/$memory/$jobs =~ ^[1-9][0-9]*(/[1-9][0-9]*){3}$ ]] ||
    stop 2 "GRADE_SECONDS, GRADE_TOTAL, GRADE_MEMORY_MB and GRADE_JOBS are whole numbers from 1 on"
[ -z "$json" ] || [ -n "$line" ] || : >"$json" || stop 2 "--json: $json cannot be written"
for tool in cmake mpiexec jq timeout find flock; do
    command -v $tool >/dev/null || stop 1 "$tool is missing: scripts/setup.sh installs what is needed"
done
! command -v ninja >/dev/null || export CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja} # make takes seconds to find nothing to do
# shellcheck source-path=SCRIPTDIR source=../scripts/mpi.sh
source "$here/../scripts/mpi.sh"
# shellcheck source=../tests/stages/messages.sh
source "$here/../tests/stages/messages.sh"
# shellcheck source=cases.sh
source "$here/cases.sh"
# shellcheck source=sandbox.sh
source "$here/sandbox.sh"
chosen_lines() {
    lines_of_points | awk -v chosen="$line" 'chosen == "" || $1 "" == chosen'
}
count=$(lines_of_points | wc -l)
[ -n "$(chosen_lines)" ] || stop 2 "--line: there are lines 1 to $count, not '$line'"
if [ -n "$json" ] && [ -n "$line" ]; then
    { [ -w "$json" ] && jq -e --arg stage "$stage" --argjson count "$count" \
        '.stage == $stage and (.items | length) == $count' "$json" >/dev/null 2>&1; } ||
        stop 2 "--line: $json holds no earlier result of $stage with $count lines"
fi

# ---- where it runs ----

work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-grade.XXXXXX") || exit 1
work=$(cd "$work" && pwd -P)
base=$work log=$work/log
trap 'kill_left; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
if [ -n "${GRADE_CACHE-}" ]; then
    base=$GRADE_CACHE/$stage${GRADE_VARIANT:+-$GRADE_VARIANT}
    mkdir -p "$base" || stop 1 "GRADE_CACHE: cannot make the directory $base"
    base=$(cd "$base" && pwd -P)
    exec 9>"$base.lock"
    flock -n 9 || stop 1 "GRADE_CACHE: another grade.sh works in $base: wait for it, or use another directory"
fi
tree=$base/tree build=$base/build checked=$base/build-address
no_leaks=${mpiexec_options[*]:+:detect_leaks=0} # Open MPI itself leaks

# Of all that a starter is made from, but for solutions, which gradescope/setup.sh deletes. A cache of another state of
# these files is built anew.
# shellcheck disable=SC2046 # words
fingerprint=$(cd "$here/.." && find CMakeLists.txt cmake common course notes tests train stage[1-5]_* \
    \( -path course/instructor -o -path tests/stages/solutions \) -prune -o \
    -type f ! -name ddp.c $(printf '! -name %s ' "${c_files[@]}") -exec cksum {} + | sort | cksum)
if [ "$(cat "$base/complete" 2>/dev/null)" != "$fingerprint" ]; then
    rm -f "$base/complete"
    rm -rf "$tree" "$build" "$checked"
    "$here/make_starter.sh" "$stage" "$tree" ${GRADE_VARIANT:+--variant "$GRADE_VARIANT"} >"$log" ||
        stop 1 "no fresh copy of $stage"
    mkdir -p "$build/Testing" "$checked"
fi
enter_sandbox "${GRADE_SANDBOX-auto}" || stop 1 "GRADE_SANDBOX is require, and there is no sandbox"

points=$tree/points # a variant has its lines in another order

# ---- build ----

# Programs that run under the address sanitizer: only they are built with it.
mapfile -t checked_programs < <(
    sed -nE "s/^ *[0-9]+ +address:(zero_.:)?([a-z_]+) .*/test_\\2_stage$number/p" "$points" | sort -u
)

# in_both SECONDS COMMAND [COMMAND]: for the plain build and for the checked one, side by side. Each is one word for the
# shell. Status: of one that failed.
in_both() {
    # shellcheck disable=SC2016 # for the inner shell
    limited "$log" "$1" bash -c 'eval "$1" & status=0; eval "${2-}" || status=$?; wait $! && exit $status' - "${@:2}"
}

build_all() { # SECONDS
    local may_write=yes some=$(((jobs + 1) / 2)) checks=()
    [ ${#checked_programs[@]} -eq 0 ] ||
        checks=("$(printf '%q ' cmake --build "$checked" -j $some --target "${checked_programs[@]}")")
    in_both "$1" "$(printf '%q ' cmake --build "$build" -j $some)" "${checks[@]}"
}

# What the preprocessor makes of a submission takes its place, so that it is read once, and all that follows sees the
# same text: otherwise #if could hide something from one compiler and show it to the next. Status 1: it cannot be read.
expand() {
    local c_file
    for c_file in "${c_files[@]}"; do expand_file || return; done
}
expand_file() {
    local command
    command=$(sed -n 's/^ *"command": "\(.*\/'"$c_file"'\)\( *\\"\)\?",\?$/\1\2/p' "$build/compile_commands.json")
    command=$(sed -E 's/\\"/"/g; s/ -o [^ ]+ -c / -o - -E /' <<<"$command")
    [[ $command = *' -o - -E '* ]] || stop 1 "cannot tell how $c_file is compiled: $command"
    # shellcheck disable=SC2016 # for the inner shell
    limited "$log" 60 bash -c 'cd "$1" && eval "$2 2>\"\$TMPDIR/errors\"" || { cat "$TMPDIR/errors" && exit 1; }' - \
        "$build" "$command" && cat "$log" >"$tree/$stage/$c_file"
}

# Says what the expanded submission includes and is neither of the starter nor of the system; and what would be a
# directive when it is read again, because a macro has made it.
foreign() {
    local c_file
    for c_file in "${c_files[@]}"; do foreign_names | head -n 40 | say_foreign; done
}
foreign_names() {
    local root name
    root=$(cd "$here/.." && pwd -P)
    sed -n -E 's/^# [0-9]+ "([^<].*)".*/\1/p' "$tree/$stage/$c_file" | sort -u >"$work/included"
    sed -n '2001{p;q}' "$work/included" # #line can name millions of files, and each takes time here
    head -n 2000 "$work/included" | while IFS= read -r name; do
        case $name in /proc/* | /dev/* | *\\*) echo "$name" && continue ;; esac
        case $(realpath -m -- "$name") in
        "$tree"/* | "$build" | "$build"/*) ;;
        "$root"/*) echo "$name" ;;
        /usr/* | /opt/*) ;;
        *) echo "$name" ;;
        esac
    done
    grep -a -E '^[[:space:]]*(#|%:)' "$tree/$stage/$c_file" | grep -a -v -E '^# [0-9]+ "|^#pragma ' | head -n 1
}

# Reads what foreign_names() prints, and says what is wrong. What is included has a 1 after its name; a #line has none.
say_foreign() {
    local name
    while IFS= read -r name; do
        if [[ $name != *[#%]* ]] && ! grep -a -q -F "\"$name\" 1" "$tree/$stage/$c_file"; then
            echo "$c_file has a #line (or # and a number) with the name of another file, $name: leave such lines out"
        else
            echo "$c_file includes $name, which is neither of the starter nor of the system"
        fi
    done
}

if [ ! -e "$base/complete" ]; then
    if ! may_write=yes limited "$log" 900 cmake -S "$tree" -B "$build" -DCMAKE_BUILD_TYPE=Release ||
        ! may_write=yes limited "$log" 900 cmake -S "$tree" -B "$checked" -DLOCKSTEP_SANITIZE=address ||
        ! build_all 900; then
        cat "$log" >&2
        [ "$(elapsed)" -lt "$total_seconds" ] || stop 1 "GRADE_TOTAL: the starter was not built within $total_seconds s"
        stop 1 "the starter with empty functions does not build"
    fi
    expand && [ -z "$(foreign)" ] || stop 1 "the compiler's own files are not below /usr or /opt: $(foreign | head -n 1)"
    echo "$fingerprint" >"$base/complete"
fi
most=$((4 << 20)) # bytes: a file may be larger than the disk
not_run='' errors='' others='' status=0
for name in "${c_files[@]}"; do
    file=$(submitted "$name")
    head -c $most -- "$file" >"$tree/$stage/$name" || stop 1 "$file cannot be copied"
    [ "$(head -c $((most + 1)) -- "$file" | wc -c)" -le $most ] || errors="$name has more than 4 MiB"
done
[ -n "$errors" ] || { expand && { others=$(foreign) && [ -n "$others" ] || build_all 300; }; } || status=$?
if [ -n "$errors" ]; then
    not_run="not run: $errors"
    printf '%s, %s: rejected: %s\n' "$stage" "$submission" "$errors"
elif [ $status -ne 0 ]; then
    not_run="does not build"
    # Without the lines of the source: they would be the preprocessor's.
    errors=$(grep -a -E 'error|implicit declaration|undefined|multiple definition' "$log" | plain | awk '!seen[$0]++' |
        head -n 40)
    case $status in
    124 | 137) errors="the compiler was still running when its time was over, after $(elapsed) s" ;;
    153) errors="more than 64 MiB of text, with all that it includes" ;;
    esac
    [ -n "$errors" ] || errors=$(tail -n 5 "$log" | plain) # it was killed, for lack of memory for example
    printf '%s, %s: does not build:\n%s\n' "$stage" "$submission" "$(sed 's/^/  | /' <<<"$errors")"
elif [ -n "$others" ]; then
    errors=$(plain <<<"$others")
    not_run="not run: $(head -n 1 <<<"$errors")"
    printf '%s, %s: rejected:\n%s\n' "$stage" "$submission" "$(sed 's/^/  | /' <<<"$errors")"
elif [ "${GRADE_SYMBOLS-check}" != any ]; then
    looks=()
    for place in "$build" ${checked_programs[0]+"$checked"}; do
        looks+=("$(printf '%q ' bash "$tree/tests/stages/symbols.sh" "$stage" "$place")")
    done
    if ! in_both 60 "${looks[@]}"; then
        [ -s "$log" ] || echo "$c_names could not be looked at before its time was over, after $(elapsed) s" >"$log"
        not_run="not run: $(head -n 1 "$log" | plain)"
        errors=$(plain <"$log" | awk '!seen[$0]++' | head -n 40)
        printf '%s, %s: rejected:\n%s\n' "$stage" "$submission" "$(sed 's/^/  | /' <<<"$errors")"
    fi
fi

# ---- the test cases ----

report() { # GOT WORTH IDEA MESSAGE READ; none has control characters
    (IFS=$'\37' && printf '%s\36' "$*") >>"$work/items"
}

echo "$stage, $submission (sandbox: $sandbox; modes drawn by LOCKSTEP_TEST_SEED=$LOCKSTEP_TEST_SEED)"
at_once=1 # limited() ends all that a submission has left, so one case after the other
run_lines < <(chosen_lines)
if [ -n "$json" ]; then
    earlier=$json
    [ -n "$line" ] || { earlier=$work/none && echo '{"items": []}' >"$earlier"; }
    jq -R -s 'split("\u001e")[:-1] | map(split("\u001f") | {points: .[0] | tonumber, of: .[1] | tonumber, idea: .[2],
        passed: (.[3] == ""), message: .[3], read: .[4]})' "$work/items" >"$work/new" &&
        [ "$(jq length "$work/new")" = "$(chosen_lines | wc -l)" ] &&
        jq --arg stage "$stage" --arg submission "$submission" --argjson seconds "$(elapsed)" --arg sandbox "$sandbox" \
            --arg not_run "$not_run" --arg seed "$LOCKSTEP_TEST_SEED" --arg errors "$errors" --argjson first $((${line:-1} - 1)) \
            --slurpfile lists "$work/new" '$lists[0] as $new | .items[$first:$first + ($new | length)] = $new |
             {$stage, submission: (.submission // $submission), seconds: (.seconds // $seconds), $sandbox, $seed,
              built: ($not_run != "does not build"), $errors,
              points: ([.items[].points] | add), of: ([.items[].of] | add), items}' "$earlier" >"$work/json" &&
        [ -s "$work/json" ] && cat "$work/json" >"$json" || stop 1 "$json could not be written: is the disk full?"
fi
