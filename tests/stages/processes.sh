# processes.sh: lists running processes. It reads /proc, so it needs no other program, and can compare paths with any
# characters. Sourced by the tests of faults.
# shellcheck shell=bash

if [ ! -r "/proc/$$/cmdline" ]; then
    echo "FAIL: /proc cannot be read on this system, so the tests cannot check whether processes are left"
    exit 1
fi

# processes PROGRAM [WORD]: the ids of all processes that were started as PROGRAM, and with WORD among their arguments.
processes() {
    local directory word command
    for directory in /proc/[0-9]*; do
        { mapfile -d '' -t command <"$directory/cmdline"; } 2>/dev/null || continue # the process has just ended
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

# left_running PROGRAM [WORD]: those that still run after 5 s. mpiexec may return before the processes that it kills
# have ended.
left_running() {
    local left
    for _ in $(seq 50); do
        left=$(processes "$@")
        [ -z "$left" ] && return
        sleep 0.1
    done
    echo "$left"
}
