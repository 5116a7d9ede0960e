#!/usr/bin/env bash
# test_setup.sh: scripts/setup.sh notices an MPI whose ranks do not know each other, as that of Ubuntu 24.04, and one
# that starts nothing. mpiexec is replaced by a script for it, and apt-get by one that installs nothing.
#
# usage: test_setup.sh ROOT
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
root=$1

tool() { # NAME BODY: a script of this name comes first in PATH
    printf '#!/bin/sh\n%s\n' "$2" >"$scratch/$1" && chmod +x "$scratch/$1"
}
tool apt-get 'exit 1'
export PATH="$scratch:$PATH"

# says STATUS PATTERN: runs setup.sh, and checks its exit status and its output.
says() {
    bash "$root/scripts/setup.sh" >"$scratch/out" 2>&1
    local got=$?
    if grep -q 'missing on this system' "$scratch/out"; then
        echo "skipped: something that the project needs is not installed here"
        exit 77
    fi
    [ $got -eq "$1" ] && grep -q -e "$2" "$scratch/out" && return
    failures=$((failures + 1))
    echo "FAIL: exit status $got, expected $1, and a line with '$2':"
    sed 's/^/    /' "$scratch/out"
}

says 0 'everything needed is installed'
# shellcheck disable=SC2016 # for the script
tool mpiexec 'while [ "$1" != -n ] && [ $# -gt 0 ]; do shift; done
[ $# -gt 2 ] || exit 0
"$3" && "$3"'
says 1 'each is rank 0 of 1.*Ubuntu 24.04'
tool mpiexec 'echo no way >&2; exit 1'
says 1 'error: no way'
tool mpiexec 'exit 1'
says 1 'error: no output'

finish
