#!/usr/bin/env bash
# test_course_hostile.sh: a submission harms nothing and gains nothing. Without --grade, in seconds: symbols.sh rejects
# what no solution needs, and nothing leaves the sandbox. With --grade, in minutes: hostile submissions are graded, with
# the check of symbols and without it.
#
# usage: test_course_hostile.sh ROOT [--grade]
# shellcheck disable=SC2016 # what is quoted is for a shell in the sandbox
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
export LC_ALL=C
root=$(cd "$1" && pwd) || exit 1
listener=
trap '[ -z "$listener" ] || kill "$listener"; rm -rf "$scratch"' EXIT

# ---- names: objects as the starter's build makes them ----

mpi=$(mpicc -show | grep -o -E -- "-I[^ ]+" | tr "\n" " ") # two private headers include mpi.h
object() { # TEXT [OPTION...]: compiles it after a small but complete ddp.c
    local flags="-std=gnu11 -D_GNU_SOURCE -O2 -w $mpi ${*:2}"
    { echo 'int ddp_bucket_count(const void *ddp) { return ddp != 0; }' && echo "$1"; } >"$scratch/ddp.c"
    # shellcheck disable=SC2086 # lists of words
    "${CC:-cc}" $flags -o "$place/CMakeFiles/ddp.dir/stage1/ddp.c.o" -c "$scratch/ddp.c" || fail "does not compile: $1"
    echo "  \"command\": \"${CC:-cc} $flags -o CMakeFiles/ddp.dir/stage1/ddp.c.o -c $scratch/ddp.c\"," \
        >"$place/compile_commands.json"
    "$scratch/tests/stages/symbols.sh" stage1 "$place" >"$scratch/out" 2>&1
}

rejected() { # PATTERN TEXT [OPTION...]
    ! object "${@:2}" || fail "accepted: $2"
    grep -q -e "$1" "$scratch/out" || fail "$2: the message does not match '$1': $(cat "$scratch/out")"
}

accepted() { # TEXT [OPTION...]
    object "$@" || fail "rejected: $1: $(cat "$scratch/out")"
}

