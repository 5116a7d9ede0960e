/* test_process_group.c: broadcasts with every dtype, many counts and every root; and sums that are special: -0, pairs, a
 * long one. Run on 1 to 5 ranks. (All-reduces: test_allreduce.c. Reduce-scatters and all-gathers: test_reduce_scatter.c.
 * The asynchronous ones: test_async.c. Barriers: test_group_time.c.) */
#include <stdlib.h>

#include "base/check.h"
#include "comm/messages.h" /* to switch the algorithm between tests */
#include "dtype_values.h"
#include "expect.h"
#include "mpi_main.h"
#include "base/dtype.h"
#include "train/guard/guard.h"

static ProcessGroup *pg;

static const DType dtypes[] = {DTYPE_F32, DTYPE_F64, DTYPE_BF16, DTYPE_F16, DTYPE_I32, DTYPE_I64};
static const size_t counts[] = {0, 1, 2, 3, 7, 1000, 65537};
enum { DTYPES = 6, COUNTS = 7, GUARD = 16 /* elements after the buffer, which must not change */ };

/* ---- broadcast ---- */

/* The rank's element i: a small integer, which every dtype holds. */
static double value_of(int rank, size_t i)
{
    return (double)((i * 7 + (size_t)rank * 5 + i / 13) % 11) - 5;
}

static void check_broadcast(DType dtype, size_t count, int root)
{
    unsigned char *buffer = alloc_or_fault((count + GUARD) * dtype_size(dtype));
    for (size_t i = 0; i < count + GUARD; i++)
        store_value(buffer, dtype, i, i < count ? value_of(pg_rank(pg), i) : 77);
    pg_broadcast(pg, buffer, count, dtype, root, "test");
    for (size_t i = 0; i < count + GUARD; i++) {
        const double got = load_value(buffer, dtype, i), expected = i < count ? value_of(root, i) : 77;
        if (!(got == expected))
            fail_msg("broadcast of %zu elements of %s from rank %d to rank %d of %d: element %zu: expected %g, got %g; "
                     "usual cause: another root, or a count in bytes where elements are meant", count,
                     dtype_name(dtype), root, pg_rank(pg), pg_world_size(pg), i, expected, got);
    }
    free(buffer);
}

static void test_broadcast(void **state)
{
    for (int d = 0; d < DTYPES; d++)
        for (int k = 0; k < COUNTS; k++)
            for (int root = 0; root < pg_world_size(pg); root++)
                check_broadcast(dtypes[d], counts[k], root);
}

/* ---- sums ---- */

/* -0 + nothing is -0: a sum that starts from 0 instead of from rank 0's part would lose the sign. */
static void test_ordered_keeps_minus_zero(void **state)
{
    const float sent[4] = {-0.0f, -0.0f, -0.0f, -0.0f}, expected[4] = {-0.0f, -0.0f, -0.0f, -0.0f};
    float got[4];
    pg->options.algorithm = ALLREDUCE_ORDERED;
    pg_all_reduce(pg, sent, got, 4, DTYPE_F32, REDUCE_SUM, "test");
    pg->options.algorithm = ALLREDUCE_MPI;
    expect_bits_equal("sum of -0", got, expected, 4, "the sum started from 0, not from rank 0's part");
}

/* Ranks that are neighbours swap first, so with a power of two of ranks no rank waits for another one's sum to come
 * back. The sum of -2^26, 2^26, 1 and 0 shows it: (-2^26 + 2^26) + (1 + 0) is 1, but 1 - 2^26 is -2^26 in float32. */
static void test_doubling_begins_with_pairs(void **state)
{
    static const float parts[] = {-0x1p26f, 0x1p26f, 1, 0};
    float part = parts[pg_rank(pg) % 4];
    if (pg_world_size(pg) % 4 != 0)
        return;
    pg_set_algorithm(pg, ALLREDUCE_DOUBLING);
    pg_all_reduce(pg, &part, &part, 1, DTYPE_F32, REDUCE_SUM, "pairs");
    pg_set_algorithm(pg, ALLREDUCE_MPI);
    if (part != (float)(pg_world_size(pg) / 4))
        fail_msg("recursive doubling on %d ranks: (-2^26 + 2^26) + (1 + 0) is %g: are the pairs others, although all "
                 "ranks could take part?", pg_world_size(pg), (double)part);
}

/* MPI's own all-reduce gets a long buffer in pieces of 16 MiB. Here are one and a half, in place and not. */
static void test_long_sum_in_pieces(void **state)
{
    const size_t count = (size_t)6 << 20;
    float *send = alloc_or_fault(count * sizeof *send), *receive = alloc_or_fault(count * sizeof *receive);
    int N = pg_world_size(pg), rank = pg_rank(pg);
    for (size_t i = 0; i < count; i++)
        send[i] = (float)(rank + (int)(i % 1021)); /* a prime: no two pieces begin alike */
    pg_all_reduce(pg, send, receive, count, DTYPE_F32, REDUCE_SUM, "long");
    pg_all_reduce(pg, send, send, count, DTYPE_F32, REDUCE_SUM, "long");
    for (size_t i = 0; i < count; i++) {
        float expected = (float)(N * (N - 1) / 2 + N * (int)(i % 1021));
        if (!(send[i] == expected) || !(receive[i] == expected))
            fail_msg("element %zu of %zu is %g in place and %g out of place, expected %g: does each piece begin where the "
                     "one before it ends?", i, count, (double)send[i], (double)receive[i], (double)expected);
    }
    free(send);
    free(receive);
}

/* ---- errors ---- */

/* An error is a fault of this program, with its own message, not the end in the middle of MPI. */
static void test_mpi_returns_errors(void **state)
{
    int number = 0;
    MPI_Comm comm = pg->comm;
    assert_int_not_equal(MPI_Send(&number, 1, MPI_INT, pg_world_size(pg), 0, comm), MPI_SUCCESS);
}

int main(int argc, char **argv)
{
    job_set_program("test_process_group");
    pg = tests_start_group(&argc, &argv, &(ProcessGroupOptions){.timeout = tests_timeout()});
    int failures = run_cases("process group", cmocka_unit_test(test_broadcast),
                             cmocka_unit_test(test_ordered_keeps_minus_zero),
                             cmocka_unit_test(test_doubling_begins_with_pairs),
                             cmocka_unit_test(test_long_sum_in_pieces), cmocka_unit_test(test_mpi_returns_errors));
    job_close(pg);
    return failures != 0;
}
