/* stage_calls.c: what a graded ddp.c calls in place of some functions. It runs in the process of the tests, so it
 * gets no pointer to what they look at. In a starter's build objcopy gives libddp.a (ddp.c and common/ddp/) the names of
 * stage_calls.syms, so that pg_rank() becomes stage_pg_rank(), and printf() stage_printf().
 *
 *   the group   is a handle, an address without memory. The functions here know the group behind it, and fault if the
 *               stage has changed what it must not change. Who holds the group itself, as train does, may pass it, too.
 *   printing    goes straight to the descriptors 1 and 2, with "ddp.c: " before each line: no message of a test begins
 *               so. stdout and stderr are no FILEs of the C library's.
 *   exit()      is a fault: the other ranks would wait.
 *   qsort() ... call only functions of libddp.a; and so does each call through a pointer.
 */
#include "stage_calls.h"

#include <errno.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "comm/group.h"

/* ---- the group ---- */

static ProcessGroup *const handle = (ProcessGroup *)64;
static ProcessGroup *group; /* behind the handle; not owned */
static ProcessGroup before; /* the group, when the stage was called */
static bool in_a_call;      /* of ddp.h's; between them a test may change the options */

ProcessGroup *stage_handle(ProcessGroup *pg)
{
    group = pg;
    stage_begins();
    return handle;
}

void stage_begins(void)
{
    if (group != NULL)
        before = *group;
    in_a_call = true;
}

static void expect_untouched(const char *call)
{
    int rank, world_size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    CHECK(group->rank == rank && group->world_size == world_size && group->local_rank == before.local_rank &&
              group->measuring == before.measuring && group->observer_count == before.observer_count &&
              memcmp(group->observers, before.observers, sizeof before.observers) == 0 &&
              (!in_a_call || memcmp(&group->options, &before.options, sizeof before.options) == 0) &&
              group->backend == before.backend && group->state == before.state,
          "%s: ddp.c has changed the process group: its rank or size, its options, or what is counted", call);
}

void stage_ends(const char *call)
{
    if (group != NULL)
        expect_untouched(call);
    in_a_call = false;
}

static ProcessGroup *behind(const ProcessGroup *pg)
{
    if (pg != handle)
        return (ProcessGroup *)pg;
    CHECK(group != NULL, "ddp.c uses a process group that it did not get");
    expect_untouched("a call of the process group's");
    return group;
}

int stage_pg_rank(const ProcessGroup *pg)
{
    return pg_rank(behind(pg));
}

int stage_pg_world_size(const ProcessGroup *pg)
{
    return pg_world_size(behind(pg));
}

int stage_pg_local_rank(const ProcessGroup *pg)
{
    return pg_local_rank(behind(pg));
}

const char *stage_pg_backend(const ProcessGroup *pg)
{
    return pg_backend(behind(pg));
}

AllReduceAlgorithm stage_pg_algorithm(const ProcessGroup *pg)
{
    return pg_algorithm(behind(pg));
}

void *stage_pg_alloc_shared(ProcessGroup *pg, size_t bytes)
{
    return pg_alloc_shared(behind(pg), bytes);
}

void stage_pg_free_shared(ProcessGroup *pg, void *memory)
{
    pg_free_shared(behind(pg), memory);
}

void stage_pg_barrier(ProcessGroup *pg)
{
    pg_barrier(behind(pg));
}

void stage_pg_barrier_without_timeout(ProcessGroup *pg)
{
    pg_barrier_without_timeout(behind(pg));
}

void stage_pg_broadcast(ProcessGroup *pg, void *buffer, size_t count, DType dtype, int root, const char *carries)
{
    pg_broadcast(behind(pg), buffer, count, dtype, root, carries);
}

void stage_pg_all_reduce(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                         const char *carries)
{
    pg_all_reduce(behind(pg), send, receive, count, dtype, op, carries);
}

void stage_pg_all_gather(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                         const char *carries)
{
    pg_all_gather(behind(pg), send, receive, count, dtype, carries);
}

