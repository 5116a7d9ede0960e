/* test_allreduce.c: every all-reduce algorithm, with every dtype and many counts, against a reference that each rank
 * computes for itself. Run on 1 to 9 ranks; compiled a second time with LARGE for a buffer of many segments.
 * usage: test_allreduce [ALGORITHM]     default: all algorithms; with a name, only its sums are tested
 *
 * Bounds. A sum of N numbers takes N - 1 additions, each with a relative error of at most u (half a unit in the last
 * place), in whatever order: |error| <= gamma * (|x0| + |x1| + ...), gamma = (N-1) u / (1 - (N-1) u) (Higham, Accuracy
 * and Stability of Numerical Algorithms, section 4.2). 16-bit types are added in float32 and rounded once: that adds
 * one u of their own. Sums of small integers, and maxima, are exact. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "device/device.h"
#include "comm/allreduce.h"
#include "dtype_values.h"
#include "expect.h"
#include "mpi_main.h"

#ifdef LARGE
static const size_t counts[] = {(size_t)4 << 20};
#else
static const size_t counts[] = {0, 1, 2, 3, 7, 1000, 65537};
#endif
enum { COUNTS = sizeof counts / sizeof counts[0], DTYPES = 7, GUARD = 64 /* bytes */ };

static const DType dtypes[DTYPES] = {DTYPE_F32, DTYPE_F64, DTYPE_BF16, DTYPE_F16, DTYPE_I32, DTYPE_I64,
                                       DTYPE_INT8_BLOCK};

static const struct {
    const char *name;
    AllReduceAlgorithm algorithm;
    bool rank_order; /* its sum is part0 + part1 + part2 + ..., to the bit */
} algorithms[] = {
    {"mpi", ALLREDUCE_MPI, false},
    {"root", ALLREDUCE_ROOT, true},
    {"ring", ALLREDUCE_RING, false},
    {"recursive-doubling", ALLREDUCE_DOUBLING, false},
    {"ordered", ALLREDUCE_ORDERED, true},
    {"shm", ALLREDUCE_SHM, true},
    {"hierarchical", ALLREDUCE_HIERARCHICAL, false},
};
enum { ALGORITHMS = sizeof algorithms / sizeof *algorithms };

typedef enum Placement { IN_PLACE, OUT_OF_PLACE, IN_WINDOW, INTO_WINDOW, PLACEMENTS } Placement;
static const char *const placement_names[] = {"in place", "out of place", "in place, in pg_alloc_shared() memory",
                                              "out of place, into pg_alloc_shared() memory"};

static ProcessGroup *pg;
static const char *only; /* the name of one algorithm; NULL: all of them */
static unsigned char *window; /* pg_alloc_shared() memory for the largest count of the widest dtype, and guards */

/* A group keeps its scratch memory, so an earlier, larger request of another algorithm can hide a request that is too
 * small. An algorithm that runs alone has only what it requested, and the address sanitizer finds a write beyond it. */
static bool is_wanted(int a)
{
    return only == NULL || strcmp(only, algorithms[a].name) == 0;
}

/* Ranks per host for the hierarchical algorithm: more than one, and several hosts, where the number of ranks allows it. */
static int ranks_per_host(void)
{
    const int N = pg_world_size(pg);
    for (int L = N / 2; L > 1; L--)
        if (N % L == 0)
            return L;
    return 1;
}

static void use_hosts(void)
{
    ProcessGroupOptions options = *pg_options(pg);
    options.ranks_per_host = ranks_per_host();
    pg_set_options(pg, &options);
}

/* ---- numbers ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 32);
}

/* The rank's number for element i. Integers: small. Otherwise: of both signs, with sizes from 1/16 to 16. */
static double value_of(int rank, size_t i, bool integers)
{
    uint64_t random = mix(i * 64 + (uint64_t)rank + 1);
    if (integers)
        return (double)(random % 11) - 5;
    double fraction = (double)(random >> 12 & 0xffffff) / 0xffffff * 2 - 1;
    return ldexp(fraction, (int)(random % 9) - 4);
}

