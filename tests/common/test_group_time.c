/* test_group_time.c: what a process group has to do with time: barriers, the time-out, the counters, the emulated link.
 * Run on 1 to 5 ranks. */
#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "device/device.h"
#include "comm/group.h" /* to switch the emulated link between tests */
#include "expect.h"
#include "mpi_main.h"

static ProcessGroup *pg;

/* ---- barriers ---- */

/* came, left: when this rank entered the barrier and left it. No rank may leave before the last one has entered. All
 * ranks are on one host, so there is one clock. */
static void expect_all_had_come(const char *barrier, double came, double left)
{
    size_t ranks = (size_t)pg_world_size(pg);
    double *all_came = alloc_or_fault(ranks * sizeof *all_came);
    pg_all_gather(pg, &came, all_came, 1, DTYPE_F64, "when the ranks came");
    for (int rank = 0; rank < pg_world_size(pg); rank++)
        if (!(left >= all_came[rank]))
            fail_msg("rank %d left %s %g s before rank %d entered it: it does not wait for all ranks", pg_rank(pg),
                     barrier, all_came[rank] - left, rank);
    free(all_came);
}

static void test_barrier_waits_for_the_last_rank(void **state)
{
    for (int round = 0; round < 2; round++) { /* the last rank comes last, then the first one */
        sleep_seconds(0.02 * (round == 0 ? pg_rank(pg) : pg_world_size(pg) - 1 - pg_rank(pg)));
        double came = now_seconds();
        pg_barrier(pg);
        expect_all_had_come("pg_barrier()", came, now_seconds());
    }
}

/* Rank 0 does work of its own for longer than the time-out, in two parts, of which the others hear in many. The
 * watchdog would end the test if it counted this time. */
static void test_local_work_is_no_time_out(void **state)
{
    pg_set_options(pg, &(ProcessGroupOptions){.timeout = 1});
    for (int part = 0; part < 2 && pg_rank(pg) == 0; part++) {
        local_work_begin("sleeps", "for the others");
        local_work_begin("is", "nested");
        local_work_end();
        sleep_seconds(1.2);
        local_work_end();
    }
    pg_barrier(pg);
    pg_set_options(pg, &(ProcessGroupOptions){.timeout = tests_timeout()});
}

/* ---- accounting ---- */

static void test_counters(void **state)
{
    float send[64] = {0}, *receive = alloc_or_fault((size_t)(pg_world_size(pg) + 1) * sizeof send);
    int64_t ranks = pg_world_size(pg);
    pg_reset_counters(pg);
    assert_int_equal(pg_counters(pg).collectives, 0);
    pg_all_reduce(pg, send, receive, 64, DTYPE_F32, REDUCE_SUM, "test");
    pg_all_reduce(pg, send, receive, 10, DTYPE_BF16, REDUCE_SUM, "test");
    pg_all_gather(pg, send, receive, 3, DTYPE_F64, "test");
    pg_broadcast(pg, send, 5, DTYPE_I64, 0, "test");
    pg_all_reduce(pg, receive, receive, 64, DTYPE_F64, REDUCE_SUM, "test");
    CommCounters counters = pg_counters(pg);
    assert_int_equal(counters.collectives, 5);
    assert_int_equal(counters.bytes, 64 * 4 + 10 * 2 + ranks * 3 * 8 + 5 * 8 + 64 * 8);
    const int64_t summed = 2 * (ranks - 1) * 64 * 4 / ranks + 2 * (ranks - 1) * 10 * 2 / ranks +
                           2 * (ranks - 1) * 64 * 8 / ranks;
    assert_int_equal(counters.wire_bytes, summed + (ranks - 1) * 3 * 8 + (ranks > 1 ? 5 * 8 : 0));
    assert_true(counters.in_flight > 0);
    assert_true(counters.exposed >= counters.in_flight); /* all of it blocked */
    pg_set_measuring(pg, false);
    pg_all_reduce(pg, send, receive, 64, DTYPE_F32, REDUCE_SUM, "test");
    pg_set_measuring(pg, true);
    assert_int_equal(pg_counters(pg).collectives, 5);
    pg_reset_counters(pg);
    assert_int_equal(pg_counters(pg).collectives, 0);
    assert_int_equal(pg_counters(pg).bytes + pg_counters(pg).wire_bytes, 0);

    /* The two halves of an all-reduce carry what it carries. */
    pg_reduce_scatter(pg, receive, send, 7, DTYPE_I32, REDUCE_SUM, "test");
    assert_int_equal(pg_counters(pg).wire_bytes, (ranks - 1) * 7 * 4);
    pg_all_gather(pg, send, receive, 7, DTYPE_I32, "test");
    const int64_t halves = pg_counters(pg).wire_bytes;
    pg_reset_counters(pg);
    pg_all_reduce(pg, receive, receive, (size_t)ranks * 7, DTYPE_I32, REDUCE_SUM, "test");
    assert_int_equal(pg_counters(pg).wire_bytes, halves);
    pg_reset_counters(pg);
    free(receive);
}

/* A lower bound only: the emulated link may be slower than asked for, never faster. */
static void expect_at_least(const char *operation, double expected)
{
    double got = pg_counters(pg).in_flight;
    if (!(got >= expected * 0.999999))
        fail_msg("%s over the emulated link: expected at least %g s, got %g", operation, expected, got);
    pg_reset_counters(pg);
}

static void test_emulated_link(void **state)
{
    enum { COUNT = 25000 };
    double ranks = pg_world_size(pg), latency = 2e-3, seconds = COUNT * 4 / (0.1e9 / 8); /* 8 ms for 100 kB */
    size_t bytes = (size_t)pg_world_size(pg) * COUNT * sizeof(float);
    float *send = alloc_or_fault(bytes), *receive = alloc_or_fault(bytes);
    pg->options.wire_gbps = 0.1;
    pg->options.wire_latency = latency;
    pg_reset_counters(pg);
    pg_all_reduce(pg, send, receive, COUNT, DTYPE_F32, REDUCE_SUM, "test");
    expect_at_least("all_reduce", 2 * (ranks - 1) / ranks * seconds + 2 * (ranks - 1) * latency);
    pg_all_gather(pg, send, receive, COUNT, DTYPE_F32, "test");
    expect_at_least("all_gather", (ranks - 1) / ranks * ranks * seconds + (ranks - 1) * latency);
    pg_reduce_scatter(pg, send, receive, COUNT, DTYPE_F32, REDUCE_SUM, "test");
    expect_at_least("reduce_scatter", (ranks - 1) / ranks * ranks * seconds + (ranks - 1) * latency);
    pg_broadcast(pg, send, COUNT, DTYPE_F32, 0, "test");
    if (ranks > 1) /* every rank receives all of it, over one link */
        expect_at_least("broadcast", seconds + (ranks - 1) * latency);
    pg->options.wire_gbps = 0;
    free(send);
    free(receive);
}

int main(int argc, char **argv)
{
    job_set_program("test_group_time");
    pg = tests_start_group(&argc, &argv, &(ProcessGroupOptions){.timeout = tests_timeout()});
    int failures = run_cases("group time", cmocka_unit_test(test_barrier_waits_for_the_last_rank),
                             cmocka_unit_test(test_local_work_is_no_time_out), cmocka_unit_test(test_counters),
                             cmocka_unit_test(test_emulated_link));
    job_close(pg);
    return failures != 0;
}
