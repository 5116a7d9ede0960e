/* test_process_group.c: every blocking collective, with every dtype and many counts, against what one process
 * computes. Run on 1 to 5 ranks. (The asynchronous ones: test_async.c. Barriers: test_group_time.c.) */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "device/device.h"
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

static bool is_half(DType dtype)
{
    return dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

/* ---- buffers ---- */

/* The rank's element i: a small integer, so that every dtype holds the sums exactly, in any order. */
static double value_of(int rank, size_t i)
{
    return (double)((i * 7 + (size_t)rank * 5 + i / 13) % 11) - 5;
}

static const double guard_value = 77;

/* count elements, value_of(rank, first + i), and guards behind them. */
static void *make_buffer(DType dtype, size_t count, int rank, size_t first)
{
    void *buffer = alloc_or_fault((count + GUARD) * dtype_size(dtype));
    for (size_t i = 0; i < count; i++)
        store_value(buffer, dtype, i, value_of(rank, first + i));
    for (size_t i = count; i < count + GUARD; i++)
        store_value(buffer, dtype, i, guard_value);
    return buffer;
}

/* A receive buffer, filled with numbers that the collective must overwrite. */
static void *make_empty(DType dtype, size_t count)
{
    void *buffer = make_buffer(dtype, count, 0, 0);
    for (size_t i = 0; i < count; i++)
        store_value(buffer, dtype, i, 99);
    return buffer;
}

typedef struct Case {
    const char *operation;
    DType dtype;
    size_t count;
} Case;

static void expect_element(Case c, const void *buffer, size_t i, double expected, const char *cause)
{
    double got = load_value(buffer, c.dtype, i);
    if (!(got == expected))
        fail_msg("%s of %zu elements of %s on %d ranks, rank %d: element %zu: expected %g, got %g; usual cause: %s",
                 c.operation, c.count, dtype_name(c.dtype), pg_world_size(pg), pg_rank(pg), i, expected, got, cause);
}

static void expect_guards(Case c, const void *buffer, size_t count)
{
    for (size_t i = count; i < count + GUARD; i++)
        expect_element(c, buffer, i, guard_value, "a count in bytes where elements are meant, or a chunk too long");
}

/* ---- broadcast, all_gather, reduce_scatter ---- */

static void check_broadcast(DType dtype, size_t count, int root)
{
    Case c = {"broadcast", dtype, count};
    void *buffer = make_buffer(dtype, count, pg_rank(pg), 0);
    pg_broadcast(pg, buffer, count, dtype, root, "test");
    for (size_t i = 0; i < count; i++)
        expect_element(c, buffer, i, value_of(root, i), "broadcast from another rank, or not at all");
    expect_guards(c, buffer, count);
    free(buffer);
}

static void check_all_gather(DType dtype, size_t count)
{
    Case c = {"all_gather", dtype, count};
    size_t ranks = (size_t)pg_world_size(pg);
    void *send = make_buffer(dtype, count, pg_rank(pg), 0), *receive = make_empty(dtype, ranks * count);
    pg_all_gather(pg, send, receive, count, dtype, "test");
    for (size_t rank = 0; rank < ranks; rank++)
        for (size_t i = 0; i < count; i++)
            expect_element(c, receive, rank * count + i, value_of((int)rank, i), "parts that are not in rank order");
    expect_guards(c, receive, ranks * count);
    free(send);
    free(receive);
}

static double reduced(size_t i, ReduceOp op)
{
    double result = value_of(0, i);
    for (int rank = 1; rank < pg_world_size(pg); rank++)
        result = op == REDUCE_SUM ? result + value_of(rank, i) : fmax(result, value_of(rank, i));
    return result;
}

static void check_reduce_scatter(DType dtype, size_t count, ReduceOp op)
{
    Case c = {"reduce_scatter", dtype, count};
    size_t ranks = (size_t)pg_world_size(pg), first = (size_t)pg_rank(pg) * count;
    void *send = make_buffer(dtype, ranks * count, pg_rank(pg), 0), *receive = make_empty(dtype, count);
    pg_reduce_scatter(pg, send, receive, count, dtype, op, "test");
    for (size_t i = 0; i < count; i++)
        expect_element(c, receive, i, reduced(first + i, op), "another rank's part");
    expect_guards(c, receive, count);
    free(send);
    free(receive);
}

static void test_broadcast_gather_scatter(void **state)
{
    (void)state;
    for (int d = 0; d < DTYPES; d++) {
        for (int k = 0; k < COUNTS; k++) {
            for (int root = 0; root < pg_world_size(pg); root++)
                check_broadcast(dtypes[d], counts[k], root);
            check_all_gather(dtypes[d], counts[k]);
            for (int op = REDUCE_SUM; op <= REDUCE_MAX && !is_half(dtypes[d]); op++)
                check_reduce_scatter(dtypes[d], counts[k], (ReduceOp)op);
        }
    }
}

/* ---- all_reduce ---- */

static void check_all_reduce(DType dtype, size_t count, ReduceOp op, bool in_place)
{
    Case c = {op == REDUCE_SUM ? (in_place ? "all_reduce (sum, in place)" : "all_reduce (sum)")
                               : (in_place ? "all_reduce (max, in place)" : "all_reduce (max)"), dtype, count};
    void *send = make_buffer(dtype, count, pg_rank(pg), 0), *receive = in_place ? send : make_empty(dtype, count);
    pg_all_reduce(pg, send, receive, count, dtype, op, "test");
    for (size_t i = 0; i < count; i++)
        expect_element(c, receive, i, reduced(i, op), "a rank left out or counted twice, or chunks of unequal borders");
    expect_guards(c, receive, count);
    for (size_t i = 0; i < count && !in_place; i++)
        expect_element(c, send, i, value_of(pg_rank(pg), i), "what was sent has been overwritten");
    free(send);
    if (!in_place)
        free(receive);
}

static void test_all_reduce(void **state)
{
    (void)state;
    for (int ordered = 0; ordered <= 1; ordered++) {
        pg->options.algorithm = ordered ? ALLREDUCE_ORDERED : ALLREDUCE_MPI;
        for (int d = 0; d < DTYPES; d++)
            for (int k = 0; k < COUNTS; k++)
                for (int variant = 0; variant < 4; variant++)
                    check_all_reduce(dtypes[d], counts[k], variant & 1 ? REDUCE_MAX : REDUCE_SUM, variant & 2);
    }
    pg->options.algorithm = ALLREDUCE_MPI;
}

/* ---- the order of the sum ---- */

enum { SUMMANDS = 4099 };

/* Of very different sizes and both signs, so that each order of adding rounds differently. The same on every rank. */
static float *summands_of(int rank)
{
    float *values = alloc_or_fault(SUMMANDS * sizeof *values);
    Rng rng;
    rng_seed(&rng, 100 + (uint64_t)rank);
    for (int i = 0; i < SUMMANDS; i++)
        values[i] = ldexpf(rng_normal(&rng), (int)rng_below(&rng, 12));
    return values;
}

/* ((v0 + v1) + v2) + ..., or from the last rank down. */
static void serial_sum(float *sum, bool from_the_last)
{
    int ranks = pg_world_size(pg);
    for (int k = 0; k < ranks; k++) {
        float *part = summands_of(from_the_last ? ranks - 1 - k : k);
        for (int i = 0; i < SUMMANDS; i++)
            sum[i] = k == 0 ? part[i] : sum[i] + part[i];
        free(part);
    }
}

static void test_ordered_adds_in_rank_order(void **state)
{
    (void)state;
    float *mine = summands_of(pg_rank(pg)), *got = alloc_or_fault(SUMMANDS * sizeof *got);
    float *expected = alloc_or_fault(SUMMANDS * sizeof *expected), *other = alloc_or_fault(SUMMANDS * sizeof *other);
    serial_sum(expected, false);
    serial_sum(other, true);
    if (pg_world_size(pg) > 2) /* otherwise this test would prove nothing */
        assert_memory_not_equal(expected, other, SUMMANDS * sizeof *expected);
    pg->options.algorithm = ALLREDUCE_ORDERED;
    pg_all_reduce(pg, mine, got, SUMMANDS, DTYPE_F32, REDUCE_SUM, "test");
    expect_bits_equal("the ordered sum", got, expected, SUMMANDS,
                      "not added in rank order, or from 0 instead of rank 0");

    /* The same elements in pieces, from other addresses: the result must not depend on where a chunk begins. */
    memset(got, 0, SUMMANDS * sizeof *got);
    for (size_t start = 0, length = 1; start < SUMMANDS; start += length, length = length * 3 + 1) {
        if (start + length > SUMMANDS)
            length = SUMMANDS - start;
        pg_all_reduce(pg, mine + start, got + start, length, DTYPE_F32, REDUCE_SUM, "test");
    }
    expect_bits_equal("the ordered sum in pieces", got, expected, SUMMANDS, "the result depends on the message size");
    pg->options.algorithm = ALLREDUCE_MPI;
    if (pg_world_size(pg) == 2) {
        pg_all_reduce(pg, mine, got, SUMMANDS, DTYPE_F32, REDUCE_SUM, "test");
        expect_bits_equal("MPI's sum on 2 ranks", got, expected, SUMMANDS,
                          "a + b = b + a, so it must be the same bits");
    }
    free(mine);
    free(got);
    free(expected);
    free(other);
}

/* -0 + nothing is -0: a sum that starts from 0 instead of from rank 0's part would lose the sign. */
static void test_ordered_keeps_minus_zero(void **state)
{
    (void)state;
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
    (void)state;
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

/* 16-bit parts are added in float32 and rounded once, whatever the algorithm. */
static void check_half_sum(DType dtype)
{
    float *sum = alloc_or_fault(SUMMANDS * sizeof *sum), *twice = alloc_or_fault(SUMMANDS * sizeof *twice);
    float *got = alloc_or_fault(SUMMANDS * sizeof *got), *part;
    uint16_t *mine = alloc_or_fault(SUMMANDS * sizeof *mine);
    for (int rank = 0; rank < pg_world_size(pg); rank++) {
        part = summands_of(rank);
        device_round(part, part, dtype, SUMMANDS);
        for (int i = 0; i < SUMMANDS; i++) {
            sum[i] = rank == 0 ? part[i] : sum[i] + part[i];
            twice[i] = rank == 0 ? part[i] : twice[i] + part[i];
        }
        device_round(twice, twice, dtype, SUMMANDS); /* what adding in 16 bits would give */
        if (rank == pg_rank(pg))
            half_from_floats(mine, part, dtype, SUMMANDS);
        free(part);
    }
    device_round(sum, sum, dtype, SUMMANDS);
    if (pg_world_size(pg) > 2)
        assert_memory_not_equal(sum, twice, SUMMANDS * sizeof *sum);
    pg_all_reduce(pg, mine, mine, SUMMANDS, dtype, REDUCE_SUM, "test");
    half_to_floats(got, mine, dtype, SUMMANDS);
    expect_bits_equal(dtype_name(dtype), got, sum, SUMMANDS,
                      "rounded after every addition instead of once, at the end");
    free(sum);
    free(twice);
    free(got);
    free(mine);
}

static void test_half_sums_round_once(void **state)
{
    (void)state;
    for (int ordered = 0; ordered <= 1; ordered++) {
        pg->options.algorithm = ordered ? ALLREDUCE_ORDERED : ALLREDUCE_MPI;
        check_half_sum(DTYPE_BF16);
        check_half_sum(DTYPE_F16);
    }
    pg->options.algorithm = ALLREDUCE_MPI;
}

/* A NaN on one rank must reach all ranks. A maximum could lose it, because every comparison with NaN is false. */
static void test_maximum_keeps_nan(void **state)
{
    (void)state;
    const DType floats[] = {DTYPE_F32, DTYPE_F64, DTYPE_BF16, DTYPE_F16};
    enum { COUNT = 50 };
    pg->options.algorithm = ALLREDUCE_ORDERED;
    for (int d = 0; d < 4; d++) {
        for (int culprit = 0; culprit < pg_world_size(pg); culprit++) {
            void *buffer = make_buffer(floats[d], COUNT, pg_rank(pg), 0);
            for (size_t i = 0; i < COUNT && pg_rank(pg) == culprit; i += 7)
                store_value(buffer, floats[d], i, (double)NAN);
            pg_all_reduce(pg, buffer, buffer, COUNT, floats[d], REDUCE_MAX, "test");
            for (size_t i = 0; i < COUNT; i++) {
                double got = load_value(buffer, floats[d], i);
                if (i % 7 == 0 && !isnan(got))
                    fail_msg("maximum of %s: rank %d's NaN at element %zu became %g", dtype_name(floats[d]), culprit,
                             i, got);
                if (i % 7 != 0)
                    expect_element((Case){"all_reduce (max)", floats[d], COUNT}, buffer, i, reduced(i, REDUCE_MAX), "");
            }
            free(buffer);
        }
    }
    pg->options.algorithm = ALLREDUCE_MPI;
}

/* MPI's own all-reduce gets a long buffer in pieces of 16 MiB. Here are one and a half, in place and not. */
static void test_long_sum_in_pieces(void **state)
{
    (void)state;
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
    (void)state;
    int number = 0;
    MPI_Comm comm = pg->comm;
    assert_int_not_equal(MPI_Send(&number, 1, MPI_INT, pg_world_size(pg), 0, comm), MPI_SUCCESS);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broadcast_gather_scatter),
        cmocka_unit_test(test_all_reduce),
        cmocka_unit_test(test_ordered_adds_in_rank_order),
        cmocka_unit_test(test_ordered_keeps_minus_zero),
        cmocka_unit_test(test_doubling_begins_with_pairs),
        cmocka_unit_test(test_half_sums_round_once),
        cmocka_unit_test(test_maximum_keeps_nan),
        cmocka_unit_test(test_long_sum_in_pieces),
        cmocka_unit_test(test_mpi_returns_errors),
    };
    job_set_program("test_process_group");
    pg = tests_start_group(&argc, &argv, &(ProcessGroupOptions){.timeout = tests_timeout()});
    int failures = cmocka_run_group_tests_name("process group", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