place=$scratch/build # as in a starter
mkdir -p "$scratch/tests/stages"
cp "$root"/course/{names,symbols}.sh "$root"/tests/stages/*.h "$scratch/tests/stages"
cp -r "$root/common" "$root/train" "$scratch"
mkdir -p "$place/CMakeFiles/common.dir/common/data" "$place/CMakeFiles/ddp.dir/stage1"
echo 'void work_wait(void) { } void job_abort(int s) { (void)s; } void pg_observe(void) { } void timeline_add(void) { }
    void tape_backward(void) { } void tape_record(void) { } void op_add(void) { } void optimizer_create(void) { }' |
    "${CC:-cc}" -xc -c -o "$place/CMakeFiles/common.dir/common/work.c.o" -
echo 'void dataset_open(void) { }' | "${CC:-cc}" -xc -c -o "$place/CMakeFiles/common.dir/common/data/dataset.c.o" -

accepted ''
accepted 'void work_wait(void); void ddp_after_update(void) { work_wait(); }'
accepted '#include <stdio.h>
    void ddp_after_update(int i) { fprintf(stderr, "%d\n", i); printf("%d", i); fputs("x", stderr); }'
accepted '#include <assert.h>
    #include <math.h>
    #include <string.h>
    void ddp_after_update(char *p, float *x) { assert(p); memset(p, 1, 9); *x = fabsf(sqrtf(*x)); }'
functions=(_exit quick_exit write read open fopen fdopen dprintf fork kill raise signal sigaction system execve syscall
    ptrace mmap mprotect dlsym socket atexit on_exit setenv MPI_Allreduce MPI_Finalize fgets fscanf setjmp longjmp
    pthread_create pthread_once tape_backward tape_record op_add optimizer_create job_abort dataset_open pg_observe
    timeline_add stage_begins judge_case_is_over _fail __printf __libc_system)
rejected uses "$(printf 'long %s(); ' "${functions[@]}") long ddp_after_update(void) {
    return 0 $(printf ' + %s(0, 0)' "${functions[@]}"); }" # all in one object: each is named
for function in "${functions[@]}"; do
    grep -q -e "uses '$function'" "$scratch/out" || fail "$function() is not named: $(cat "$scratch/out")"
done
rejected "uses 'stdin'" '#include <stdio.h>
    void *ddp_after_update(void) { return stdin; }'
rejected "uses 'fork'" 'int step(void) __asm__("fork"); int ddp_after_update(void) { return step(); }'
for name in main MPI_Allreduce free __wrap_free helper; do
    rejected "defines '$name'" "int $name(void) { return 0; }"
done
rejected "defines 'free'" '__attribute__((weak)) void free(void *p) { (void)p; }'
rejected 'ifunc' 'static void f(void) { } static void *g(void) { return f; }
    void ddp_after_update(void) __attribute__((ifunc("g")));'
rejected 'init_array' 'static volatile int x; __attribute__((constructor)) static void f(void) { x++; }'
rejected 'init_array' 'static volatile int x; __attribute__((constructor(101))) static void f(void) { x++; }'
rejected 'fini_array' 'static volatile int x; __attribute__((destructor)) static void f(void) { x++; }'
for table in .preinit_array .ctors __libc_atexit; do
    rejected "section '$table" \
        "static void f(void) { } __attribute__((section(\"$table\"), used)) static void (*p)(void) = f;"
done
rejected 'code in' '__attribute__((section(".init"), used)) static void f(void) { }'
rejected 'data among its code' '__attribute__((section(".text#"), used)) static const char c[] = "\x0f\x05";'
nested='int ddp_memory(int (*f)(int (*)(int)), int k) { int g(int i) { return i + k; } return f(g); }'
! echo "$nested" | "${CC:-cc}" -xc -fsyntax-only - 2>/dev/null || rejected 'nested function' "$nested" # only gcc has them
rejected 'assembler' 'void ddp_after_update(void) { __asm__ volatile("nop"); }'
rejected 'assembler' '__asm__(".byte 15, 5");'
rejected 'assembler' 'long ddp_x(long) __asm__("0f\n0:\tsyscall\n#"); long ddp_after_update(void) { return ddp_x(1); }'
rejected 'assembler' '__attribute__((section(".text\n\tsyscall\n#"))) void ddp_after_update(void) { }'
rejected 'assembler' '__attribute__((section(".text;ddp_x:mov $60,%eax;syscall;ret#"))) void ddp_after_update(void) { }'
rejected 'assembler' '__attribute__((section(R"(.text
    syscall
    .section .text)"))) void ddp_after_update(void) { }'
accepted 'void ddp_x(void) __asm__("ddp_after_update"); void ddp_x(void) { }'
rejected 'of static variables' 'static char hidden[1 << 20]; char *ddp_x(int i); char *ddp_x(int i) { return &hidden[i]; }'
accepted 'static char small[1 << 17]; char *ddp_x(int i); char *ddp_x(int i) { return &small[i]; }'
for header in common/comm/group.h common/ddp/../comm/./observer.h tests/stages/judge.h train/guard/parts.h; do
    rejected "includes $(realpath -m "/$header" | cut -c 2-)" "#include \"$scratch/$header\"" "-I $scratch/common"
done
checked_calls='-mindirect-branch=thunk-extern -mindirect-branch-register -fcf-protection=branch'
pointer='int (*ddp_x)(void);'
attribute='__attribute__((indirect_branch("keep")))'
# shellcheck disable=SC2086 # a list of words
if "${CC:-cc}" $checked_calls -xc -fsyntax-only - 2>/dev/null <<<'int ddp_x;'; then
    accepted "$pointer int ddp_after_update(void) { return ddp_x() + 1; }" $checked_calls
    rejected 'a call that is not checked' "$pointer $attribute int ddp_after_update(void) { return ddp_x() + 1; }" \
        $checked_calls
    checked_calls+=' -mfunction-return=thunk-extern -fno-ipa-ra'
    accepted "$pointer int ddp_after_update(void) { return ddp_x() + 1; }" $checked_calls
    rejected 'a return that is not checked' \
        '__attribute__((function_return("keep"))) int ddp_after_update(int i) { return i; }' $checked_calls
fi
for attribute in 'no_sanitize("address")' __no_sanitize_address__ no_address_safety_analysis; do
    rejected 'turns a sanitizer off' "__attribute__(($attribute)) void ddp_after_update(int *p) { p[9] = 1; }"
done
accepted '#include <pthread.h>
    #include <string.h>
    #include <stdio.h>
    void ddp_after_update(void) {
        __attribute__((unused)) const char *lines = "\n; no_sanitize";
        fprintf(stderr, "no asm here, \"%s\": %c", lines, (char)34);
    }' -D_FORTIFY_SOURCE=2

sanitized=-fsanitize=address,undefined
if "${CC:-cc}" $sanitized -xc -o /dev/null - <<<'int main(void) { return 0; }' 2>/dev/null; then
    mv "$place" "$place-address"
    place=$place-address
    accepted 'const int ddp_stage_number = 1;' $sanitized
    rejected 'init_array' 'static volatile int x; __attribute__((constructor(99))) static void f(void) { x++; }' \
        $sanitized
    rejected "uses '_exit'" 'void _exit(int); void ddp_after_update(void) { _exit(0); }' $sanitized
    accepted '#include <string.h>
        int ddp_after_update(int n) { char text[n]; memset(text, n, (size_t)n); return text[n / 2]; }' $sanitized
    rejected "uses '__asan_poison_memory_region'" 'void __asan_poison_memory_region(void *p, unsigned long size);
        void ddp_after_update(void) { __asan_poison_memory_region(0, 0); }' $sanitized
    rejected "defines '__asan_default_options'" 'const char *__asan_default_options(void) { return "exitcode=0"; }' \
        $sanitized
    rejected "defines '__asan_report_load4'" 'void __asan_report_load4(void *p) { (void)p; }' $sanitized
fi

# What a submission prints cannot change the terminal.
# shellcheck source-path=SCRIPTDIR/..
(source "$root/course/cases.sh" && [ "$(printf 'a\033[1m\2331mb\n' | plain)" = 'a[1m1mb' ]) || fail "plain() lets pass what is not plain"

# ---- the sandbox ----

# inside PATTERN STATUS COMMAND: runs it in the sandbox, and looks at the output and the exit status.
inside() {
    limited "$work/log" "${limit-20}" bash -c "$3" </dev/null
    status=$?
    [ $status -eq "$2" ] || fail "in the sandbox: $3: status $status, not $2: $(tail -n 3 "$work/log")"
    [ -z "$1" ] || grep -a -q -e "$1" "$work/log" ||
        fail "in the sandbox: $3: '$1' is not in the output: $(tail -n 3 "$work/log")"
}

# shellcheck disable=SC2034 # read by sandbox.sh
work=$scratch/work base=$scratch/base tree=$scratch/base/tree build=$scratch/base/build checked=$scratch/base/checked \
    memory=512 total_seconds=600 no_leaks=
mkdir -p "$work" "$tree" "$build/Testing" "$checked" "$scratch/mine"
echo untouched | tee "$tree/file" "$build/file" "$scratch/mine/file" >/dev/null
# shellcheck source-path=SCRIPTDIR/..
source "$root/scripts/mpi.sh"
# shellcheck source-path=SCRIPTDIR/..
source "$root/course/cases.sh"
source "$root/course/sandbox.sh"

start_listener() { # prints "reached" to a file if someone connects
    perl -MIO::Socket::INET -e '
        my $s = IO::Socket::INET->new(Listen => 5, LocalAddr => "127.0.0.1") or die;
        $| = 1; print $s->sockport, "\n"; while (my $c = $s->accept) { print "reached\n" }' >"$scratch/reached" &
    listener=$!
    for _ in $(seq 100); do [ -s "$scratch/reached" ] && return; sleep 0.1; done
}

unharmed() { # WHAT
    local file left
    for file in "$tree/file" "$build/file" "$scratch/mine/file"; do
        [ "$(cat "$file")" = untouched ] || fail "$1: has changed $file"
    done
    grep -q reached "$scratch/reached" && fail "$1: has reached the network"
    kill -0 "$listener" || fail "$1: has killed a process of the host"
    for _ in $(seq 50); do # the kernel may still be ending them
        left=$(grep -l -a -s -F "LOCKSTEP_GRADE=$scratch" /proc/[0-9]*/environ)
        [ -n "$left" ] || break
        sleep 0.1
    done
    [ -z "$left" ] || fail "$1: left running: $left"
    [ ! -e /tmp/lockstep-hostile ] || fail "$1: has written to /tmp"
}

