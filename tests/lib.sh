# lib.sh: what a test script begins with. It is sourced after `set -u`, and has:
#   $scratch        an empty directory, which is removed at the end
#   fail WORDS...   counts a failure, and prints it, with what the last run said in $scratch/err and, about weights that
#                   differ, in $scratch/out. A script may define about(), which prints what is tried: "2 ranks, bf16: "
#   status N COMMAND...   runs it, and counts a failure unless it ends with status N; its output goes to $scratch/out
#   finish          at the end of the script: prints the number of failures, and of $runs; false if something has failed
# shellcheck shell=bash
runs='' failures=0
scratch=$(mktemp -d) && scratch=$(cd "$scratch" && pwd -P) || exit 1
trap 'rm -rf "$scratch"' EXIT

about() { :; }

fail() {
    failures=$((failures + 1))
    echo "FAIL: $(about)$*"
    [ ! -s "$scratch/err" ] || sed 's/^/     stderr: /' "$scratch/err" | head -n 12
    [ ! -s "$scratch/out" ] || grep -a -E '^verify|DIFFERENT' "$scratch/out" | head -n 3
}

status() {
    local expected=$1 got
    shift
    "$@" >"$scratch/out" 2>&1
    got=$?
    [ $got -eq "$expected" ] || {
        fail "$*: exit status $got, expected $expected"
        head -n 10 "$scratch/out" | sed 's/^/    /'
        return 1
    }
}

finish() {
    echo "${runs:+$runs runs, }$failures failure(s)"
    [ "$failures" -eq 0 ]
}
