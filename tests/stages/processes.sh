# processes.sh: which processes are running, read from /proc: no other program is needed, and a path is compared letter
# by letter, whatever characters it has. Sourced by the tests of faults.
# shellcheck shell=bash

if [ ! -r "/proc/$$/cmdline" ]; then
    echo "FAIL: /proc cannot be read on this system: no way to see whether processes are left"
    exit 1
fi

# processes PROGRAM [WORD]: the ids of all processes that were started as PROGRAM, and with WORD among their arguments.
processes() {
    local directory word command
    for directory in /proc/[0-9]*; do
        { mapfile -d '' -t command <"$directory/cmdline"; } 2>/dev/null || continue # it has just ended
        [ "${command[0]-}" = "$1" ] || continue
        for word in "${command[@]}"; do
            if [ "$word" = "${2-$1}" ]; then
                echo "${directory#/proc/}"
                break
            fi
        done
    done
}

# children PROCESS...: the ids of the processes that these have started.
children() {
    local process
    for process in "$@"; do
        cat "/proc/$process/task/$process/children"
    done 2>/dev/null | tr ' ' '\n'
}

# left_running PROGRAM [WORD]: those of them that stay. mpiexec may return a moment before what it has killed is gone.
left_running() {
    local left
    for _ in $(seq 50); do
        left=$(processes "$@")
        [ -z "$left" ] && return
        sleep 0.1
    done
    echo "$left"
}