/* ---- the reference ---- */

typedef struct Problem {
    DType dtype;
    size_t count;
    ReduceOp op;
    bool integers;
    unsigned char *mine;   /* this rank's part */
    unsigned char *serial; /* all parts, combined one after the other in rank order, as one process would */
    unsigned char *by_host; /* the same, each host's parts first */
    double *exact;         /* in higher precision */
    double *bound;         /* the largest allowed |result - exact| */
} Problem;

/* total = total op part. 16-bit types: the running total is a float in a double, rounded at the end. */
static double combine_one(DType dtype, ReduceOp op, double total, double part)
{
    if (op == REDUCE_MAX)
        return part > total ? part : total;
    return dtype == DTYPE_F64 || dtype == DTYPE_I64 ? total + part : (double)((float)total + (float)part);
}

static void solve(Problem *problem, size_t i)
{
    int N = pg_world_size(pg);
    long double sum = 0, size = 0, largest = -INFINITY;
    double serial = 0, of_host = 0, by_host = 0;
    for (int rank = 0; rank < N; rank++) {
        double part = 0;
        _Alignas(8) unsigned char stored[sizeof(Int8Block)]; /* of the widest dtype */
        store_value(stored, problem->dtype, 0, value_of(rank, i, problem->integers));
        part = load_value(stored, problem->dtype, 0);
        if (rank == pg_rank(pg))
            store_value(problem->mine, problem->dtype, i, part);
        const int L = ranks_per_host();
        serial = rank == 0 ? part : combine_one(problem->dtype, problem->op, serial, part);
        of_host = rank % L == 0 ? part : combine_one(problem->dtype, problem->op, of_host, part);
        if (rank % L == L - 1)
            by_host = rank == L - 1 ? of_host : combine_one(problem->dtype, problem->op, by_host, of_host);
        sum += part;
        size += fabsl((long double)part);
        largest = part > largest ? part : largest;
    }
    store_value(problem->serial, problem->dtype, i, serial);
    store_value(problem->by_host, problem->dtype, i, by_host);
    bool exact = problem->op == REDUCE_MAX || problem->integers;
    bool half = adds_in_float32(problem->dtype);
    double u = unit_roundoff(half ? DTYPE_F32 : problem->dtype), n = N - 1;
    double bound = n * u / (1 - n * u) * (double)size;
    if (half) /* fabs(result) <= size; below the normal numbers of float16 the spacing is 2^-24 */
        bound += unit_roundoff(problem->dtype) * (double)fabsl(sum) * (1 + 1e-6) + ldexp(1, -25);
    problem->exact[i] = (double)(problem->op == REDUCE_MAX ? largest : sum);
    /* A double cannot hold a sum of doubles exactly: add half a unit for `exact` itself. */
    problem->bound[i] = exact ? 0 : bound + (problem->dtype == DTYPE_F64 ? u * (double)size : 0);
}

static Problem problem_create(DType dtype, size_t count, ReduceOp op, bool integers)
{
    Problem problem = {.dtype = dtype, .count = count, .op = op, .integers = integers};
    problem.mine = alloc_or_fault(count * dtype_size(dtype));
    problem.serial = alloc_or_fault(count * dtype_size(dtype));
    problem.by_host = alloc_or_fault(count * dtype_size(dtype));
    problem.exact = alloc_or_fault(count * sizeof(double));
    problem.bound = alloc_or_fault(count * sizeof(double));
    for (size_t i = 0; i < count; i++) {
        solve(&problem, i);
        if (!(fabs(load_value(problem.serial, dtype, i) - problem.exact[i]) <= problem.bound[i]))
            fail_msg("the bounds of this test are wrong: the serial sum of element %zu is outside of them", i);
    }
    return problem;
}

static void problem_free(Problem *problem)
{
    free(problem->mine);
    free(problem->serial);
    free(problem->by_host);
    free(problem->exact);
    free(problem->bound);
}