# Without bwrap: auto goes on, and says so; require fails.
(
    failures=0
    sandbox_options() { inside=(/none/bwrap); }
    { enter_sandbox auto && [ "$sandbox" = none ]; } 2>"$scratch/out" || fail "GRADE_SANDBOX=auto needs a sandbox"
    grep -q 'no sandbox: .*\(/none/bwrap\|bwrap is missing\)' "$scratch/out" || fail "not said: no sandbox: $(cat "$scratch/out")"
    ! enter_sandbox require 2>/dev/null || fail "GRADE_SANDBOX=require goes on without a sandbox"
    exit $failures
)
failures=$((failures + $?))

start_listener
port=$(head -n 1 "$scratch/reached")
sandbox=none
if enter_sandbox auto && [ "$sandbox" = bwrap ]; then
    export SECRET_TOKEN=visible
    inside 'token:$' 0 'echo token:$SECRET_TOKEN'
    inside '^1000$' 0 'cat /proc/self/oom_score_adj' # the kernel ends it before the grader
    limit=60 total_seconds=$(($(elapsed) + 1)) inside 'begins' 124 'echo begins; sleep 60'
    total_seconds=$(elapsed) inside '' 124 'echo not begun'
    [ ! -s "$work/log" ] || fail "was run when its time was over: $(cat "$work/log")"
    inside 'uid=[1-9].* gid=[1-9]' 0 id
    inside 'Permission denied' 1 'read -r same </proc/sys/kernel/core_uses_pid
        echo "$same" >/proc/sys/kernel/core_uses_pid'
    inside 'No such file' 1 'cat /etc/shadow /root/.bashrc'
    inside 'No such file' 1 "cat $scratch/mine/file"
    inside 'Read-only' 1 "echo touched >$tree/file"
    inside 'Read-only' 1 "echo touched >$build/file"
    inside 'No such file' 1 "echo touched >$scratch/mine/file"
    inside '' 0 'echo touched >/tmp/lockstep-hostile'
    inside 'Connection refused' 1 "exec 3<>/dev/tcp/127.0.0.1/$port"
    inside 'No such process' 1 "kill -KILL $$ $listener"
    inside '' 137 'kill -KILL -1; kill -KILL 1; kill -KILL $$'
    inside '' 0 'for i in 1 2 3; do (setsid sleep 1000 &); done'
    inside 'No space left' 1 'for i in {1..6}; do head -c 60M /dev/zero >/tmp/$i || exit 1; done'
    inside 'No space left' 1 'for i in {1..20}; do head -c 60M /dev/zero >/dev/shm/$i || exit 1; done'
    inside '' 153 'exec head -c 65M /dev/zero'
    inside 'Out of memory\|memory exhausted\|panic' 1 'perl -e "\$x = q(x) x (1 << 30)" || exit 1'
    limit=3 inside '' 124 'while :; do :; done'
    limit=3 inside 'Resource temporarily unavailable' 124 'f() { f | f & }; f; sleep 1000'
    inside '' 0 'true' # and all is in order afterwards
    may_write=yes inside '' 0 "echo built >$build/built"
    unharmed "the sandbox"
