/* check.c: prints one line that says what went wrong, and ends the whole job. */
#include "base/check.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STATUS_FAULT = 1, STATUS_WRONG_USE = 2, LINE_SIZE = 1024 };

/* How long a rank in die() waits for the other ranks to make the same mistake. */
static const double MISTAKE_WAIT_SECONDS = 2.0;

static Job job = {.rank = 0, .world_size = 1};
static _Atomic(void (*)(void)) before_abort;
static const char *program = "train";
static int exit_status;
static void (*on_explained_end)(void); /* NULL: no call */
static atomic_long current_step = -1; /* atomic, because a fault in another thread reads it */

void job_set(Job new_job)
{
    job = new_job;
}

void job_leave(void)
{
    if (job.leave != NULL)
        job.leave();
}

void job_before_abort(void (*action)(void))
{
    atomic_store(&before_abort, action);
}

void job_on_explained_end(void (*action)(void))
{
    on_explained_end = action;
}

void job_end_is_explained(void)
{
    if (on_explained_end != NULL)
        on_explained_end();
}

void job_set_status(int status)
{
    exit_status = status;
}

int job_status(void)
{
    return exit_status;
}

int job_rank(void)
{
    return job.rank;
}

int job_world_size(void)
{
    return job.world_size;
}

void job_set_program(const char *name)
{
    program = name;
}

void job_set_step(long step)
{
    atomic_store(&current_step, step);
}

/* A line of text; what does not fit is cut off. */
typedef struct Line {
    char text[LINE_SIZE];
    size_t length;
} Line;

static void line_append_list(Line *line, const char *format, va_list arguments)
{
    size_t room = sizeof line->text - line->length; /* includes the final 0, which line_print() replaces by a newline */
    int wanted = vsnprintf(line->text + line->length, room, format, arguments);
    if (wanted > 0)
        line->length += (size_t)wanted < room ? (size_t)wanted : room - 1;
}

static void __attribute__((format(printf, 2, 3))) line_append(Line *line, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    line_append_list(line, format, arguments);
    va_end(arguments);
}

/* Prints the line with one write(), so that lines of several ranks do not mix. Control characters become '?', so that
 * it stays one line. */
static void line_print(Line *line)
{
    for (size_t i = 0; i < line->length; i++)
        if ((unsigned char)line->text[i] < ' ' || line->text[i] == 0x7f)
            line->text[i] = '?';
    line->text[line->length++] = '\n';
    if (ftrylockfile(stdout) == 0) { /* else another thread hangs while it prints, and this line must not wait for it */
        fflush(stdout); /* earlier output must come first */
        funlockfile(stdout);
    }
    ssize_t written = write(STDERR_FILENO, line->text, line->length);
    (void)written; /* this error cannot be reported */
}

/* note: ending-together
 * Usually all ranks make the same mistake, and only rank 0 prints it. So each rank waits a moment for the others. If
 * they do not arrive, only this rank made the mistake: it prints the line itself and ends the job. */
void die(const char *format, ...)
{
    Line line = {.length = 0};
    va_list arguments;
    line_append(&line, "%s: error: ", program);
    va_start(arguments, format);
    line_append_list(&line, format, arguments);
    va_end(arguments);

    job_set_status(STATUS_WRONG_USE);
    job_end_is_explained(); /* on all ranks, although only rank 0 may print */
    if (job.rank == 0)
        line_print(&line);
    if (job.all_ranks_arrive == NULL)
        exit(STATUS_WRONG_USE);

    if (job.all_ranks_arrive(MISTAKE_WAIT_SECONDS)) { /* every rank made the same mistake, and rank 0 has printed it */
        job_leave();
        fflush(NULL);
        _exit(STATUS_WRONG_USE); /* not exit(): a sanitizer would report memory that MPI still holds */
    }
    if (job.rank != 0) {
        line_append(&line, " (rank %d)", job.rank);
        line_print(&line);
    }
    job_abort(STATUS_WRONG_USE);
}

/* "common/base/check.c" -> "check.c" */
static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* "PROGRAM: fault: rank R, step S: MESSAGE" */
static void append_fault(Line *line, const char *format, va_list arguments)
{
    long step = atomic_load(&current_step);
    line_append(line, "%s: fault: rank %d", program, job.rank);
    if (step >= 0)
        line_append(line, ", step %ld", step);
    line_append(line, ": ");
    line_append_list(line, format, arguments);
    job_end_is_explained(); /* the caller prints it next */
}

void fault_at(const char *file, int line_number, const char *format, ...)
{
    Line line = {.length = 0};
    va_list arguments;
    va_start(arguments, format);
    append_fault(&line, format, arguments);
    va_end(arguments);
    line_append(&line, " (%s:%d)", file_name(file), line_number);
    line_print(&line);
    job_abort(STATUS_FAULT);
}

void job_say_fault(const char *format, ...)
{
    Line line = {.length = 0};
    va_list arguments;
    va_start(arguments, format);
    append_fault(&line, format, arguments);
    va_end(arguments);
    line_print(&line);
}

void job_abort(int status)
{
    job_end_is_explained(); /* this end is intended: a line, here or on another rank, says why */
    void (*action)(void) = atomic_exchange(&before_abort, NULL);
    if (action != NULL)
        action();
    if (job.abort_all != NULL)
        job.abort_all(status);
    exit(status);
}

void advise(const char *format, ...)
{
    if (job.rank != 0)
        return;
    Line line = {.length = 0};
    va_list arguments;
    line_append(&line, "%s: note: ", program);
    va_start(arguments, format);
    line_append_list(&line, format, arguments);
    va_end(arguments);
    line_print(&line);
}

void *alloc_or_fault(size_t bytes)
{
    const size_t alignment = 64;
    void *memory = NULL;
    CHECK(bytes <= PTRDIFF_MAX, "cannot allocate %zu bytes: the size is not plausible", bytes);
    /* Not aligned_alloc(): it requires a multiple of 64 bytes, and a sanitizer sees no overflow into the padding. */
    CHECK(posix_memalign(&memory, alignment, bytes > 0 ? bytes : 1) == 0, "out of memory: cannot allocate %zu bytes",
          bytes);
    memset(memory, 0, bytes);
    return memory;
}