/* ---- comparing ---- */

static void describe(char *text, size_t size, int a, const Problem *problem, Placement placement)
{
    snprintf(text, size, "%s, %zu elements of %s, %s, %s, %d ranks", algorithms[a].name, problem->count,
             dtype_name(problem->dtype), problem->op == REDUCE_SUM ? "sum" : "max", placement_names[placement],
             pg_world_size(pg));
}

static void check_result(const Problem *problem, int a, Placement placement, const unsigned char *result)
{
    char what[160];
    describe(what, sizeof what, a, problem, placement);
    if (problem->count > 0 && memcmp(result, problem->serial, problem->count * dtype_size(problem->dtype)) == 0)
        return; /* the serial sum itself was checked: see problem_create() */
    for (size_t i = 0; i < problem->count; i++) {
        double got = load_value(result, problem->dtype, i);
        if (!(fabs(got - problem->exact[i]) <= problem->bound[i]))
            fail_msg("%s: element %zu is %.17g, expected %.17g +- %.3g; a part that was added twice or not at all is "
                     "off by %.3g; a wrong chunk border shows at the first or last element of a chunk", what, i, got,
                     problem->exact[i], problem->bound[i], load_value(problem->mine, problem->dtype, i));
    }
    /* 16 bits are always added in rank order; and a + b = b + a. */
    const bool in_order = algorithms[a].rank_order || adds_in_float32(problem->dtype) || pg_world_size(pg) <= 2;
    size_t size = dtype_size(problem->dtype);
    const bool by_host = algorithms[a].algorithm == ALLREDUCE_HIERARCHICAL && !adds_in_float32(problem->dtype);
    const unsigned char *expected = by_host ? problem->by_host : problem->serial;
    for (size_t i = 0; i < problem->count && (in_order || by_host); i++)
        if (memcmp(result + i * size, expected + i * size, size) != 0)
            fail_msg("%s: element %zu is %.17g, but the sum in rank order%s is %.17g: the parts were added in another "
                     "order, or rounded in between", what, i, load_value(result, problem->dtype, i),
                     by_host ? ", host by host," : "", load_value(expected, problem->dtype, i));
}

/* A sum within bounds may still differ between ranks, and then their weights drift apart. */
static void check_ranks_agree(const Problem *problem, int a, Placement placement, const unsigned char *result)
{
    char what[160];
    int64_t hash = (int64_t)fnv1a(FNV1A_START, result, problem->count * dtype_size(problem->dtype)), all[64];
    pg_all_gather(pg, &hash, all, 1, DTYPE_I64, "hashes");
    describe(what, sizeof what, a, problem, placement);
    for (int rank = 0; rank < pg_world_size(pg); rank++)
        if (all[rank] != hash)
            fail_msg("%s: rank %d has other bits than rank %d: do both of a pair add in the same order?", what, rank,
                     pg_rank(pg));
}

/* Runs one algorithm on a buffer that has guards on both sides. */
static void run_and_check(const Problem *problem, int a, Placement placement)
{
    size_t bytes = problem->count * dtype_size(problem->dtype);
    unsigned char *plain = alloc_or_fault(bytes + 2 * GUARD), *sent = alloc_or_fault(bytes);
    unsigned char *memory = placement == IN_WINDOW || placement == INTO_WINDOW ? window : plain;
    unsigned char *result = memory + GUARD;
    bool in_place = placement == IN_PLACE || placement == IN_WINDOW;
    memset(memory, 0xa5, bytes + 2 * GUARD);
    memcpy(in_place ? result : sent, problem->mine, bytes);
    pg_set_algorithm(pg, algorithms[a].algorithm);
    pg_all_reduce(pg, in_place ? result : sent, result, problem->count, problem->dtype, problem->op, "a buffer");
    check_result(problem, a, placement, result);
    check_ranks_agree(problem, a, placement, result);
    for (size_t i = 0; i < GUARD; i++)
        if (memory[i] != 0xa5 || memory[GUARD + bytes + i] != 0xa5)
            fail_msg("%s wrote outside its buffer of %zu %s", algorithms[a].name, problem->count,
                     dtype_name(problem->dtype));
    if (!in_place && memcmp(sent, problem->mine, bytes) != 0)
        fail_msg("%s changed the send buffer of an all-reduce that is not in place", algorithms[a].name);
    free(plain);
    free(sent);
}