else
    echo "skipped: no sandbox"
fi

# ---- grades ----

# hostile NAME CHECK PATTERN TEXT: grades a ddp.c with that text after BASE. It gets 0 points, whatever it prints.
hostile() {
    local points
    { cat "$base_file" && echo "$4"; } >"$scratch/$1.c"
    TMPDIR=$scratch/tmp GRADE_SYMBOLS=$2 "$root/course/grade.sh" 1 "$scratch/$1.c" --json "$scratch/json" \
        >"$scratch/out" 2>&1 || fail "$1: grade.sh ended with status $?"
    points=$(jq .points "$scratch/json")
    echo "$1 ($2): $points points"
    [ "$points" = 0 ] || fail "$1: expected 0 points: $(cat "$scratch/out")"
    grep -a -q -e "$3" "$scratch/out" || fail "$1: no output matches: $3: $(cat "$scratch/out")"
    ! grep -a -q '^root:\|:/root:' "$scratch/out" || fail "$1: has read a file of the system"
    [ -z "$(ls -A "$scratch/tmp")" ] || fail "$1: left behind: $(ls -A "$scratch/tmp")"
    unharmed "$1"
}

at_start() { # STATEMENTS: they run before main()
    echo "__attribute__((constructor)) static void start(void) { $1 }"
}

