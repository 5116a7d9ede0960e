#!/usr/bin/env bash
# check: builds your files, runs what is graded, and prints the points.
#
# usage: ./check [LINE ...]              all lines of the table, or those with these numbers
#        ./check --sanitize [LINE ...]   with the address sanitizer, which names the line that misuses memory:
#                                        the lines that are graded with it, or those with these numbers
# Each run works in build/, or in build-address/. What the test cases print is left in build/check/logs/.
# Exit status 0: all that was run has passed. 1: something has not. 2: wrong usage.
set -u
export LC_ALL=C # the compiler's and other tools' messages are searched for English words
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
cd "$here" || exit 1
exec </dev/null
points=$here/points build=$here/build checked=$here/build-address
stage=$(basename "$(dirname "$(ls "$here"/{stage[1-9]_*/ddp.c,collectives/collectives.c} 2>/dev/null)")")
seconds=60 total_seconds=600 at_once=$(nproc)
# shellcheck source-path=SCRIPTDIR source=names.sh
source "$here/tests/stages/names.sh"
set_names "$stage"
# shellcheck source-path=SCRIPTDIR source=cases.sh
source "$here/tests/stages/cases.sh"
# shellcheck source-path=SCRIPTDIR/..
source "$here/tests/stages/messages.sh"
# shellcheck source-path=SCRIPTDIR/..
source "$here/scripts/mpi.sh"
no_leaks=${mpiexec_options[*]:+:detect_leaks=0} # Open MPI itself leaks

stop() { # STATUS MESSAGE
    echo "check: $2" >&2
    exit "$1"
}

sanitize=
[ "${1-}" != --sanitize ] || { sanitize=address && shift; }
count=$(lines_of_points | wc -l)
for line in "$@"; do
    case $line in
    -h | --help) exec sed -n '4,8s/^# \{0,1\}//p' "$0" ;;
    *[!0-9]*) stop 2 "'$line' is no number of a line: give numbers from 1 to $count, or nothing" ;;
    esac
    { [ "$line" -ge 1 ] && [ "$line" -le "$count" ]; } || stop 2 "there are lines 1 to $count, not $line"
done
for tool in cmake mpiexec; do
    command -v $tool >/dev/null || stop 1 "$tool is missing: scripts/setup.sh installs what is needed"
done

# Which lines: those asked for; without numbers, those that are graded with the chosen build.
chosen=$(lines_of_points | awk -v asked=" $* " -v sanitize="$sanitize" '
    asked ~ /[0-9]/ ? index(asked, " " $1 " ") : ($3 ~ /^address:/) == (sanitize != "")')
[ -n "$chosen" ] || stop 2 "no line of this stage is graded with the address sanitizer: give numbers of lines"
if [ -n "$sanitize" ]; then
    build=$checked
    chosen=$(sed -E 's/^([0-9]+ +[0-9]+ +)(address:)?/\1address:/' <<<"$chosen" | awk '$5 != "-"')
    [ -n "$chosen" ] || stop 2 "line $* has no test cases, so the sanitizer does not run it"
elif grep -q -E '^[0-9]+ +[0-9]+ +address:' <<<"$chosen"; then
    stop 2 "line $*: graded with the address sanitizer: ./check --sanitize $*"
fi

# ---- build ----

[ -e "$build/CMakeCache.txt" ] || cmake -S "$here" -B "$build" -DLOCKSTEP_SANITIZE=$sanitize >/dev/null || exit 1
mkdir -p "$build/check"
cmake --build "$build" -j "$(nproc)" >"$build/check/build.log" 2>&1 || {
    grep -E -A 3 'error|implicit declaration|undefined|multiple definition' "$build/check/build.log" | head -n 40
    stop 1 "$stage does not build: ${build#"$here/"}/check/build.log has everything"
}
grep -E -A 3 "/$stage/($(IFS='|' && echo "${c_files[*]}")):.*warning" "$build/check/build.log"
bash "$here/tests/stages/symbols.sh" "$stage" "$build" >&2 || stop 1 "so this would be rejected, with 0 points"

# ---- run ----

limited() { # LOG SECONDS COMMAND...
    OPENBLAS_NUM_THREADS=1 LOCKSTEP_TEST_TIMEOUT=10 HWLOC_PLUGINS_PATH=/none HWLOC_COMPONENTS=-pci,-linuxio \
        ASAN_OPTIONS=handle_segv=2:handle_sigbus=2:handle_sigfpe=2$no_leaks timeout -k 2 "${@:2}" >"$1" 2>&1
}

first=
report() { # GOT WORTH IDEA MESSAGE READ
    [ -z "$first" ] && [ -n "$4" ] || return 0
    first=$5
    if [[ $4 =~ ([a-z_]+)\(\)\ is\ not\ written\ yet ]]; then
        first="the comment above \`${BASH_REMATCH[1]}\` in $(cd "$stage" && grep -l -F "${BASH_REMATCH[0]}" "${c_files[@]}")"
    fi
}

work=$build/check not_run=
rm -rf "$work/results" "$work/logs"
run_lines <<<"$chosen"
others=$(lines_of_points | awk '$3 ~ /^address:/ { printf " %s (%s points)", $1, $2 }')
[ -n "$sanitize" ] || [ $# -gt 0 ] || printf 'Not run, as they need the other build:%s: ./check --sanitize\n' "$others"
if [ -z "$first" ]; then exit 0; fi
printf '\nFor the first line that failed, read: %s\n' "$first"
exit 1
