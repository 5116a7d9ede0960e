#!/usr/bin/env bash
# run.sh: applies every wrong version of the program in this directory, one at a time, to a copy of the source tree, and
# shows which test catches it, and with which message. See README.md.
#
# usage: tests/mutants/run.sh [-v] [NAME ...]     default: all; -v: show the failing test's whole output
#        tests/mutants/run.sh --applies            only see that all of them still apply
# Exit status 0: every mutant was caught by a message that names the right idea. 1: at least one was not.
set -u
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
# shellcheck source-path=SCRIPTDIR
source "$here/copy_tree.sh"
limit=${MUTANT_SECONDS:-600} # for one mutant's tests
jobs=${MUTANT_JOBS:-2}
verbose=no applies=no
if [ "${1:-}" = --applies ]; then
    applies=yes
    shift
fi
if [ "${1:-}" = -v ]; then
    verbose=yes
    shift
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-mutants.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
tree=$work/tree
log=$work/log

give_up() {
    echo "run.sh: $*" >&2
    exit 1
}

# field KEY FILE: the value of a "KEY: value" line before the diff begins.
field() {
    sed -n "/^--- /q; s/^$1: *//p" "$2"
}

# use_build SANITIZER: programs are built with it, and run, from now on. "": without.
use_build() {
    build=$work/build$1
    [ -d "$build" ] || cmake -S "$tree" -B "$build" -G "Unix Makefiles" \
        -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_SANITIZE="$1" >"$log" 2>&1 || {
        cat "$log"
        give_up "cmake failed"
    }
}

# targets STAGE FIRST: the programs that the stage's tests and the tests named by FIRST run. Stage 4's run stage 1's
# program beside its own, stage 5's run stage 4's. Stage 0 is the collectives. slow_disk is loaded into programs.
targets() {
    local beside='train_stage[14]'
    [ "$1" -gt 0 ] || beside=none
    cmake --build "$build" --target help | sed -n 's/^\.\.\. //p' | awk '{print $1}' |
        grep -E "^([a-z_]+_stage$1|$beside|slow_disk|test_(${2:-none}))\$" | grep -v '^ddp_'
}

run_ctest() {
    timeout "$limit" ctest --test-dir "$build" "$@" -LE slow --no-tests=error --stop-on-failure --output-on-failure
}

# run_tests STAGE FIRST: the tests that FIRST names (a regular expression, perhaps empty), then the stage's. Stops at
# the first failure. Output goes to $log.
run_tests() {
    {
        if [ -n "$2" ]; then
            run_ctest -R "^(stage$1_)?($2)(_[1-4]_ranks)?\$" || return 1
        fi
        run_ctest -L "^stage$1\$"
    } >"$log" 2>&1
}

compile() { # STAGE FIRST
    # shellcheck disable=SC2046
    cmake --build "$build" -j "$jobs" --target $(targets "$1" "$2") >"$log" 2>&1
}

# try_mutant FILE: adds a line to the table; false unless the mutant was caught as it should be.
try_mutant() {
    local file=$1 name stage first expect verdict=caught test message
    name=$(basename "$file" .patch)
    stage=$(field Stage "$file")
    first=$(field First "$file")
    use_build "$(field Sanitizer "$file")"
    expect=$(field Expect "$file")
    [ -n "$stage" ] && [ -n "$expect" ] || give_up "$name.patch: the lines 'Stage:' and 'Expect:' are missing"
    patch -d "$tree" -p1 --fuzz=0 --no-backup-if-mismatch -r - <"$file" >"$log" 2>&1 || {
        cat "$log"
        give_up "$name.patch no longer applies: bring it up to date with the source"
    }
    compile "$stage" "$first" || {
        tail -n 30 "$log"
        give_up "$name.patch: the mutant does not compile"
    }
    if run_tests "$stage" "$first"; then
        verdict=SURVIVED
    fi
    test=$(sed -n 's/.*Test *#[0-9]*: \([a-z0-9_]*\) .*\*\*\*.*/\1/p' "$log" | head -n 1)
    message=$(grep -E -m 1 -- "$expect" "$log")
    if [ "$verdict" = caught ] && { [ -z "$test" ] || grep -q '\*\*\*Timeout' "$log"; }; then
        verdict=HANGS
    elif [ "$verdict" = caught ] && [ -z "$message" ]; then
        verdict="WRONG MESSAGE"
        message="expected: $expect"
    fi
    printf '%-36s %-13s %s\n' "$name" "$verdict" "${test:--}"
    [ -z "$message" ] || printf '    %s\n' "$(sed 's/^ *//' <<<"$message")"
    if [ $verbose = yes ] || [ "$verdict" != caught ]; then
        grep -vE '^ *$|^\[ +(OK|RUN)' "$log" | head -n 60 | sed 's/^/    | /'
    fi
    printf '%-36s %-13s %s\n' "$name" "$verdict" "${test:--}" >>"$work/table"
    patch -d "$tree" -p1 -R --fuzz=0 --no-backup-if-mismatch -r - <"$file" >"$log" 2>&1 ||
        give_up "$name.patch could not be taken back"
    [ "$verdict" = caught ]
}

for tool in patch make; do
    command -v $tool >/dev/null || give_up "needs $tool, which is missing (Debian and Ubuntu: apt-get install $tool)"
done

mutants=()
if [ $# -eq 0 ]; then
    mutants=("$here"/*.patch)
fi
for name in "$@"; do
    mutants+=("$here/$(basename "$name" .patch).patch")
    [ -f "${mutants[-1]}" ] || give_up "there is no mutant named $name; see $here"
done

stale=()
for file in "${mutants[@]}"; do
    patch -d "$root" -p1 --fuzz=0 --dry-run -f -s -r - <"$file" >/dev/null 2>&1 || stale+=("$(basename "$file")")
done
[ ${#stale[@]} -eq 0 ] || give_up "no longer apply, so bring them up to date with the source: ${stale[*]}"
[ $applies = no ] || exit 0
copy_tree "$root" "$tree" || give_up "could not copy the tree"
echo "building the unmodified tree ..."

# A test that fails without a mutant proves nothing: the unmodified tree must pass the tests below.
for file in "${mutants[@]}"; do
    echo "$(field Stage "$file") $(field Sanitizer "$file")"
done | sort -u >"$work/builds"
while read -r stage wanted <&3; do
    use_build "$wanted"
    first=$(for file in "${mutants[@]}"; do
        [ "$(field Stage "$file") $(field Sanitizer "$file")" != "$stage $wanted" ] || field First "$file"
    done | sort -u | paste -sd '|')
    compile "$stage" "$first" && run_tests "$stage" "$first" || {
        tail -n 60 "$log"
        give_up "stage $stage: the unmodified tree does not build or does not pass"
    }
    echo "stage $stage${wanted:+ ($wanted sanitizer)}: the unmodified tree passes"
done 3<"$work/builds"

bad=0
for file in "${mutants[@]}"; do
    try_mutant "$file" || bad=$((bad + 1))
done

printf '\n%-36s %-13s %s\n' mutant verdict "test that caught it"
cat "$work/table"
echo "${#mutants[@]} mutants, $((${#mutants[@]} - bad)) caught by the right message"
[ $bad -eq 0 ]
