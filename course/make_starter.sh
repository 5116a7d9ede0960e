#!/usr/bin/env bash
# make_starter.sh: makes a directory with one stage as an assignment: common/, train/, the graded tests, the notes of
# the reading list, modules of earlier stages, and the files to hand in with empty functions. It builds and tests on its
# own, and holds no solution. See README.md.
#
# usage: course/make_starter.sh STAGE DIR [--variant SEED]     DIR: a new directory
#   STAGE            collectives, stage1_naive, ... or 0 to 5
#   --variant SEED   other names, another order of the points, for odd seeds another meaning of a flag: variant.sh
# Exit status 0: done. 1: something failed, and DIR is removed again. 2: wrong usage.
set -uo pipefail
export LC_ALL=C
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
# shellcheck source-path=SCRIPTDIR source=names.sh
source "$here/names.sh"

stop() { # STATUS MESSAGE
    echo "make_starter: error: $2" >&2
    exit "$1"
}

case ${1-} in -h | --help) exec sed -n '2,9s/^# \{0,1\}//p' "$0" ;; esac
seed=0
if [ $# -eq 4 ] && [ "$3" = --variant ]; then
    case $4 in '' | *[!0-9]* | 0*) stop 2 "--variant: '$4' is no number from 1 on" ;; esac
    seed=$4
    set -- "$1" "$2"
