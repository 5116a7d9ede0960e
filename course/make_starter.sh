#!/usr/bin/env bash
# make_starter.sh: makes a directory with one stage as an assignment: common/, train/, the stage's tests, the reading
# notes, and a ddp.c with empty functions. It builds and tests on its own, and holds no solution. See README.md.
#
# usage: course/make_starter.sh STAGE DIR     STAGE: stage1_naive, ... or 1 to 4; DIR: a new directory
# Exit status 0: done. 1: something failed, and DIR is removed again. 2: wrong usage.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")

stop() { # STATUS MESSAGE
    echo "make_starter: error: $2" >&2
    exit "$1"
}

[ $# -eq 2 ] || stop 2 "usage: course/make_starter.sh STAGE DIR     STAGE: stage1_naive, ... or 1 to 4"
for stage in "$root"/stage[1-9]_*/; do # a number or a name, as a name
    stage=$(basename "$stage")
    if [ "$1" = "$stage" ] || [ "$1" = "${stage:5:1}" ]; then break; fi
    stage=
done
[ -n "$stage" ] || stop 2 "there is no stage '$1': take stage1_naive, ... or 1 to 4"
number=${stage:5:1}
[ ! -e "$2" ] || stop 2 "$2 exists: name a directory that does not exist"
command -v patch >/dev/null || stop 1 "patch is missing (Debian and Ubuntu: apt-get install patch)"
{ mkdir -p "$(dirname "$2")" && mkdir "$2"; } || stop 1 "cannot make the directory $2"
starter=$(cd "$2" && pwd)
trap 'rm -rf "$starter"' EXIT # removes an incomplete starter

# ---- which files ----

# All files but the output of builds: those that git tracks or would add; without git, all outside build*/. If this
# directory lies inside a larger work tree, git is not asked, because that tree may ignore everything here.
all_files() {
    cd "$root" || return
    if [ "$(git rev-parse --show-toplevel 2>/dev/null)" -ef . ]; then
        git ls-files --cached --others --exclude-standard
    else
        find . -name 'build*' -prune -o -type f -print | sed 's|^\./||'
    fi
}

# Left out are gpu/, bench/, tests of other parts than the stage, and notes that no reading list names. A chapter about
# a later stage is left out, too, because it shows how that stage improves on this one.
is_wanted() {
    local name=${1##*/}
    case $1 in
    common/* | train/* | cmake/lockstep.cmake | scripts/setup.sh | "$stage"/ddp.c | "$stage"/CMakeLists.txt) ;;
    CMakePresets.json | .clang-format | .gitignore | LICENSE*) ;;
    notes/stage[0-9].md) [ "${name:5:1}" -le "$number" ] || return 1 ;;
    notes/architecture.md | notes/cuda.md | notes/demo.md | notes/faults.md) return 1 ;;
    notes/mpi_progress.md | notes/timeline.svg) [ "$number" -ge 3 ] || return 1 ;;
    notes/*) ;;
    tests/stages/solutions/*) return 1 ;;
    tests/stages/test_hides_nothing.sh) [ "$number" -lt 3 ] || return 1 ;;
    tests/stages/watch.? | tests/stages/branch_pair.? | tests/stages/test_launches.c | tests/stages/test_overlap.c | \
        tests/stages/test_no_sync.c) [ "$number" -ge 3 ] || return 1 ;;
    tests/stages/test_overflow.c | tests/stages/test_precision_runs.sh) [ "$number" -ge 4 ] || return 1 ;;
    tests/README.md | tests/stages/*) ;;
    *) return 1 ;;
    esac
    [ -f "$root/$1" ]
}

all_files | sort -u | while IFS= read -r file; do
    if is_wanted "$file"; then printf '%s\0' "$file"; fi
done | tar -C "$root" --null -T - -cf - | tar -C "$starter" -xf - || stop 1 "could not copy the files to $starter"
[ -f "$starter/$stage/ddp.c" ] || stop 1 "$stage/ddp.c is not among the files of $root: is that all of the repository?"

# ---- changes in these files ----

patch -d "$starter" -p1 --fuzz=0 --no-backup-if-mismatch -r - -s <"$here/$stage.patch" ||
    stop 1 "$stage.patch no longer applies to $stage/ddp.c: see course/README.md, When a stage changes"

# The whole project's CMakeLists.txt, with this stage only.
sed "/^add_subdirectory($stage)/b; /^add_subdirectory/d" "$root/CMakeLists.txt" >"$starter/CMakeLists.txt" ||
    stop 1 "could not write CMakeLists.txt"

# Links to files that were not copied become plain text.
unlink_missing() { # FILE
    awk -v directory="$(dirname "$1")" '
        function is_there(target) {
            sub(/#.*/, "", target)
            return target == "" || target ~ /^[a-z]+:/ || system("test -e \"" directory "/" target "\"") == 0
        }
        { text = text $0 "\n" }
        END {
            while (match(text, /\[[^][]*\]\([^()]*\)/)) {
                link = substr(text, RSTART, RLENGTH)
                split(link, parts, /\]\(|\)/)
                printf "%s%s", substr(text, 1, RSTART - 1), is_there(parts[2]) ? link : substr(parts[1], 2)
                text = substr(text, RSTART + RLENGTH)
            }
            printf "%s", text
        }' "$1" >"$1.new" && mv "$1.new" "$1"
}
for document in "$starter"/notes/*.md "$starter"/tests/*.md; do
    unlink_missing "$document" || stop 1 "could not rewrite $document"
done

# The task, how to work on it, and what is graded.
{
    cat "$here/$stage.assignment.md" &&
        sed "s/STAGE/$stage/g; s/stageN/stage$number/g; s/NUMBER/$number/g" "$here/assignment.md" &&
        printf '\n| points | what must be true |\n|---|---|\n' &&
        sed -nE 's/^ *([0-9]+) +[^ ]+ +[^ ]+ +[^ ]+ +(.*)/| \1 | \2 |/p' "$here/$stage.points"
} >"$starter/ASSIGNMENT.md" || stop 1 "could not write ASSIGNMENT.md"
trap - EXIT
echo "$stage: $starter (begin with ASSIGNMENT.md)"