/* What a large count adds, pieces and segments, does not depend on the number of ranks: up to 4 ranks show it. */
static bool is_tried(size_t count)
{
    return count <= 1000 || pg_world_size(pg) <= 4 || COUNTS == 1;
}

static void check_dtype(DType dtype, ReduceOp op, bool integers)
{
    for (int c = 0; c < COUNTS && is_tried(counts[c]); c++) {
        Problem problem = problem_create(dtype, counts[c], op, integers);
        for (int a = 0; a < ALGORITHMS; a++)
            for (int placement = 0; is_wanted(a) && placement < PLACEMENTS; placement++)
                run_and_check(&problem, a, (Placement)placement);
        problem_free(&problem);
    }
}

/* With numbers that are no integers: every dtype that can hold them. */
static void check_everything(ReduceOp op, bool integers)
{
    for (int d = 0; d < DTYPES; d++)
        if (integers || (dtypes[d] != DTYPE_I32 && dtypes[d] != DTYPE_I64))
            check_dtype(dtypes[d], op, integers);
}

static void sums_of_integers_are_exact(void **state)
{
    check_everything(REDUCE_SUM, true);
}

static void sums_are_within_bounds(void **state)
{
    check_everything(REDUCE_SUM, false);
}

static void maxima_are_exact(void **state)
{
    check_everything(REDUCE_MAX, false);
    check_dtype(DTYPE_I32, REDUCE_MAX, true);
    check_dtype(DTYPE_I64, REDUCE_MAX, true);
}

static void check_nan_and_infinity(int a, DType dtype, ReduceOp op, int who)
{
    enum { COUNT = 100 };
    _Alignas(8) unsigned char values[COUNT * sizeof(Int8Block)]; /* of the widest dtype */
    for (size_t i = 0; i < COUNT; i++)
        store_value(values, dtype, i, pg_rank(pg) != who ? 1 : i == 50 ? (double)NAN : i == 60 ? (double)INFINITY : 1);
    pg_set_algorithm(pg, algorithms[a].algorithm);
    pg_all_reduce(pg, values, values, COUNT, dtype, op, "flags");
    for (size_t i = 0; i < COUNT; i++) {
        const double got = load_value(values, dtype, i);
        if (!(i == 50 ? isnan(got) : i == 60 ? isinf(got) || (isnan(got) && dtype == DTYPE_INT8_BLOCK) : isfinite(got)))
            fail_msg("%s: rank %d had NaN in element 50 and infinity in 60; element %zu of the %s in %s is %g",
                     algorithms[a].name, who, i, op == REDUCE_SUM ? "sum" : "maximum", dtype_name(dtype), got);
    }
}

/* A gradient that overflowed on one rank must stop all ranks. A maximum could lose a NaN, because every comparison with
 * it is false. (What MPI's maximum with a NaN is, the standard leaves open.) */
static void a_nan_or_infinity_reaches_every_rank(void **state)
{
    const DType floats[] = {DTYPE_F32, DTYPE_F64, DTYPE_BF16, DTYPE_F16, DTYPE_INT8_BLOCK};
    for (int a = 0; a < ALGORITHMS; a++)
        for (int who = 0; who < pg_world_size(pg); who++)
            for (int d = 0; d < 5; d++) {
                check_nan_and_infinity(a, floats[d], REDUCE_SUM, who);
                if (algorithms[a].algorithm != ALLREDUCE_MPI)
                    check_nan_and_infinity(a, floats[d], REDUCE_MAX, who);
            }
}