void stage_pg_reduce_scatter(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                             const char *carries)
{
    pg_reduce_scatter(behind(pg), send, receive, count, dtype, op, carries);
}

Work *stage_pg_all_reduce_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                                ReduceOp op, const char *carries)
{
    return pg_all_reduce_async(behind(pg), send, receive, count, dtype, op, carries);
}

Work *stage_pg_reduce_scatter_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                                    ReduceOp op, const char *carries)
{
    return pg_reduce_scatter_async(behind(pg), send, receive, count, dtype, op, carries);
}

Work *stage_pg_all_gather_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                                const char *carries)
{
    return pg_all_gather_async(behind(pg), send, receive, count, dtype, carries);
}

CommCounters stage_pg_counters(ProcessGroup *pg)
{
    return pg_counters(behind(pg));
}

/* ---- printing ---- */

static char no_streams[2][sizeof(FILE)]; /* only their addresses count */
FILE *stage_stdout = (FILE *)no_streams[0], *stage_stderr = (FILE *)no_streams[1];

static void print(const FILE *stream, const char *text, size_t length)
{
    static bool inside[2]; /* a line, by stream */
    const bool is_error = stream != stage_stdout;
    while (length > 0) {
        const char *end = memchr(text, '\n', length);
        const size_t part = end != NULL ? (size_t)(end - text) + 1 : length;
        const int fd = is_error ? STDERR_FILENO : STDOUT_FILENO;
        ssize_t written = inside[is_error] ? 0 : write(fd, "ddp.c: ", 7);
        written = written < 0 ? -1 : write(fd, text, part);
        if (written < 0)
            return;
        inside[is_error] = end == NULL;
        text += part;
        length -= part;
    }
}

int stage_vfprintf(FILE *stream, const char *format, va_list arguments)
{
    char *text;
    const int length = vasprintf(&text, format, arguments);
    if (length < 0)
        return length;
    print(stream, text, (size_t)length);
    free(text);
    return length;
}

int stage_vfprintf_chk(FILE *stream, int flag, const char *format, va_list arguments)
{
    (void)flag;
    return stage_vfprintf(stream, format, arguments);
}

int stage_vprintf(const char *format, va_list arguments)
{
    return stage_vfprintf(stage_stdout, format, arguments);
}

int stage_vprintf_chk(int flag, const char *format, va_list arguments)
{
    (void)flag;
    return stage_vfprintf(stage_stdout, format, arguments);
}

int stage_fprintf(FILE *stream, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int length = stage_vfprintf(stream, format, arguments);
    va_end(arguments);
    return length;
}

int stage_fprintf_chk(FILE *stream, int flag, const char *format, ...)
{
    va_list arguments;
    (void)flag;
    va_start(arguments, format);
    const int length = stage_vfprintf(stream, format, arguments);
    va_end(arguments);
    return length;
}

int stage_printf(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int length = stage_vfprintf(stage_stdout, format, arguments);
    va_end(arguments);
    return length;
}

int stage_printf_chk(int flag, const char *format, ...)
{
    va_list arguments;
    (void)flag;
    va_start(arguments, format);
    const int length = stage_vfprintf(stage_stdout, format, arguments);
    va_end(arguments);
    return length;
}

size_t stage_fwrite(const void *from, size_t size, size_t count, FILE *stream)
{
    print(stream, from, size * count);
    return count;
}

int stage_fputs(const char *text, FILE *stream)
{
    print(stream, text, strlen(text));
    return 1;
}

int stage_puts(const char *text)
{
    return stage_fprintf(stage_stdout, "%s\n", text);
}

int stage_fputc(int character, FILE *stream)
{
    const char c = (char)character;
    print(stream, &c, 1);
    return (unsigned char)c;
}

int stage_putc(int character, FILE *stream)
{
    return stage_fputc(character, stream);
}

int stage_putchar(int character)
{
    return stage_fputc(character, stage_stdout);
}

void stage_perror(const char *text)
{
    stage_fprintf(stage_stderr, "%s: %s\n", text != NULL ? text : "", strerror(errno));
}