fi
[ $# -eq 2 ] || stop 2 "usage: course/make_starter.sh STAGE DIR [--variant SEED]     STAGE: $stages"
find_stage "$1" "$here" || stop 2 "there is no stage '$1': take $stages"
[ "$number/$seed" = 0/0 ] || [ "$number" -gt 0 ] || stop 2 "--variant: there are variants of stages 1 to 5 only"
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

# The test programs that the points name.
graded=$(sed -nE 's/^ *[0-9]+ +([a-z]+:|zero_.:)*([a-z_]+) .*/\2/p' "$here/$stage.points" | sort -u)

# Messages, additions, and what they need.
is_wanted_for_collectives() {
    case $1 in
    */CMakeLists.txt) return 1 ;;
    common/base/* | common/comm/messages.? | common/comm/combine.? | common/comm/buffers.h | common/comm/allreduce.h | \
        common/comm/group.h | common/comm/process_group.h | common/comm/collective.h | common/comm/backend.h | common/comm/observer.h) ;;
    "$home"/*.[ch] | tests/collectives/*.[ch] | tests/stages/choose_case.? | tests/stages/expect.? | \
        tests/stages/judge.? | tests/stages/judge_parts.h | tests/stages/messages.sh | tests/stages/stage_jumps.c) ;;
    scripts/setup.sh | scripts/mpi.sh | LICENSE | notes/allreduce.md | notes/ring.svg | notes/two_levels.svg) ;;
    *) return 1 ;;
    esac
}

# Left out are other stages, backends/gpu/, bench/, tests that are not graded, chapters that the assignment's reading list does
# not name, and the parts of common/ that a later stage introduces.
is_wanted() {
    local name=${1##*/}
    [ "$number" -gt 0 ] || { is_wanted_for_collectives "$1" && [ -f "$root/$1" ] && return; } || return
    case $1 in
    */CMakeLists.txt) return 1 ;; # starter.cmake takes the place of all of them
    stage2_bucketed/buckets.?) [ "$number" -ge 2 ] || return 1 ;;
    stage3_overlap/readiness.?) [ "$number" -ge 3 ] || return 1 ;;
    stage5_sharded/unsharded.c) [ "$number" -le 4 ] || return 1 ;;
    "$stage"/*.[ch] | stage5_sharded/sharded.h) ;;
    common/autograd/rounding.c | common/comm/allreduce_root.c | common/comm/allreduce_doubling.c | \
        common/comm/allreduce_ring.c | common/comm/allreduce_hierarchical.c | \
        common/data/file_kind.c | common/ddp/codec.c | common/ddp/power_sgd.c | train/files/atomic_file.c | \
        train/files/checkpoint.? | train/files/safetensors.? | train/guard/flight.c | train/guard/stop.c | \
        train/guard/supervise.c | train/loop/generate.c | train/loop/replica_files.c | train/report/step_log.c | \
        train/report/trace.c)
        [ "$number" -ge 2 ] || return 1 # left_out.c takes the place of these
        ;;
    common/comm/copies.c) [ "$number" -ge 5 ] || return 1 ;;
    common/* | train/* | scripts/setup.sh | scripts/mpi.sh | LICENSE) ;;
    notes/equality.md) ;; # messages of train name it
    notes/*.md) grep -q -F "\`$1\`" "$here/$stage.assignment.md" || return 1 ;;
    notes/*.svg) # pictures of the chapters of the reading list
        (cd "$root" && grep -o 'notes/[a-z0-9_]*\.md' "$here/$stage.assignment.md" | xargs grep -q -F "]($name)") ||
            return 1
        ;;
    tests/stages/solutions/* | tests/stages/*.cmake | tests/stages/*.supp) return 1 ;;
    tests/stages/watch*.?) [ "$number" -ge 3 ] || return 1 ;;
    tests/stages/branch_pair.?) [ "$number" -ge 3 ] && [ "$number" -le 4 ] || return 1 ;;
    tests/stages/sharded_run.? | tests/stages/weight_suspects.c) [ "$number" -ge 5 ] || return 1 ;;
    tests/stages/test_* | tests/stages/bits.c | tests/stages/missing_gradient.c | tests/stages/static_graph.c)
        name=${name#test_}
        grep -q -x -F "${name%.*}" <<<"$graded" || return 1
        ;;
    tests/README.md | tests/stages/*) ;;
    *) return 1 ;;
    esac
    [ -f "$root/$1" ]
}

all_files | sort -u | while IFS= read -r file; do
    if is_wanted "$file"; then printf '%s\0' "$file"; fi
done | tar -C "$root" --null -T - --transform "s|^$home/|$stage/|" -cf - | tar -C "$starter" -xf - ||
    stop 1 "could not copy the files to $starter"
for name in "${c_files[@]}"; do
    [ -f "$starter/$stage/$name" ] || stop 1 "$home/$name is not among the files of $root: is that all of the repository?"
done

# ---- changes in these files ----

patch -d "$starter" -p1 --fuzz=0 --no-backup-if-mismatch -r - -s <"$here/$stage.patch" ||
    stop 1 "$stage.patch no longer applies to $home: see course/README.md, When a stage changes"

# fill_in FILE: a text of course/, with this stage's name and number, and the files to hand in.
files=$(printf ' and `%s`' "${c_files[@]/#/"$stage/"}")
fill_in() {
    sed -e "s,@FILES@,${files# and },g; s/@STAGE@/$stage/g; s/@NUMBER@/$number/g; s/@GRADED@/${graded//$'\n'/ }/" \
        -e "/^@COMMON@\$/{r $root/tests/stages/graded.cmake" -e 'd}' \
        -e "/^@CHECKED@\$/{r $here/checked_calls.cmake" -e 'd}' \
        -e "/^@FLAGS@\$/{r $here/flags.cmake" -e 'd}' "$here/$1"
}
[ "$number" -ne 1 ] || cp "$here/left_out.c" "$starter/common" || stop 1 "could not copy left_out.c"
fill_in "$([ "$number" -eq 0 ] && echo collectives || echo starter).cmake" >"$starter/CMakeLists.txt" ||
    stop 1 "could not write CMakeLists.txt"
# Lines in the points' order, or, in a variant, in an order by a hash of seed and line. Each has its "read:" after it.
points() {
    echo '# points program ranks cases what must be true'
    awk '/^#/ { next } /^ *read: / { print line "\t" $0; next } { line = $0 }' "$here/$stage.points" |
        if [ "$seed" -gt 0 ]; then
            while IFS= read -r line; do echo "$(cksum <<<"$seed $line" | cut -d ' ' -f 1)"$'\t'"$line"; done | sort -n |
                cut -f 2-
        else
            cat
        fi | tr '\t' '\n'
}
{ cp "$here/check.sh" "$starter/check" && cp "$here"/{cases,names,symbols}.sh "$starter/tests/stages" &&
    points >"$starter/points"; } ||
    stop 1 "could not write check and what it needs"
echo 'build*/' >"$starter/.gitignore"

# section FILE HEADING: the section of FILE with that heading, up to the next one.
section() {
    awk -v from="## $2" '/^## / { inside = $0 == from } inside' "$root/$1"
}

