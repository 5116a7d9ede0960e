/* test_async.c: asynchronous collectives: the communication thread, its queue, and their order among blocking
 * collectives. Run on 1 to 4 ranks, and under ThreadSanitizer. */
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "device/device.h"
#include "comm/process_group.h"
#include "expect.h"
#include "mpi_main.h"
#include "train/report/trace.h"

enum { WORKS = 40 };

static ProcessGroup *pg;

static size_t count_of(int work)
{
    return (size_t)(work * work * 7 % 1900) + (size_t)(work % 5 == 0 ? 0 : 1);
}

static float *buffer_of(int work)
{
    float *values = alloc_or_fault((count_of(work) + 1) * sizeof *values);
    for (size_t i = 0; i < count_of(work); i++)
        values[i] = (float)((int)i % 50 + work + pg_rank(pg));
    return values;
}

static void expect_sum(const float *values, int work)
{
    float ranks = (float)pg_world_size(pg);
    for (size_t i = 0; i < count_of(work); i++) {
        float expected = ranks * (float)((int)i % 50 + work) + ranks * (ranks - 1) / 2;
        if (!(values[i] == expected))
            fail_msg("work %d of %d ranks, rank %d, element %zu: expected %g, got %g; usual cause: ranks that carry "
                     "the queue out in different orders, or a wait that returned too early", work, pg_world_size(pg),
                     pg_rank(pg), i, (double)expected, (double)values[i]);
    }
}

/* Each rank sleeps at other moments, so that ranks are not in step. */
static void stumble(Rng *rng)
{
    if (rng_below(rng, 4) == 0)
        sleep_seconds(1e-3 * (double)rng_below(rng, 3));
}

static void shuffle(int *order, Rng *rng)
{
    for (int i = 0; i < WORKS; i++)
        order[i] = i;
    for (int i = WORKS - 1; i > 0; i--) {
        int k = (int)rng_below(rng, (uint64_t)i + 1), swapped = order[i];
        order[i] = order[k];
        order[k] = swapped;
    }
}

/* Every rank waits in an order of its own. */
static void test_many_works_waited_for_in_any_order(void **state)
{
    Rng rng;
    rng_seed(&rng, 7 + (uint64_t)pg_rank(pg));
    for (int round = 0; round < 5; round++) {
        float *buffers[WORKS];
        Work *works[WORKS];
        int order[WORKS];
        for (int i = 0; i < WORKS; i++) {
            buffers[i] = buffer_of(i);
            works[i] = pg_all_reduce_async(pg, buffers[i], buffers[i], count_of(i), DTYPE_F32, REDUCE_SUM, "test");
            stumble(&rng);
        }
        shuffle(order, &rng);
        for (int i = 0; i < WORKS; i++) {
            work_wait(works[order[i]]);
            expect_sum(buffers[order[i]], order[i]);
        }
        for (int i = 0; i < WORKS; i++)
            free(buffers[i]);
    }
}

/* Works complete without a call of work_test() or work_wait(): the communication thread makes progress by itself. Two
 * works, because a work is counted a moment before it is marked as done: when the second is counted, the first is
 * marked. */
static void test_progress_without_waiting(void **state)
{
    float *buffers[2] = {buffer_of(11), buffer_of(12)};
    Work *works[2];
    pg_reset_counters(pg);
    for (int i = 0; i < 2; i++)
        works[i] = pg_all_reduce_async(pg, buffers[i], buffers[i], count_of(11 + i), DTYPE_F32, REDUCE_SUM, "test");
    double deadline = now_seconds() + 20;
    while (pg_counters(pg).collectives < 2) {
        if (now_seconds() > deadline)
            fail_msg("%ld of 2 all-reduces are done after 20 s: there is no progress while the caller computes",
                     pg_counters(pg).collectives);
        sleep_seconds(1e-4);
    }
    if (!work_test(works[0]))
        fail_msg("work_test() is false although the next all-reduce in the queue is done");
    expect_sum(buffers[0], 11);
    for (int i = 0; i < 2; i++) {
        work_wait(works[i]);
        expect_sum(buffers[i], 11 + i);
        free(buffers[i]);
    }
}

