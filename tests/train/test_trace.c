/* test_trace.c: what depends on luck in the runs of test_traces.py. The time that rank 0 takes to write a trace is no
 * waiting for the other ranks; clocks of two machines are aligned; a collective is in the step that waits for it. The
 * linker replaces functions by those here (-Wl,--wrap): writing is slow, and clocks show what the test says. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "expect.h"
#include "mpi_main.h"
#include "train/files/atomic_file.h"
#include "train/report/trace.h"

/* Each event is written in at least three pieces. */
#define EVENTS 5
#define SECONDS_PER_WRITE 0.02

static ProcessGroup *pg;
static char path[200];
static double seconds_per_write;

void __real_atomic_write(AtomicFile *file, const void *bytes, size_t count);

void __wrap_atomic_write(AtomicFile *file, const void *bytes, size_t count)
{
    sleep_seconds(seconds_per_write);
    __real_atomic_write(file, bytes, count);
}

/* When a rank enters and leaves barrier `number`, on its own clock. Rank 1's is fast. Each barrier gives two limits of
 * what aligns it. Relative to -FAST, the least is rank 0's time at its entry less rank 1's as it leaves; the most is
 * the other way round. They are -4 and 1, but in one barrier the most is closer, and in another one the least. */
#define FAST 1234.5
#define LEAST (-0.5)
#define MOST 0.25
static double barrier_seconds(int rank, int number, bool left)
{
    static const double usual[2][2] = {{0, 3}, {2, 4}}, most[2][2] = {{0, 1}, {1 - MOST, 1.25}},
                        least[2][2] = {{0, 3}, {0.25, -LEAST}};
    const double(*times)[2] = number == 7 ? most : number == 9 ? least : usual;
    return 10 * number + times[rank][left] + FAST * rank;
}

static _Thread_local bool scripted; /* the calling thread reads the clock of these barriers */
static int barriers, reads;         /* barriers that are over; how often the clock was read since the last one */

double __real_now_seconds(void);

double __wrap_now_seconds(void)
{
    if (!scripted)
        return __real_now_seconds();
    const bool left = reads++ == 0;
    return barrier_seconds(pg_rank(pg), barriers - left, left);
}

void __real_pg_barrier(ProcessGroup *group);

void __wrap_pg_barrier(ProcessGroup *group)
{
    const bool outside = scripted;
    scripted = false;
    __real_pg_barrier(group);
    scripted = outside;
    barriers++;
    reads = 0;
}

void __real_pg_all_gather(ProcessGroup *group, const void *send, void *receive, size_t count, DType dtype,
                          const char *carries);

/* The barriers are over. From here on, the watchdog's thread would compare scripted times with its own clock. */
void __wrap_pg_all_gather(ProcessGroup *group, const void *send, void *receive, size_t count, DType dtype,
                          const char *carries)
{
    scripted = false;
    __real_pg_all_gather(group, send, receive, count, dtype, carries);
}

int __real_open(const char *name, int flags, ...);

/* Without a boot_id, a rank counts as a machine of its own. */
int __wrap_open(const char *name, int flags, ...)
{
    return scripted && strstr(name, "boot_id") != NULL ? -1 : __real_open(name, flags, 0666);
}

static void test_a_slow_disk_is_no_time_out(void **state)
{
    seconds_per_write = SECONDS_PER_WRITE;
    trace_start(pg);
    for (int i = 0; i < EVENTS; i++)
        timeline_add(ROW_COMPUTE, i, i + 0.5, "event %d", i);
    pg_set_measuring(pg, false);
    char what[80];
    double since, before = local_work_seconds(what, sizeof what, &since);
    trace_write(pg, path);
    const double marked = local_work_seconds(what, sizeof what, &since) - before;
    unlink(path); /* rank 0's; the others have none */
    const double slept = pg_world_size(pg) * EVENTS * 3 * SECONDS_PER_WRITE;
    if (pg_rank(pg) == 0 && marked < slept)
        fail_msg("rank 0 took %.1f s to write all events, but the other ranks hear of %.1f s only", slept, marked);
}

/* Returns what trace_write() writes, on rank 0; NULL on rank 1. */
static const char *written(void)
{
    static char text[1 << 20];
    seconds_per_write = 0;
    pg_set_measuring(pg, false);
    trace_write(pg, path);
    if (pg_rank(pg) != 0)
        return NULL;
    FILE *stream = fopen(path, "r");
    assert_true(stream != NULL && fread(text, 1, sizeof text - 1, stream) > 0 && fclose(stream) == 0);
    unlink(path);
    return text;
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

static void expect_number(const char *what, double actual, double expected)
{
    if (!(fabs(actual - expected) < 0.002)) /* the trace has three digits after the point */
        fail_msg("%s: expected %.3f, got %.3f", what, expected, actual);
}

/* Both ranks know one moment, each by its own clock. The closest limits of all barriers, and their middle. */
static void test_clocks_of_two_machines(void **state)
{
    barriers = 0;
    reads = 1;
    scripted = true;
    trace_start(pg);
    scripted = false;
    const double moment = 1000 + FAST * pg_rank(pg);
    timeline_add(ROW_COMPUTE, moment, moment + 1, "a moment");
    const char *text = written();
    if (text == NULL)
        return;
    const double error = next_number(&text, "\"error_us\":");
    const double first = (next_number(&text, "\"a moment\""), next_number(&text, "\"ts\":"));
    const double second = (next_number(&text, "\"a moment\""), next_number(&text, "\"ts\":"));
    expect_number("error of the clocks, us", error, 1e6 * (MOST - LEAST) / 2);
    expect_number("rank 1's time of the moment, less rank 0's, us", second - first, 1e6 * (MOST + LEAST) / 2);
}

/* As a gather in stage 5, which is over before the step that waits for it begins. */
static void test_a_collective_is_in_the_step_that_waits(void **state)
{
    trace_start(pg);
    timeline_set_step(5);
    timeline_add_event((TimelineEvent){.row = ROW_COMMUNICATION, .sequence = 1, .name = "waited for"});
    timeline_add_event((TimelineEvent){.row = ROW_COMMUNICATION, .sequence = 2, .name = "never waited for"});
    timeline_set_step(6);
    timeline_add_event((TimelineEvent){.row = ROW_WAITING, .sequence = 1});
    const char *text = written();
    if (text == NULL)
        return;
    expect_number("its step", (next_number(&text, "\"waited for\""), next_number(&text, "\"step\":")), 6);
    expect_number("its step", (next_number(&text, "\"never waited for\""), next_number(&text, "\"step\":")), 5);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_slow_disk_is_no_time_out),
                                       cmocka_unit_test(test_clocks_of_two_machines),
                                       cmocka_unit_test(test_a_collective_is_in_the_step_that_waits)};
    const char *parent = getenv("TMPDIR");
    snprintf(path, sizeof path, "%.150s/test_trace_%ld", parent != NULL ? parent : "/tmp", (long)getpid());
    ProcessGroupOptions options = {.algorithm = ALLREDUCE_ORDERED, .timeout = tests_timeout()};
    pg = tests_start_group(&argc, &argv, &options);
    int failures = cmocka_run_group_tests_name("trace", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