# Messages that this stage cannot cause are left out.
foreign='GPU'
[ "$number" -ge 5 ] || foreign+='|\(stage 5\)'
[ "$number" -le 4 ] || foreign+='|rebuilt|bucket is sent while'
[ "$number" -ge 3 ] || foreign+='|readiness_|next_bucket|pending|rebuilt'
[ "$number" -eq 0 ] || # each message of its tests names the cause
    { printf '# Tests: what their messages mean\n\n' &&
        section tests/README.md "What you see, and what usually causes it" | grep -v -E "$foreign"; } \
        >"$starter/tests/README.md"

# Links to files that were not copied become plain text, which says so.
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
                plain = substr(parts[1], 2) " [not here]"
                printf "%s%s", substr(text, 1, RSTART - 1), is_there(parts[2]) ? link : plain
                text = substr(text, RSTART + RLENGTH)
            }
            printf "%s", text
        }' "$1" >"$1.new" && mv "$1.new" "$1"
}
for document in "$starter"/notes/*.md "$starter"/tests/*.md; do
    [ ! -f "$document" ] || unlink_missing "$document" || stop 1 "could not rewrite $document"
done

# What is not here, by name or, where a file here has the same name, by path. The scripts name what all assignments hand
# in.
missing_names() {
    comm -23 <(all_files | sort) <(cd "$starter" && find . -type f | sed 's|^\./||' | sort) |
        grep -E '\.(c|h|cu|cpp|sh|py|cmake|md|patch|supp)$' | grep -v -E '(^|/)(ddp\.c|collectives\.[ch])$' |
        awk -F / 'FNR == NR { here[$NF]; next } { print $NF in here ? $0 : $NF }' <(find "$starter" -type f) - | sort -u
}

# A comment or chapter that names such a file says so. (Not where a chapter shows commands: indented lines.)
names=$(missing_names)
{ grep -r -l -w -F --exclude=names.sh -f - "$starter" <<<"$names" || true; } | while IFS= read -r file; do
    if [ "${file##*.}" = md ]; then skip='/^    /b'; else skip=; fi
    # shellcheck disable=SC2016 # backquotes are Markdown's
    script=$(grep -w -o -F -f - "$file" <<<"$names" | sort -u |
        sed -E 's/\./\\./g; s#.*#s,(`[^`]*\\b&\\b[^`]*`|[A-Za-z0-9_./-]*\\b&\\b),\\1 [not here],#')
    sed -E -i "$skip"$'\n'"$script"$'\n''s/( \[not here])+/ [not here]/g' "$file" || exit 1
done || stop 1 "could not say what is missing"

# The lines of the points file as rows of a table. "1:" before a case: it runs on one rank.
table_of_points() {
    local worth program ranks cases idea where
    printf '| points | what must be true | test program, and its cases: all must pass |\n|---|---|---|\n'
    grep -v -E '^ *(#|$|read:)' "$starter/points" | while read -r worth program ranks cases idea; do
        where=${program##*:}
        [[ $ranks = [-1] ]] || where+=" on $ranks ranks"
        [[ $program != *zero_* ]] || where+=", \`--zero $(grep -o '[123]' <<<"$program")\`"
        [[ $program != address:* ]] || where+=", address sanitizer"
        [ "$cases" = - ] ||
            where+=": $(sed -E 's/test_[a-z_0-9]+/`&`/g; s/([0-9]):(`[^`]*`)/\2 (\1 rank)/g; s/\+/, /g' <<<"$cases")"
        echo "| $worth | $idea | $where |"
    done
}

# The task, how to work on it, and what is graded.
{
    cat "$here/$stage.assignment.md" &&
        fill_in "$([ "$number" -eq 0 ] && echo collectives.how.md || echo assignment.md)" &&
        printf '\n' && table_of_points &&
        printf '\n' && section notes/README.md Words
} >"$starter/ASSIGNMENT.md" || stop 1 "could not write ASSIGNMENT.md"
# What an assistant may do for a student. A lecturer without such rules removes assistants.md.
if [ -f "$here/assistants.md" ]; then
    fill_in assistants.md >"$starter/AGENTS.md" || stop 1 "could not write AGENTS.md"
fi
if [ "$seed" -gt 0 ]; then
    find "$starter" \( -name '*.[ch]' -o -name '*.md' -o -name points -o -name '*.sh' -o -name CMakeLists.txt \) \
        -exec "$here/variant.sh" "$seed" {} + || stop 1 "could not make variant $seed"
fi
trap - EXIT
echo "$stage: $starter (begin with ASSIGNMENT.md)"