/* A small sum in shared memory does not wake the communication thread. A caller that only asks for it gets it, too. */
static void test_small_sums_complete_when_asked_for(void **state)
{
    float number = 1;
    pg_set_algorithm(pg, ALLREDUCE_SHM);
    Work *work = pg_all_reduce_async(pg, &number, &number, 1, DTYPE_F32, REDUCE_SUM, "test");
    double deadline = now_seconds() + 20;
    while (!work_test(work)) {
        if (now_seconds() > deadline)
            fail_msg("a sum of one number is not done, although work_test() has asked for it for 20 s");
        sleep_seconds(1e-4);
    }
    work_wait(work);
    assert_true(number == (float)pg_world_size(pg));
    pg_set_algorithm(pg, ALLREDUCE_ORDERED);
}

/* The input of each collective is the output of the one before, blocking or not: only call order gives this result. */
static void test_blocking_ones_keep_their_place(void **state)
{
    enum { COUNT = 333, LINKS = 4 };
    Rng rng;
    rng_seed(&rng, 9 + (uint64_t)pg_rank(pg));
    float *chain[2 * LINKS + 1], expected = 1;
    Work *works[LINKS];
    for (int i = 0; i <= 2 * LINKS; i++)
        chain[i] = alloc_or_fault(COUNT * sizeof **chain);
    for (int i = 0; i < COUNT; i++)
        chain[0][i] = 1;
    for (int i = 0; i < LINKS; i++) {
        works[i] = pg_all_reduce_async(pg, chain[2 * i], chain[2 * i + 1], COUNT, DTYPE_F32, REDUCE_SUM, "link");
        stumble(&rng);
        pg_all_reduce(pg, chain[2 * i + 1], chain[2 * i + 2], COUNT, DTYPE_F32, REDUCE_SUM, "blocking");
    }
    for (int i = 1; i <= 2 * LINKS; i++) {
        expected *= (float)pg_world_size(pg);
        for (int k = 0; k < COUNT; k++)
            if (!(chain[i][k] == expected))
                fail_msg("link %d of the chain, element %d: expected %g, got %g; usual cause: a blocking collective "
                         "that overtook the communication thread", i, k, (double)expected, (double)chain[i][k]);
    }
    for (int i = 0; i < LINKS; i++)
        work_wait(works[i]);
    for (int i = 0; i <= 2 * LINKS; i++)
        free(chain[i]);
}

/* All three operations in one queue. The input of each is the output of the one before, and all are queued before the
 * first wait. Every second part of the buffer is scattered and gathered in place. */
static void check_mixed_queue(AllReduceAlgorithm algorithm, float *whole, float *apart)
{
    enum { PART = 700, LINKS = 4 };
    size_t ranks = (size_t)pg_world_size(pg), rank = (size_t)pg_rank(pg);
    Work *works[3 * LINKS];
    float expected = 1;
    Rng rng;
    rng_seed(&rng, 11 + (uint64_t)rank);
    pg_set_algorithm(pg, algorithm);
    for (size_t i = 0; i < ranks * PART; i++)
        whole[i] = (float)(i % 10);
    for (int i = 0; i < LINKS; i++) {
        float *mine = i % 2 == 0 ? whole + rank * PART : apart;
        works[3 * i] = pg_all_reduce_async(pg, whole, whole, ranks * PART, DTYPE_F32, REDUCE_SUM, "whole");
        stumble(&rng);
        works[3 * i + 1] = pg_reduce_scatter_async(pg, whole, mine, PART, DTYPE_F32, REDUCE_SUM, "half");
        stumble(&rng);
        works[3 * i + 2] = pg_all_gather_async(pg, mine, whole, PART, DTYPE_F32, "other half");
        expected *= (float)(ranks * ranks);
    }
    for (int i = 3 * LINKS - 1; i >= 0; i--)
        work_wait(works[i]);
    for (size_t i = 0; i < ranks * PART; i++)
        if (!(whole[i] == expected * (float)(i % 10)))
            fail_msg("%s, element %zu of %zu: expected %g, got %g; usual cause: a collective that overtook the one "
                     "before it, or a part at another rank's place", all_reduce_name(algorithm), i, ranks * PART,
                     (double)(expected * (float)(i % 10)), (double)whole[i]);
}

