/* test_fresh.c: the data that benchmarks sum. What the ranks wrote, added up, is right; what goes wrong with sums is
 * seen; and no rank leaves a meeting before all have come. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "fresh.h"
#include "expect.h"

enum { COUNT = 1000, RANKS = 5 };

/* What the ranks from..to-1 wrote for a call, added up. */
static void add_up(float *sum, size_t count, int from, int to, unsigned call)
{
    float part[COUNT];
    memset(sum, 0, count * sizeof *sum);
    for (int rank = from; rank < to; rank++) {
        fresh_write(part, count, rank, call);
        for (size_t i = 0; i < count; i++)
            sum[i] += part[i];
    }
}

static void test_right_sums(void **state)
{
    float sum[COUNT];
    for (unsigned call = 0; call < 40; call++) {
        add_up(sum, COUNT, 0, RANKS, call);
        assert_int_equal(fresh_wrong(sum, 0, COUNT, 0, RANKS, call), 0);
        assert_int_equal(fresh_wrong(sum + 333, 333, 400, 0, RANKS, call), 0); /* a part of it */
        add_up(sum, COUNT, 3, 4, call);
        assert_int_equal(fresh_wrong(sum, 0, COUNT, 3, 4, call), 0); /* what one rank sent */
    }
    for (size_t count = 0; count < 300; count++) {
        memset(sum, 0xff, sizeof sum);
        fresh_write(sum, count, 2, 1);
        assert_int_equal(fresh_wrong(sum, 0, COUNT, 2, 3, 1), COUNT - count); /* no more than count was written */
    }
}

static void test_wrong_sums(void **state)
{
    float sum[COUNT];
    add_up(sum, COUNT, 0, RANKS, 7);
    sum[COUNT / 2] += 1;
    assert_int_equal(fresh_wrong(sum, 0, COUNT, 0, RANKS, 7), 1);
    sum[COUNT / 2] = 0.0f / 0.0f;
    assert_int_equal(fresh_wrong(sum, 0, COUNT, 0, RANKS, 7), 1);
    add_up(sum, COUNT, 0, RANKS, 7);
    assert_int_equal(fresh_wrong(sum, 0, COUNT, 0, RANKS, 8), COUNT);     /* the call before */
    assert_int_equal(fresh_wrong(sum, 128, COUNT, 0, RANKS, 7), COUNT);   /* at another place */
    assert_int_equal(fresh_wrong(sum, 0, COUNT, 0, RANKS - 1, 7), COUNT); /* a rank too many */
    assert_int_equal(fresh_wrong(sum, 0, COUNT, 1, RANKS, 7), COUNT);
}

/* ---- meetings ---- */

enum { MEETINGS = 2000 };
static char *arrivals;
static atomic_int came, early;

static void *attend(void *rank)
{
    for (int meeting = 1; meeting <= MEETINGS; meeting++) {
        atomic_fetch_add(&came, 1);
        fresh_meet(arrivals, (int)(size_t)rank, RANKS);
        if (atomic_load(&came) < meeting * RANKS)
            atomic_fetch_add(&early, 1);
    }
    return NULL;
}

static void test_meetings(void **state)
{
    pthread_t threads[RANKS];
    arrivals = aligned_alloc(FRESH_ARRIVAL, RANKS * FRESH_ARRIVAL);
    assert_non_null(arrivals);
    memset(arrivals, 0, RANKS * FRESH_ARRIVAL);
    for (size_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(pthread_create(&threads[rank], NULL, attend, (void *)rank), 0);
    for (int rank = 0; rank < RANKS; rank++)
        pthread_join(threads[rank], NULL);
    assert_int_equal(atomic_load(&came), MEETINGS * RANKS);
    assert_int_equal(atomic_load(&early), 0);
    free(arrivals);
}

int main(void)
{
    return run_cases("fresh", cmocka_unit_test(test_right_sums), cmocka_unit_test(test_wrong_sums),
                     cmocka_unit_test(test_meetings));
}
