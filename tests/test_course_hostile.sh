#!/usr/bin/env bash
# test_course_hostile.sh: a submission harms nothing and gains nothing. Without --grade, in seconds: nothing leaves the
# sandbox. With --grade, in minutes: hostile submissions are graded, with the check of symbols and without it.
# (test_course_hostile_symbols.sh has what that check rejects.)
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

# What a submission prints cannot change the terminal.
# shellcheck source-path=SCRIPTDIR/..
(source "$root/course/cases.sh" && [ "$(printf 'a\033[1m\2331mb\n' | plain)" = 'a[1m1mb' ]) || fail "plain() lets pass what is not plain"

# Nor does it take the grader's time, nor the disk: a pattern that looks at a long line again and again.
timeout 20 bash -c 'work=$2 total_seconds=99999 not_run=
    source "$1/tests/stages/messages.sh" && source "$1/course/cases.sh" && mkdir -p "$work"/{results,logs}
    run_cases() { { echo "ERROR: AddressSanitizer: x" && yes " in a /" | head -c 9000000 | tr -d "\n"; } >"$3"; return 1; }
    judge_group a 2 b && cat "$work/results/a 2 b" && [ "$(stat -c %s "$work/logs/a 2 b")" -lt 2000000 ]' \
    - "$root" "$scratch/judged" >"$scratch/out" 2>&1 || fail "a long line holds up the grader, or stays: $(tail -n 3 "$scratch/out")"
grep -q 'failed: AddressSanitizer: x' "$scratch/out" || fail "not what a long log says: $(cat "$scratch/out")"

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