static void test_three_operations_in_one_queue(void **state)
{
    static const AllReduceAlgorithm all[] = {ALLREDUCE_MPI, ALLREDUCE_RING, ALLREDUCE_SHM, ALLREDUCE_ORDERED};
    enum { ROOM = 4096 };
    float *plain = alloc_or_fault(ROOM * sizeof *plain), *apart = alloc_or_fault(ROOM * sizeof *apart);
    pg_set_algorithm(pg, ALLREDUCE_SHM);
    float *window = pg_alloc_shared(pg, ROOM * sizeof *window);
    for (int a = 0; a < 4; a++) {
        check_mixed_queue(all[a], plain, apart);
        check_mixed_queue(all[a], window, apart);
    }
    pg_free_shared(pg, window);
    free(plain);
    free(apart);
}

/* Every asynchronous all-reduce counts once, and the queue's order is the order on the wire. */
static void test_counters_and_timeline(void **state)
{
    static const char *const names[] = {"first", "second", "third", "fourth"};
    float *buffer[4];
    Work *works[4];
    const TimelineEvent *events;
    int before = timeline_events(&events);
    pg_reset_counters(pg);
    timeline_enable();
    timeline_observe(pg);
    for (int i = 0; i < 4; i++) {
        buffer[i] = buffer_of(13);
        works[i] = pg_all_reduce_async(pg, buffer[i], buffer[i], count_of(13), DTYPE_F32, REDUCE_SUM, names[i]);
    }
    for (int i = 3; i >= 0; i--)
        work_wait(works[i]);
    assert_int_equal(pg_counters(pg).collectives, 4);
    assert_int_equal(pg_counters(pg).bytes, 4 * count_of(13) * sizeof(float));
    assert_int_equal(timeline_events(&events) - before, 8); /* the fourth is waited for first, when all are done */
    for (int i = 0; i < 4; i++) {
        char expected[56];
        snprintf(expected, sizeof expected, "all_reduce %s", names[i]);
        assert_string_equal(events[before + i].name, expected);
        const TimelineEvent *done = &events[before + i], *wait = &events[before + 7 - i];
        assert_true(done->row == ROW_COMMUNICATION && done->bytes == (int64_t)(count_of(13) * sizeof(float)));
        assert_true(done->queued > (i > 0 ? done[-1].queued : 0) && done->queued <= done->start);
        assert_true(done->sequence > 0 && done->sequence == (i > 0 ? done[-1].sequence + 1 : done->sequence));
        assert_true(wait->row == ROW_WAITING && wait->sequence == done->sequence && wait->end >= wait->start);
        assert_string_equal(done->algorithm, all_reduce_name(pg_algorithm(pg)));
    }
    for (int i = 0; i < 4; i++)
        free(buffer[i]);
}

int main(int argc, char **argv)
{
    /* ordered: lockstep's own code, so the sanitizer sees all of it */
    ProcessGroupOptions options = {.timeout = tests_timeout(), .algorithm = ALLREDUCE_ORDERED};
    pg = tests_start_group(&argc, &argv, &options);
    int failures = run_cases("asynchronous collectives", cmocka_unit_test(test_many_works_waited_for_in_any_order),
                             cmocka_unit_test(test_progress_without_waiting),
                             cmocka_unit_test(test_small_sums_complete_when_asked_for),
                             cmocka_unit_test(test_blocking_ones_keep_their_place),
                             cmocka_unit_test(test_three_operations_in_one_queue),
                             cmocka_unit_test(test_counters_and_timeline));
    job_close(pg);
    return failures != 0;
}