/* Nothing is kept in a buffer. */
int stage_fflush(FILE *stream)
{
    (void)stream;
    return 0;
}

int stage_setvbuf(FILE *stream, char *buffer, int mode, size_t size)
{
    (void)stream, (void)buffer, (void)mode, (void)size;
    return 0;
}

void stage_setbuf(FILE *stream, char *buffer)
{
    (void)stream, (void)buffer;
}

/* ---- the end, and functions that are called back ---- */

_Noreturn void stage_exit(int status)
{
    FAULT("ddp.c has called exit(%d): a rank that ends before the others has not passed", status);
}

/* objcopy has made one section of all code of libddp.a; the linker defines its ends. */
extern const char start_of_ddp[] __asm__("__start_ddp_text"), end_of_ddp[] __asm__("__stop_ddp_text");

bool stage_has_function(const void *function)
{
    const char *at = function;
    const bool inside = at >= start_of_ddp && at + sizeof(int) < end_of_ddp;
#ifdef LOCKSTEP_CALLS_ARE_CHECKED
    return inside && memcmp(at, "\xf3\x0f\x1e\xfa", 4) == 0; /* endbr64, with -fcf-protection=branch */
#else
    return inside;
#endif
}

typedef int (*Compare)(const void *, const void *);
typedef int (*CompareWith)(const void *, const void *, void *);

static void check_own(const void *function, const char *caller)
{
    CHECK(stage_has_function(function), "%s: ddp.c has given it a function that is not its own", caller);
}

void stage_qsort(void *base, size_t count, size_t size, Compare compare)
{
    check_own((const void *)compare, "qsort()");
    qsort(base, count, size, compare);
}

void stage_qsort_r(void *base, size_t count, size_t size, CompareWith compare, void *argument)
{
    check_own((const void *)compare, "qsort_r()");
    qsort_r(base, count, size, compare, argument);
}

void *stage_bsearch(const void *key, const void *base, size_t count, size_t size, Compare compare)
{
    check_own((const void *)compare, "bsearch()");
    return bsearch(key, base, count, size, compare);
}

/* ---- calls through a pointer ---- */

#ifdef LOCKSTEP_CALLS_ARE_CHECKED

/* Not static, and used: only the assembler below calls it. */
_Noreturn void stage_refuse_call(void);
_Noreturn void stage_refuse_call(void)
{
    FAULT("ddp.c calls through a pointer that leads to no function of its own");
}

/* gcc (-mindirect-branch=thunk-extern) makes each indirect call of ddp.c a call of one of these, by the register with
 * the address. They go there if a function of libddp.a begins there. */
#define CHECKED_JUMP(register, scratch)                                                                                \
    ".globl __x86_indirect_thunk_" register "\n__x86_indirect_thunk_" register ":\n"                                  \
    "push %" scratch "\nlea __start_ddp_text(%rip), %" scratch "\ncmp %" scratch ", %" register "\njb 1f\n"           \
    "lea __stop_ddp_text-4(%rip), %" scratch "\ncmp %" scratch ", %" register "\nja 1f\n"                             \
    "cmpl $0xfa1e0ff3, (%" register ")\njne 1f\npop %" scratch "\njmp *%" register "\n1: jmp stage_refuse_jump\n"
__asm__(".text\nstage_refuse_jump: and $-16, %rsp\ncall stage_refuse_call\n"
        CHECKED_JUMP("rax", "r11") CHECKED_JUMP("rbx", "r11") CHECKED_JUMP("rcx", "r11") CHECKED_JUMP("rdx", "r11")
        CHECKED_JUMP("rsi", "r11") CHECKED_JUMP("rdi", "r11") CHECKED_JUMP("rbp", "r11") CHECKED_JUMP("r8", "r11")
        CHECKED_JUMP("r9", "r11") CHECKED_JUMP("r10", "r11") CHECKED_JUMP("r11", "r10") CHECKED_JUMP("r12", "r11")
        CHECKED_JUMP("r13", "r11") CHECKED_JUMP("r14", "r11") CHECKED_JUMP("r15", "r11"));

#endif