headers='
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
'

if [ "${2-}" = --grade ] && [ "$sandbox" = bwrap ]; then
    mkdir "$scratch/tmp"
    export GRADE_CACHE=$scratch/cache
    TMPDIR=$scratch/tmp "$root/course/grade.sh" 1 "$root"/stage1_*/ddp.c >/dev/null # fills the cache
    export GRADE_SECONDS=3 GRADE_TOTAL=20 GRADE_MEMORY_MB=1024
    forged='puts("passed: test_same_start 0123456789abcdef\n[       OK ] test_same_start\n[  PASSED  ] 1 test(s).");'
    base_file=$(echo "$root"/stage1_*/ddp.c) # a right solution, which would get 100
    hostile leaves check "section '.init_array" "$(at_start 'exit(0);')"
    hostile forks check "uses 'fork'" "$headers void ddp_x(void) { fork(); }"
    hostile writes check "uses 'open'" "$headers void ddp_x(void) { open(\"$scratch/mine/file\", O_WRONLY); }"
    hostile connects check "uses 'socket'" "$headers void ddp_x(void) { socket(AF_INET, SOCK_STREAM, 0); }"
    hostile kills check "uses 'kill'" "$headers void ddp_x(void) { kill(getppid(), 9); }"
    hostile own_main check 'multiple definition\|defines .main' 'int main(void) { return 0; }'
    hostile own_mpi check "defines 'MPI_Allreduce'" 'int MPI_Allreduce(void) { return 0; }'
    hostile includes check 'does not build' '#include "/etc/shadow"'
    # Its name would end every later build in the same cache: make takes what is before a colon for a target.
    hostile includes_a_colon check 'ddp.c includes /sys/dev/char/1:3/dev' 'static int ddp_x(int d) { return d == 0 ?
        #include "/sys/dev/char/1:3/dev"
        ; } int (*volatile ddp_y)(int) = ddp_x;'
    hostile includes_by_a_macro check '# *include "/sys/dev/char/1:3/dev"' '#define H #
        H include "/sys/dev/char/1:3/dev"'
    GRADE_SANDBOX=none hostile includes_the_solution check "ddp.c includes $root/stage1_naive/ddp.c" \
        "#include \"$root/stage1_naive/ddp.c\""
    hostile embeds check 'does not build' '__asm__(".incbin \"/etc/shadow\"");'

    # What would be compared is hidden: nothing is left that could differ.
    base_file=$scratch/hides.c
    sed 's/^    replicas_broadcast(.*/&\n    parameters->count = 0;/' "$root"/stage1_*/ddp.c >"$base_file"
    hostile hides_parameters check "changed the number of the model's parameters" ''

    base_file=$scratch/base_with_options.c
    sed 's/^    replicas_broadcast(.*/&\n    ((DdpOptions *)options)->bucket_cap_bytes++;/' "$root"/stage1_*/ddp.c >"$base_file"
    hostile changes_options check 'changed the options' ''

    # Nothing travels, and what is behind the handle shall say that there is nobody to send to.
    base_file=$scratch/sends_nothing.c
    sed "s/^    replicas_check_same_model(pg, parameters);/    ddp_x(pg, tape);\n&/; /pg_all_reduce(/d
        s/^struct Ddp {/static void ddp_x(ProcessGroup *pg, Tape *tape);\n&/" "$root"/stage1_*/ddp.c >"$base_file"
    x='static void ddp_x(ProcessGroup *pg, Tape *tape) { (void)pg, (void)tape; '
    alone='group[0] = 0; group[1] = 1; }'
    hostile takes_the_group check 'comm/group.h, which is for common/comm alone' "#include \"comm/group.h\"
        $x pg->rank = 0; pg->world_size = 1; }"
    hostile redeclares_the_group check '' "$x int *group = (int *)pg; $alone"
    hostile finds_the_group check '' "$x static float one[2];
        Work *work = pg_all_reduce_async(pg, one, one, 1, DTYPE_F32, REDUCE_SUM, \"x\");
        int *group = *(int **)work; work_wait(work); $alone"
    hostile listens_elsewhere check "gradient_ready of the tape's listener is no function of ddp.c" \
        "$x tape->listener.gradient_ready = (void (*)(void *, Parameter *))free; }"
    later="static Tape *ddp_y; static void ddp_z(void *self, Parameter *p) { (void)self, (void)p;"
    listens="$x ddp_y = tape; tape_listen(tape, (TapeListener){.gradient_ready = ddp_z}); }"
    hostile listens_elsewhere_later check "gradient-ready event: gradient_ready of the tape's listener is no function" \
        "$later ddp_y->listener.gradient_ready = (void (*)(void *, Parameter *))free; } $listens"
    hostile changes_a_node check 'gradient-ready event changed the tape' \
        "$later ddp_y->nodes[0].backward = (void (*)(Tape *, Node *))free; } $listens"
    hostile sorts_by_another check 'has given it a function that is not its own' "#include <string.h>
        $x const char *a[] = {\"b\", \"a\"}; qsort(a, 2, sizeof *a, (int (*)(const void *, const void *))strcmp); }"
    hostile leaves_early check 'ddp.c has called exit(0)' "#include <stdio.h>
        $x puts(\"1 runs, 0 failure(s)\"); exit(0); }"
    # The secrets are in no FILE, and the C library's streams are not there.
    hostile reads_the_secrets check '' "#include <stdio.h>
        $x FILE *in = stderr->_chain->_chain;
        int (*more)(FILE *) = (int (*)(FILE *))(*(void ***)((char *)in + sizeof *in))[4];
        while (more(in) >= 0) { fwrite(in->_IO_read_ptr, 1, (size_t)(in->_IO_read_end - in->_IO_read_ptr), stdout);
            in->_IO_read_ptr = in->_IO_read_end; }
        die(\"read\"); }"
    hostile makes_a_group check 'uses a process group that it did not get' \
        "$x static long own[999]; pg_barrier((ProcessGroup *)own); }"
    if [[ $(uname -m) = x86_64 && $("${CC:-cc}" --version) != *clang* ]]; then
        hostile returns_elsewhere check 'returns to where it was not called' "#include <sched.h>
            __attribute__((noipa)) static void ddp_y(void) {
                ((void *volatile *)__builtin_frame_address(0))[1] = (void *)sched_yield; }
            $x ddp_y(); }"
        hostile calls_an_address check 'calls through a pointer that leads to no function of its own' \
            "$x void (*volatile other)(void *) = free; other(NULL); }"
    fi

    # All samples become alike, so that each rank alone finds the right gradient: for the test, not for the judge, who has
    # samples of its own.
    { echo '#include "data/dataset.h"' && sed "s/^ *pg_all_reduce(.*/device_scale(gradient, pg_world_size(ddp->pg), count);/
        s/^    replicas_check_same_model(pg, parameters);/    ddp_x((Dataset *)parameters);\n&/
        s/^struct Ddp {/static void ddp_x(Dataset *data);\n&/" "$root"/stage1_*/ddp.c && echo 'static void ddp_x(Dataset *d) {
        while (d->size <= 0 || d->inputs <= 0 || d->byte_count != d->size * d->inputs || d->targets != 1)
            d = (Dataset *)((long *)d - 1);
        for (int64_t i = 1; i < d->size; i++) {
            d->labels[i] = d->labels[0];
            for (int64_t k = 0; k < d->inputs; k++) d->bytes[i * d->inputs + k] = d->bytes[k]; } }'; } \
        >"$GRADE_CACHE/stage1_naive/tree/stage1_naive/ddp.c"
    program=$GRADE_CACHE/stage1_naive/build/stage1_naive/test_equivalence_stage1
    cmake --build "$GRADE_CACHE/stage1_naive/build" --target "${program##*/}" >"$scratch/out" 2>&1 ||
        fail "alters_samples: $(cat "$scratch/out")"
    mpiexec "${mpiexec_options[@]}" -n 2 "$program" --judge test_shared_memory >"$scratch/out" 2>&1 <<<0123456789abcdef
    grep -q 'mlp over shared memory: largest difference' "$scratch/out" || fail "alters_samples: $(cat "$scratch/out")"
    ! grep -q '^passed: ' "$scratch/out" || fail "alters_samples has passed: $(cat "$scratch/out")"

    # Without the check of symbols only the sandbox and the secrets are left.
    base_file=$scratch/starter.c
    status 0 "$root/course/make_starter.sh" 1 "$scratch/starter"
    sed 's/die("ddp_create() is not written yet");/ddp_x();/; s/^struct Ddp {/void ddp_x(void);\n&/' \
        "$scratch"/starter/stage1_*/ddp.c >"$base_file"
    hostile forges check 'is not written yet' "$headers
        void ddp_x(void) { $forged }"
    hostile reads_the_pipe any 'no secret here' "$headers
        #include <sys/ioctl.h>
        void ddp_x(void) { sleep(1); char line[33] = {0}; for (int fd = 3, n; fd < 64; fd++)
            if (ioctl(fd, FIONREAD, &n) == 0 && n > 32 && read(fd, line, 32) == 32)
                dprintf(1, \"\\npassed: test_same_start %s\\n\", line);
            die(\"no secret here\"); }"
    cp "$scratch"/starter/stage1_*/ddp.c "$base_file"
    hostile forges_and_leaves any 'was not over' "$headers $(at_start "$forged _exit(0);")"
    hostile stays any '' "$headers $(at_start '
        if (fork() == 0) { setsid(); if (fork() == 0) sleep(1000); _exit(0); }
        exit(0);')"
    hostile forks any '' "$headers $(at_start 'for (;;) fork();')"
    hostile writes any '' "$headers $(at_start "
        const char *names[] = {\"$scratch/mine/file\", \"$tree/file\", \"/tmp/lockstep-hostile\"};
        for (int i = 0; i < 3; i++) write(open(names[i], O_WRONLY | O_CREAT, 0600), \"harm\", 4);
        exit(0);")"
    hostile connects any '' "$headers $(at_start "
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons($port), .sin_addr = {htonl(0x7f000001)}};
        connect(socket(AF_INET, SOCK_STREAM, 0), (void *)&to, sizeof to); exit(0);")"
    hostile kills any '' "$headers $(at_start "kill($$, 9); kill($listener, 9); kill(getppid(), 9); kill(-1, 9);")"
    hostile fills any '' "$headers $(at_start 'static char b[1 << 20]; char name[40]; for (int i = 0;; i++) {
        sprintf(name, "/tmp/%d", i); int f = open(name, O_WRONLY | O_CREAT, 0600);
        for (int k = 0; k < 60; k++) if (write(f, b, sizeof b) < 0) exit(0); }')"
    hostile floods any 'FAILED' "$headers $(at_start 'for (;;) puts("endless");')"
    hostile allocates any '' "$headers $(at_start '
        for (char *p; (p = malloc(1 << 20)) != NULL;) memset(p, 1, 1 << 20);
        exit(0);')"
    hostile loops any 'still running after 3 s' "$(at_start 'for (volatile int i = 0;; i++) { }')"
fi

finish
