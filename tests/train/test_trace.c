/* test_trace.c: if rank 0 takes long to write a trace, the other ranks wait for it without a time-out; and the clocks of
 * two machines are aligned. The linker replaces functions by those here (-Wl,--wrap): atomic_write() is slow, and rank
 * 1's clock is fast. (test_traces.py: what is in a trace.) */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/observer.h"
#include "expect.h"
#include "mpi_main.h"
#include "train/files/atomic_file.h"
#include "train/report/trace.h"

/* A rank's events take 2.4 s to write, because each is written in four pieces. */
#define EVENTS 30
#define SECONDS_PER_WRITE 0.02
#define MOST_SECONDS 1.4

#define FAST 1234.5 /* seconds that rank 1's clock is fast */

static ProcessGroup *pg;
static double longest; /* seconds in a collective that has a time-out */
static char path[200];
static double seconds_per_write, fast;
static bool two_machines;

void __real_atomic_write(AtomicFile *file, const void *bytes, size_t count);

void __wrap_atomic_write(AtomicFile *file, const void *bytes, size_t count)
{
    sleep_seconds(seconds_per_write);
    __real_atomic_write(file, bytes, count);
}

double __real_now_seconds(void);

double __wrap_now_seconds(void)
{
    return __real_now_seconds() + fast;
}

int __real_open(const char *name, int flags, ...);

/* Without a boot_id, a rank counts as a machine of its own. */
int __wrap_open(const char *name, int flags, ...)
{
    return two_machines && strstr(name, "boot_id") != NULL ? -1 : __real_open(name, flags, 0666);
}

static void keep_longest(void *self, const Collective *collective, double start, double end)
{
    (void)self;
    if (!collective->patient)
        longest = fmax(longest, end - start);
}

static void test_a_slow_disk_is_no_time_out(void **state)
{
    (void)state;
    seconds_per_write = SECONDS_PER_WRITE;
    trace_start(pg);
    for (int i = 0; i < EVENTS; i++)
        timeline_add(ROW_COMPUTE, i, i + 0.5, "event %d", i);
    pg_set_measuring(pg, false);
    pg_observe(pg, &(GroupObserver){.done = keep_longest});
    trace_write(pg, path);
    pg_barrier(pg); /* short messages are sent without waiting for the receiver, so wait here */
    unlink(path); /* rank 0's; the others have none */
    if (longest > MOST_SECONDS)
        fail_msg("rank %d waited %.1f s in a collective with a time-out, while rank 0 wrote the trace", pg_rank(pg),
                 longest);
}

/* The number after `key`, from which on *text is searched; moves *text there. */
static double next_number(const char **text, const char *key)
{
    const char *found = strstr(*text, key);
    if (found == NULL)
        fail_msg("the trace has no %s", key);
    *text = found + strlen(key);
    return strtod(*text, NULL);
}

/* Both ranks know one moment, each by its own clock. In the trace it must be one time, except for the error that the
 * trace itself states. */
static void test_clocks_of_two_machines(void **state)
{
    (void)state;
    static char file[1 << 20];
    seconds_per_write = 0;
    two_machines = true;
    fast = pg_rank(pg) == 1 ? FAST : 0;
    trace_start(pg);
    double moment = now_seconds();
    pg_broadcast(pg, &moment, 1, DTYPE_F64, 0, "a moment");
    timeline_add(ROW_COMPUTE, moment + fast, moment + fast + 1, "a moment");
    pg_set_measuring(pg, false);
    trace_write(pg, path);
    if (pg_rank(pg) != 0)
        return;
    FILE *stream = fopen(path, "r");
    assert_true(stream != NULL && fread(file, 1, sizeof file - 1, stream) > 0 && fclose(stream) == 0);
    unlink(path);
    const char *text = file;
    const double error = next_number(&text, "\"error_us\":");
    const double first = (next_number(&text, "\"a moment\""), next_number(&text, "\"ts\":"));
    const double second = (next_number(&text, "\"a moment\""), next_number(&text, "\"ts\":"));
    if (!(error > 0 && error < 1e5))
        fail_msg("the clocks' error is %g us; a barrier takes more than 0 and less than 0.1 s", error);
    if (fabs(first - second) > error)
        fail_msg("one moment is at %.3f us on rank 0 and %.3f us later on rank 1; the stated error is %.3f us", first,
                 second - first, error);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_slow_disk_is_no_time_out),
                                       cmocka_unit_test(test_clocks_of_two_machines)};
    const char *parent = getenv("TMPDIR");
    snprintf(path, sizeof path, "%.150s/test_trace_%ld", parent != NULL ? parent : "/tmp", (long)getpid());
    ProcessGroupOptions options = {.algorithm = ALLREDUCE_ORDERED, .timeout = tests_timeout()};
    pg = tests_start_group(&argc, &argv, &options);
    int failures = cmocka_run_group_tests_name("trace", tests, NULL, NULL);
    pg_destroy(pg);
    return failures != 0;
}
