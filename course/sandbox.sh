# sandbox.sh: runs the compiler and the test programs of a submission where they can harm nothing. grade.sh sources it.
#
#   enter_sandbox WISH   auto, require or none. Sets sandbox to bwrap or none. Fails if it is required and cannot run
#   limited LOG SECONDS COMMAND...   runs it with all output in LOG, and the caller's stdin; then none of its processes
#       is left. Status: the command's; 124: out of time, its own or when elapsed() (cases.sh) is total_seconds.
#       may_write=yes before it: it may write to the builds
#
# The caller has set work, base, tree, build, checked, memory, total_seconds, no_leaks, and mpiexec_options.
# shellcheck shell=bash disable=SC2154 # these variables are assigned elsewhere

nobody=$((30000 + RANDOM)) # a user for each run: the kernel counts the processes of each user

# What a process in the sandbox sees, all read-only: programs, libraries, a few files of /etc, and a network of its own.
# It may write to /tmp and /dev/shm, which are in memory and end with it.
sandbox_options() {
    local path
    inside=(bwrap --die-with-parent --new-session --unshare-pid --unshare-net --unshare-ipc --unshare-uts
        --hostname localhost --perms 0755 --dir /etc)
    for path in /usr /bin /sbin /lib /lib32 /lib64 /opt /sys \
        /etc/{alternatives,ld.so.cache,ld.so.conf,ld.so.conf.d,hosts,nsswitch.conf,openmpi}; do
        inside+=(--ro-bind-try "$path" "$path")
    done
    inside+=(--proc /proc --dev /dev --perms 1777 --size $((1 << 30)) --tmpfs /dev/shm
        --perms 1777 --size $((256 << 20)) --tmpfs /tmp --chdir /tmp --perms 0755 --dir "$base")
    # Another user. In a user namespace alone, root would still be root to the kernel, and could write below /proc/sys.
    identity=(prlimit --nproc=512)
    if [ "$(id -u)" -eq 0 ]; then
        inside+=(--cap-drop ALL --cap-add CAP_SETUID --cap-add CAP_SETGID --cap-add CAP_SETPCAP)
        identity+=(setpriv --reuid "$nobody" --regid "$nobody" --clear-groups --inh-caps=-all --bounding-set=-all)
    else
        inside+=(--unshare-user --uid "$nobody" --gid "$nobody")
    fi
}

enter_sandbox() {
    sandbox=none inside=() identity=()
    [ "$1" != none ] || return 0
    sandbox_options
    sandbox=bwrap
    for _ in 1 2 3; do # a launch may fail where much else runs
        limited "$work/log" 30 bash -c 'cmake --version && mpiexec "$@" -n 2 true' - "${mpiexec_options[@]}" || continue
        [ "$(id -u)" -ne 0 ] || chown -R "$nobody:$nobody" "$build" "$checked"
        return
    done
    command -v bwrap >/dev/null || echo "bwrap is missing (Debian, Ubuntu: apt-get install bubblewrap)" >"$work/log"
    echo "grade: note: no sandbox: $(tail -n 1 "$work/log")" >&2
    sandbox=none inside=() identity=()
    [ "$1" != require ]
}

# Without a sandbox. A rank runs in a session of its own, so a signal to a process group does not reach it. Processes
# that were started here are found by a variable in their environment, or by the directory of their program.
kill_left() {
    local left
    [ "${sandbox-}" = none ] || return 0 # nothing was started yet, or all has ended with its first process
    for _ in $(seq 20); do
        left=$({
            grep -l -a -s -F "LOCKSTEP_GRADE=$work" /proc/[0-9]*/environ
            find /proc/[0-9]*/exe -lname "$base/build*" 2>/dev/null
        } | cut -d / -f 3)
        [ -n "$left" ] || return 0
        # shellcheck disable=SC2086 # a list of numbers
        kill -KILL $left 2>/dev/null
    done
}

limited() {
    local status log=$1 name run=$work/run bind=--ro-bind left=$((total_seconds - $(elapsed)))
    left=$((left < $2 ? left : $2))
    [ "${may_write-}" != yes ] || bind=--bind
    rm -rf "$run" "$log" && mkdir "$run" && : >"$log"
    [ $left -gt 0 ] || return 124
    (
        cd "$run" || exit 1
        if [ "$sandbox" = bwrap ]; then
            run=/tmp
            inside+=(--ro-bind "$tree" "$tree" "$bind" "$build" "$build" "$bind" "$checked" "$checked")
            [ -z "${LOCKSTEP_TEST_SECRETS-}" ] ||
                inside+=(--perms 0755 --dir "$work" --ro-bind "$LOCKSTEP_TEST_SECRETS" "$LOCKSTEP_TEST_SECRETS")
            [ "$bind" = --bind ] || inside+=(--perms 1777 --tmpfs "$build/Testing") # ctest writes there
        fi
        # If memory runs out, the kernel ends these processes, and not the grader.
        echo 1000 2>/dev/null >/proc/self/oom_score_adj
        ulimit -c 0 -f $((64 * 1024)) # KiB in any file, $log included
        # The sanitizer maps terabytes, and limits the memory in use itself.
        [ "${sanitizer-}" = address ] || ulimit -v $((memory * 1024))
        for name in $(compgen -e); do # what is in the environment may be a secret
            [[ $name =~ ^(PATH|CC|[A-Z]*FLAGS|(CMAKE|LD|LOCKSTEP|MPI|OMPI|PRTE|PKG|UCX)_.*)$ ]] || unset "$name"
        done
        export LOCKSTEP_GRADE=$work LOCKSTEP_TEST_TIMEOUT=10 OPENBLAS_NUM_THREADS=1 TMPDIR=$run HOME=$run
        export HWLOC_PLUGINS_PATH=/none HWLOC_COMPONENTS=-pci,-linuxio # tests/stages/graded.cmake says why
        export ASAN_OPTIONS=handle_segv=2:handle_sigbus=2:handle_sigfpe=2:hard_rss_limit_mb=$memory$no_leaks
        exec timeout --foreground -k 2 $left "${inside[@]}" "${identity[@]}" "${@:3}"
    ) >"$log" 2>&1 9>&- # the student's code does not get the lock
    status=$?
    kill_left
    return $status
}