# hostile NAME CHECK PATTERN TEXT: grades a ddp.c with that text after BASE. It gets 0 points, whatever it prints. stage=N:
# that of another stage. most=P: at most P points, for what it does in earnest.
hostile() {
    local points
    { cat "$base_file" && echo "$4"; } >"$scratch/$1.c"
    TMPDIR=$scratch/tmp GRADE_SYMBOLS=$2 "$root/course/grade.sh" "${stage-1}" "$scratch/$1.c" --json "$scratch/json" \
        >"$scratch/out" 2>&1 || fail "$1: grade.sh ended with status $?"
    points=$(jq .points "$scratch/json")
    echo "$1 ($2): $points points"
    [ "$points" -le "${most-0}" ] || fail "$1: expected ${most-0} points: $(cat "$scratch/out")"
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
    for stage in 0 1; do # fills the cache
        TMPDIR=$scratch/tmp "$root/course/grade.sh" $stage "$(echo "$root"/stage1_*/ddp.c)" >/dev/null
    done
    unset stage
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
    hostile names_another_file check 'ddp.c has a #line .* with the name of another file, ddp.c:' '#line 1 "ddp.c"'
    GRADE_SANDBOX=none hostile includes_the_solution check "ddp.c includes $root/stage1_naive/ddp.c" \
        "#include \"$root/stage1_naive/ddp.c\""
    hostile is_long check 'has more than 4 MiB' "$(head -c 5000000 /dev/zero | tr '\0' ' ')"
    hostile embeds check 'does not build' '__asm__(".incbin \"/etc/shadow\"");'

    # Assignment 0: what each rank begins with is computed, not received. And what was sent is written down, not sent.
    base_file=$scratch/knows.c
    cat >"$base_file" <<'END'
#include "collectives.h"
static void send_it(ProcessGroup *pg, const Collective *c, int what);
static void answer(ProcessGroup *pg, const Collective *c, int what) { /* the root's, each chunk's, or from 2 on the sum */
    for (int N = pg->world_size, chunk = 0; chunk < N; chunk++)
        for (size_t i = chunk_start(c->count, N, chunk); i < chunk_start(c->count, N, chunk + 1); i++) {
            int64_t sum = 0;
            for (int r = 0; r < N; r++) {
                uint64_t bits = (i * 17 + (size_t)r + 1) * 0x9E3779B97F4A7C15ull;
                bits = (bits ^ bits >> 29) * 0xBF58476D1CE4E5B9ull >> 33;
                if (what >= 2 || r == (what == 0 ? c->root : chunk)) sum += (int64_t)(1 + bits % 31) << 7 * r;
            }
            if (c->dtype == DTYPE_I64) ((int64_t *)c->receive)[i] = sum;
        }
    send_it(pg, c, what);
}
void broadcast(ProcessGroup *pg, const Collective *c) { answer(pg, c, 0); }
void ring_reduce_scatter(ProcessGroup *pg, const Collective *c) { answer(pg, c, 2); }
void ring_all_gather(ProcessGroup *pg, const Collective *c) { answer(pg, c, 1); }
void ring_all_reduce(ProcessGroup *pg, const Collective *c) { answer(pg, c, 3); }
void halving_doubling_all_reduce(ProcessGroup *pg, const Collective *c) { answer(pg, c, 3); }
END
    stage=0 hostile counts_by_itself check 'their results need' 'static void send_it(ProcessGroup *pg, const Collective *c, int what) {
        struct { ProcessGroup pg; void *c; long messages, elements; } *rank = (void *)pg;
        long n = (long)c->count, rest = n - (long)chunk_count(c->count, pg->world_size, pg->rank);
        rank->elements = what == 0 ? (pg->rank == c->root ? 0 : n) : what == 3 ? 2 * rest : rest; }'
    stage=0 most=20 hostile knows_the_numbers check 'expected 0x' 'static void send_it(ProcessGroup *pg, const Collective *c, int what) {
        MPI_Request requests[2];
        for (int N = pg->world_size, i = 1, pending = 0; i < N; i++, pending = what * 0) {
            void *in = group_scratch(pg, c->count * dtype_size(c->dtype));
            start_receive(pg, c, in, c->count, (pg->rank + N - 1) % N, TAG_SWAP, requests, &pending);
            start_send(pg, c, c->receive, c->count, (pg->rank + 1) % N, TAG_SWAP, requests, &pending);
            wait_for_messages(pg, c, pending, requests); } }'

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
    hostile sends_by_itself check "uses 'start_send'" "#include <mpi.h>
        void start_send(void *, const void *, const void *, size_t, int, int, MPI_Request *, int *);
        $x static long own[999], c[99]; MPI_Request r; int n = 0; start_send(own, c, own, 1, 0, 7, &r, &n); }"
    hostile makes_a_group check 'uses a process group that it did not get' \
        "$x static long own[999]; pg_barrier((ProcessGroup *)own); }"
    if [[ $(uname -m) = x86_64 && $("${CC:-cc}" --version) != *clang* ]]; then
        hostile returns_elsewhere check 'returns to where it was not called' "#include <sched.h>
            __attribute__((noipa)) static void ddp_y(void) {
                volatile long here[1] = {0}; /* above it on the stack is the address of a place in ddp_create() */
                for (int i = 1; i < 9; i++)
                    if (labs(here[i] - (long)ddp_create) < 4096) here[i] = (long)sched_yield; }
            $x ddp_y(); }"
        # A system call stands in a constant, and a pointer or a name leads there.
        gadget="__attribute__((noipa)) long ddp_g(void) { return (long)0x909090c3050fc889ul; }"
        hostile names_a_constant check 'has assembler' "$gadget
            long ddp_h(long fd, const void *text, long bytes, long call) __asm__(\"ddp_g+6\");
            $x ddp_h(1, \"forged\", 6, 1); die(\"forged\"); }"
        base_file=$scratch/starter0.c
        status 0 "$root/course/make_starter.sh" 0 "$scratch/starter0"
        sed 's/die("broadcast() is not written yet");/x(pg);/; s/^void broadcast/static void x(ProcessGroup *pg);\n&/' \
            "$scratch"/starter0/collectives/collectives.c >"$base_file"
        stage=0 hostile calls_a_constant check 'calls through a pointer where none of its functions begins' \
            "static __attribute__((used)) ${gadget/ddp_g/g} static void x(ProcessGroup *pg) {
            ((void (*)(long, long, long, long))((char *)g + 10))(0, 0, 0, 231); die(\"%d\", pg->rank); }"
        base_file=$scratch/sends_nothing.c
        hostile calls_an_address check 'calls through a pointer where none of its functions begins' \
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
    echo 0123456789abcdef >"$scratch/secrets"
    LOCKSTEP_TEST_SECRETS=$scratch/secrets mpiexec "${mpiexec_options[@]}" -n 2 "$program" --judge test_shared_memory >"$scratch/out" 2>&1
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
