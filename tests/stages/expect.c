/* expect.c: see expect.h. A comparison first looks at every element, and then prints one report. */
#include "expect.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILD_SECONDS = 30, CHILD_RETURNED = 250, CHILD_OUTPUT_MAX = 4096 };

static bool in_child = false;

/* LeakSanitizer calls this when a process ends. A child that dies on purpose does not free its memory. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return in_child;
}

/* Fails the test with a message of several lines, the last one being the hint, if there is one. It is printed with one
 * write(), because those of other ranks would come between. */
static void __attribute__((format(printf, 4, 5))) fail_with(const char *file, int line, const char *hint,
                                                             const char *format, ...)
{
    char text[PIPE_BUF]; /* the system keeps a write() of at most this many bytes together */
    va_list arguments;
    va_start(arguments, format);
    size_t length = (size_t)vsnprintf(text, sizeof text / 2, format, arguments);
    va_end(arguments);
    length = length < sizeof text / 2 ? length : sizeof text / 2 - 1; /* what does not fit is cut off */
    if (hint != NULL && hint[0] != '\0')
        length += (size_t)snprintf(text + length, sizeof text - length, "  usual cause: %.1500s\n", hint);
    fflush(stdout); /* earlier output must come first */
    ssize_t written = write(STDERR_FILENO, text, length);
    (void)written; /* this error cannot be reported */
    _fail(file, line);
}

/* Fails a test that would pass for any result of the code under test. */
static void check_comparison(const char *file, int line, const char *name, const float *actual, const float *expected,
                             int64_t count)
{
    if (actual != NULL && expected != NULL && actual != expected && count > 0)
        return;
    fail_with(file, line, NULL, "ERROR: %s: this comparison proves nothing: actual %p, expected %p, %lld elements\n",
              name, (const void *)actual, (const void *)expected, (long long)count);
}

/* 0 if an element passes, else its difference divided by the allowed one. Infinite for NaN and infinity. */
static double excess(float actual, float expected, double atol, double rtol)
{
    if (!isfinite(actual) || !isfinite(expected))
        return INFINITY;
    double difference = fabs((double)actual - (double)expected);
    double allowed = atol + rtol * fabs((double)expected);
    return difference <= allowed ? 0.0 : difference / (allowed + 1e-30); /* the allowed difference may be 0 */
}

void expect_close_at(const char *file, int line, const char *name, const float *actual, const float *expected,
                     int64_t count, double atol, double rtol, const char *hint)
{
    check_comparison(file, line, name, actual, expected, count);
    if (!(isfinite(atol) && isfinite(rtol) && atol >= 0.0 && rtol >= 0.0))
        fail_with(file, line, NULL, "ERROR: %s: the tolerances %g and %g are not numbers >= 0\n", name, atol, rtol);
    int64_t wrong = 0, first = -1, worst = -1;
    double worst_excess = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double off = excess(actual[i], expected[i], atol, rtol);
        if (off == 0.0)
            continue;
        if (wrong++ == 0)
            first = i;
        if (off > worst_excess) {
            worst = i;
            worst_excess = off;
        }
    }
    if (wrong == 0)
        return;
    fail_with(file, line, hint, "ERROR: %s: %lld of %lld elements are off (allowed: %g + %g * |expected|)\n"
              "  first [%lld]: expected %.9g, got %.9g, difference %.3g\n"
              "  worst [%lld]: expected %.9g, got %.9g, difference %.3g\n", name, (long long)wrong, (long long)count,
              atol, rtol, (long long)first, (double)expected[first], (double)actual[first],
              fabs((double)actual[first] - (double)expected[first]), (long long)worst, (double)expected[worst],
              (double)actual[worst], fabs((double)actual[worst] - (double)expected[worst]));
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

void expect_bits_equal_at(const char *file, int line, const char *name, const float *actual, const float *expected,
                          int64_t count, const char *hint)
{
    check_comparison(file, line, name, actual, expected, count);
    if (memcmp(actual, expected, (size_t)count * sizeof *actual) == 0)
        return;
    int64_t wrong = 0, first = -1;
    for (int64_t i = 0; i < count; i++)
        if (bits_of(actual[i]) != bits_of(expected[i]) && wrong++ == 0)
            first = i;
    fail_with(file, line, hint, "ERROR: %s: %lld of %lld elements differ in their bits\n"
              "  first [%lld]: expected %.9g (0x%08x), got %.9g (0x%08x)\n", name, (long long)wrong, (long long)count,
              (long long)first, (double)expected[first], bits_of(expected[first]), (double)actual[first],
              bits_of(actual[first]));
}

/* Runs in the child. From now on its stderr is the pipe. Never returns. */
static void run_child(void (*function)(void *argument), void *argument, int pipe_end)
{
    in_child = true;
    signal(SIGALRM, SIG_DFL);
    dup2(pipe_end, STDERR_FILENO);
    close(pipe_end);
    alarm(CHILD_SECONDS);
    function(argument);
    fflush(NULL);
    _exit(CHILD_RETURNED);
}

/* Reads everything that the child writes, and keeps the beginning as a string. */
static void read_output(int pipe_end, char *output, size_t size)
{
    size_t used = 0;
    char piece[512];
    ssize_t got;
    while ((got = read(pipe_end, piece, sizeof piece)) > 0) {
        size_t kept = (size_t)got < size - 1 - used ? (size_t)got : size - 1 - used;
        memcpy(output + used, piece, kept);
        used += kept;
    }
    output[used] = '\0';
}

/* "ended with status 1", "was ended by signal 14 ...": how waitpid() describes the child. */
static void describe_end(int wait_status, char *text, size_t size)
{
    if (WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGALRM)
        snprintf(text, size, "still ran after %d s", CHILD_SECONDS);
    else if (WIFSIGNALED(wait_status))
        snprintf(text, size, "was ended by signal %d (%s)", WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
    else if (WEXITSTATUS(wait_status) == CHILD_RETURNED)
        snprintf(text, size, "returned, as if all were well");
    else
        snprintf(text, size, "ended with status %d", WEXITSTATUS(wait_status));
}

void expect_dies_at(const char *file, int line, void (*function)(void *argument), void *argument, int status,
                    const char *text)
{
    int ends[2];
    fflush(NULL); /* or the child would print this process's buffers a second time */
    if (pipe(ends) != 0)
        fail_msg("expect_dies: no pipe");
    pid_t child = fork();
    if (child < 0)
        fail_msg("expect_dies: no child process");
    if (child == 0) {
        close(ends[0]);
        run_child(function, argument, ends[1]);
    }
    close(ends[1]);
    char output[CHILD_OUTPUT_MAX], end[80];
    int wait_status = 0;
    read_output(ends[0], output, sizeof output);
    close(ends[0]);
    waitpid(child, &wait_status, 0);

    bool right_status = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == status;
    bool right_text = text == NULL || strstr(output, text) != NULL;
    if (right_status && right_text)
        return;
    describe_end(wait_status, end, sizeof end);
    fail_with(file, line, NULL, "ERROR: expected the process to end with status %d and to say \"%s\"\n"
              "  it %s and said: %.600s\n", status, text ? text : "", end, output[0] != '\0' ? output : "(nothing)");
}