/* 256 + 1 is 256 in bf16. With the running sum in float32 nothing is lost before the end. */
static void half_precision_is_added_in_float32(void **state)
{
    for (int a = 0; a < ALGORITHMS; a++) {
        uint16_t value = 0;
        int N = pg_world_size(pg);
        float part = pg_rank(pg) == 0 ? 256 : 1, sum = (float)(256 + N - 1), expected = 0;
        half_from_floats(&value, &sum, DTYPE_BF16, 1);
        half_to_floats(&expected, &value, DTYPE_BF16, 1);
        half_from_floats(&value, &part, DTYPE_BF16, 1);
        pg_set_algorithm(pg, algorithms[a].algorithm);
        pg_all_reduce(pg, &value, &value, 1, DTYPE_BF16, REDUCE_SUM, "256 + 1 + 1 + ...");
        half_to_floats(&sum, &value, DTYPE_BF16, 1);
        if (sum != expected)
            fail_msg("%s: 256 and %d ones are %g in bf16, got %g: the running sum was rounded to 16 bits",
                     algorithms[a].name, N - 1, (double)expected, (double)sum);
    }
}

/* Late ranks, and all-reduces of different sizes one after the other: no rank may overwrite what another still reads.
 * Every second all-reduce runs in the communication thread. */
static void late_ranks_get_the_right_sums(void **state)
{
    static const size_t sizes[] = {5, 70000, 3, 2048, 600000, 1, 2049, 65536};
    enum { ROUNDS = 64, SIZES = sizeof sizes / sizeof sizes[0] };
    int N = pg_world_size(pg), rank = pg_rank(pg);
    float *plain = alloc_or_fault(600000 * sizeof *plain);
    for (int a = 0; a < ALGORITHMS; a++) {
        pg_set_algorithm(pg, algorithms[a].algorithm);
        for (int round = 0; round < ROUNDS; round++) {
            size_t count = sizes[mix((uint64_t)round) % SIZES];
            float *values = round % 3 == 0 ? (float *)window : plain;
            for (size_t i = 0; i < count; i++)
                values[i] = (float)((rank + 1) * (round + (int)(i % 7)));
            if (mix((uint64_t)(round * N + rank)) % 4 == 0)
                sleep_seconds(300e-6);
            if (round % 2 == 0)
                pg_all_reduce(pg, values, values, count, DTYPE_F32, REDUCE_SUM, "a round");
            else
                work_wait(pg_all_reduce_async(pg, values, values, count, DTYPE_F32, REDUCE_SUM, "a round"));
            for (size_t i = 0; i < count; i++)
                if (values[i] != (float)(N * (N + 1) / 2 * (round + (int)(i % 7))))
                    fail_msg("%s: round %d, element %zu of %zu is %g: it belongs to another round, or a rank read it "
                             "before it was there", algorithms[a].name, round, i, count, (double)values[i]);
        }
    }
    free(plain);
}

int main(int argc, char **argv)
{
    job_set_program("test_allreduce");
    only = argc > 1 ? argv[1] : NULL;
    int a = 0;
    while (a < ALGORITHMS && !is_wanted(a))
        a++;
    CHECK(a < ALGORITHMS, "there is no algorithm %s", only);
    pg = tests_start_group(&argc, &argv, &(ProcessGroupOptions){.algorithm = ALLREDUCE_SHM, .timeout = 120});
    use_hosts();
    size_t largest = 600000;
    for (int c = 0; c < COUNTS; c++)
        largest = counts[c] > largest ? counts[c] : largest;
    window = pg_alloc_shared(pg, largest * sizeof(Int8Block) + 2 * GUARD);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_integers_are_exact),    cmocka_unit_test(sums_are_within_bounds),
        cmocka_unit_test(maxima_are_exact),
        cmocka_unit_test(a_nan_or_infinity_reaches_every_rank),
        cmocka_unit_test(half_precision_is_added_in_float32),
        cmocka_unit_test(late_ranks_get_the_right_sums),
    };
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    pg_free_shared(pg, window);
    job_close(pg);
    return failures != 0;
}
