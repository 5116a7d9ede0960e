/* test_trace.c: if rank 0 takes long to write a trace, the other ranks wait for it without a time-out. The linker
 * replaces atomic_write() by a slow one (-Wl,--wrap). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/observer.h"
#include "expect.h"
#include "mpi_main.h"
#include "train/files/atomic_file.h"
#include "train/report/trace.h"

/* A rank's events take 2.4 s to write, because each is written in two pieces. */
#define EVENTS 30
#define SECONDS_PER_WRITE 0.04
#define MOST_SECONDS 1.4

static ProcessGroup *pg;
static double longest; /* seconds in a collective that has a time-out */

void __real_atomic_write(AtomicFile *file, const void *bytes, size_t count);

void __wrap_atomic_write(AtomicFile *file, const void *bytes, size_t count)
{
    sleep_seconds(SECONDS_PER_WRITE);
    __real_atomic_write(file, bytes, count);
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
    char path[200];
    const char *parent = getenv("TMPDIR");
    snprintf(path, sizeof path, "%.150s/test_trace_%ld", parent != NULL ? parent : "/tmp", (long)getpid());
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_slow_disk_is_no_time_out)};
    ProcessGroupOptions options = {.algorithm = ALLREDUCE_ORDERED, .timeout = tests_timeout()};
    pg = tests_start_group(&argc, &argv, &options);
    int failures = cmocka_run_group_tests_name("trace", tests, NULL, NULL);
    pg_destroy(pg);
    return failures != 0;
}
