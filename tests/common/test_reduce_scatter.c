/* test_reduce_scatter.c: reduce-scatter and all-gather, with every algorithm, many dtypes, counts and places of the
 * buffers, against a reference that each rank computes for itself. Run on 1 to 5 ranks.
 * usage: test_reduce_scatter [ALGORITHM]     default: all algorithms; with a name, only its results are tested
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/process_group.h"
#include "dtype_values.h"
#include "expect.h"
#include "mpi_main.h"

/* The longest: several staged pieces, segments of the ordered algorithm, and (of 4 bytes) segments of the ring. */
static const size_t counts[] = {0, 1, 5, 31, 32, 33, 1000, 100003};
static const DType dtypes[] = {DTYPE_F32, DTYPE_F64, DTYPE_I32, DTYPE_BF16, DTYPE_F16};
enum { COUNTS = 8, DTYPES = 5, LARGEST = 100003, GUARD = 64 /* bytes */ };

static const struct {
    const char *name;
    AllReduceAlgorithm algorithm;
    bool rank_order; /* its sum is part0 + part1 + part2 + ..., to the bit */
} algorithms[] = {
    {"mpi", ALLREDUCE_MPI, false},
    {"root", ALLREDUCE_ROOT, true},
    {"ring", ALLREDUCE_RING, false},
    {"recursive-doubling", ALLREDUCE_DOUBLING, true},
    {"ordered", ALLREDUCE_ORDERED, true},
    {"shm", ALLREDUCE_SHM, true},
};
enum { ALGORITHMS = sizeof algorithms / sizeof *algorithms };

/* Where the longer buffer (the `send` of a reduce-scatter, the `receive` of an all-gather) and `send` lie. */
typedef enum Place { PLAIN, WINDOW, WINDOW_SHIFTED, WINDOW_ON_SOME_RANKS, PLACES } Place;
static const char *const place_names[] = {"ordinary memory", "a window", "a window, elsewhere on each rank",
                                          "a window on the ranks with even numbers"};

static ProcessGroup *pg;
static const char *only; /* the name of one algorithm; NULL: all of them */
static unsigned char *window, *plain, *other; /* room for the longest buffers, guards, and a shift */

static size_t room(void)
{
    return (size_t)pg_world_size(pg) * LARGEST * sizeof(double) + 2 * GUARD + 64 * (size_t)pg_world_size(pg);
}

static bool is_wanted(int a)
{
    return only == NULL || strcmp(only, algorithms[a].name) == 0;
}

typedef struct Case {
    int a; /* algorithm */
    DType dtype;
    size_t count;
    bool in_place, integers;
    ReduceOp op;
    Place place;
} Case;

static void fail_case(const char *operation, const Case *c, size_t i, double expected, double got, const char *cause)
{
    fail_msg("%s of %zu x %s by %s on %d ranks, rank %d, %s, %s, in %s: element %zu: expected %.17g, got %.17g; usual "
             "cause: %s", operation, c->count, dtype_name(c->dtype), algorithms[c->a].name, pg_world_size(pg),
             pg_rank(pg), c->op == REDUCE_SUM ? "sum" : "max", c->in_place ? "in place" : "not in place",
             place_names[c->place], i, expected, got, cause);
}

/* ---- numbers ---- */

/* The rank's number for element i: a small integer, or of both signs and sizes from 1/16 to 16. */
static double value_of(const Case *c, int rank, size_t i)
{
    uint64_t random = (i * 8 + (uint64_t)rank + 1) * 0x9e3779b97f4a7c15u;
    random = (random ^ (random >> 29)) * 0xbf58476d1ce4e5b9u;
    random ^= random >> 32;
    if (c->integers)
        return (double)(random % 11) - 5;
    return ldexp((double)(random >> 12 & 0xffffff) / 0xffffff * 2 - 1, (int)(random % 9) - 4);
}

/* The value as an element of the dtype holds it. */
static double rounded(DType dtype, double value)
{
    unsigned char stored[sizeof value];
    store_value(stored, dtype, 0, value);
    return load_value(stored, dtype, 0);
}

/* Element i of all ranks' buffers, combined in rank order: 16-bit types as float32, and rounded at the end. */
static double combined(const Case *c, size_t i)
{
    double total = rounded(c->dtype, value_of(c, 0, i));
    for (int rank = 1; rank < pg_world_size(pg); rank++) {
        double part = rounded(c->dtype, value_of(c, rank, i));
        if (c->op == REDUCE_MAX)
            total = part > total ? part : total;
        else
            total = c->dtype == DTYPE_F64 ? total + part : (double)((float)total + (float)part);
    }
    return rounded(c->dtype, total);
}

/* ---- buffers ---- */

/* The longer buffer of a case, with guards on both sides. */
static unsigned char *buffer_of(const Case *c)
{
    bool in_window = c->place == WINDOW || c->place == WINDOW_SHIFTED ||
                     (c->place == WINDOW_ON_SOME_RANKS && pg_rank(pg) % 2 == 0);
    size_t shift = c->place == WINDOW_SHIFTED ? 64 * (size_t)pg_rank(pg) : 0;
    return (in_window ? window : plain) + GUARD + shift;
}

static void put_guards(unsigned char *buffer, size_t bytes)
{
    memset(buffer - GUARD, 0xa5, GUARD);
    memset(buffer + bytes, 0xa5, GUARD);
}

static void check_guards(const char *operation, const Case *c, const unsigned char *buffer, size_t bytes)
{
    for (size_t i = 0; i < GUARD; i++)
        if (buffer[i - GUARD] != 0xa5 || buffer[bytes + i] != 0xa5)
            fail_case(operation, c, i, 0xa5, buffer[bytes + i], "it wrote beside its buffer");
}

static void fill(const Case *c, unsigned char *buffer, int rank, size_t first, size_t count)
{
    for (size_t i = 0; i < count; i++)
        store_value(buffer, c->dtype, i, value_of(c, rank, first + i));
}

static void expect_number(const char *operation, const Case *c, const void *buffer, size_t i, double expected,
                         const char *cause)
{
    double got = load_value(buffer, c->dtype, i);
    if (memcmp(&got, &expected, sizeof got) != 0 && !(c->integers && got == expected)) /* -0 is 0 among integers */
        fail_case(operation, c, i, expected, got, cause);
}

/* ---- one case ---- */

static void check_reduce_scatter(const Case *c)
{
    size_t part = c->count * dtype_size(c->dtype), all = (size_t)pg_world_size(pg) * part;
    size_t first = (size_t)pg_rank(pg) * c->count, longer = (size_t)pg_world_size(pg) * c->count;
    unsigned char *send = buffer_of(c), *receive = c->in_place ? send + (size_t)pg_rank(pg) * part : other + GUARD;
    put_guards(other + GUARD, part);
    put_guards(send, all);
    fill(c, send, pg_rank(pg), 0, longer);
    pg_reduce_scatter(pg, send, receive, c->count, c->dtype, c->op, "parts");
    for (size_t i = 0; i < c->count; i++)
        expect_number("reduce_scatter", c, receive, i, combined(c, first + i),
                     "another rank's part, or parts that were not added in rank order");
    for (size_t i = 0; i < longer && !c->in_place; i++)
        expect_number("reduce_scatter", c, send, i, rounded(c->dtype, value_of(c, pg_rank(pg), i)),
                     "what was sent has been overwritten");
    check_guards("reduce_scatter", c, send, all);
    if (!c->in_place)
        check_guards("reduce_scatter", c, receive, part);
}

static void check_all_gather(const Case *c)
{
    size_t part = c->count * dtype_size(c->dtype), all = (size_t)pg_world_size(pg) * part;
    unsigned char *longer = c->in_place ? buffer_of(c) : other + GUARD;
    unsigned char *send = c->in_place ? longer + (size_t)pg_rank(pg) * part : buffer_of(c);
    put_guards(longer, all);
    memset(longer, 0x5a, all);
    if (!c->in_place)
        put_guards(send, part);
    fill(c, send, pg_rank(pg), 0, c->count);
    pg_all_gather(pg, send, longer, c->count, c->dtype, "parts");
    for (size_t i = 0; i < (size_t)pg_world_size(pg) * c->count; i++)
        expect_number("all_gather", c, longer, i,
                     rounded(c->dtype, value_of(c, (int)(i / c->count), i % c->count)), "parts in another order");
    check_guards("all_gather", c, longer, all);
    if (!c->in_place)
        check_guards("all_gather", c, send, part);
}

static void every_algorithm_dtype_count_and_place(void **state)
{
    (void)state;
    for (int a = 0; a < ALGORITHMS; a++) {
        pg_set_algorithm(pg, algorithms[a].algorithm);
        for (int k = 0; is_wanted(a) && k < DTYPES * COUNTS * PLACES * 2; k++) {
            Case c = {.a = a, .dtype = dtypes[k % DTYPES], .count = counts[k / DTYPES % COUNTS],
                      .place = (Place)(k / DTYPES / COUNTS % PLACES), .in_place = k / DTYPES / COUNTS / PLACES == 1};
            bool half = dtype_size(c.dtype) == 2; /* always added in rank order */
            c.integers = c.dtype == DTYPE_I32 || !(algorithms[a].rank_order || half);
            check_all_gather(&c);
            check_reduce_scatter(&c);
            c.op = REDUCE_MAX;
            if (c.count <= 1000)
                check_reduce_scatter(&c);
        }
    }
}

/* A sharded optimizer trains the same weights only if the two halves give the same bits as the whole. */
static void both_halves_are_an_all_reduce(void **state)
{
    (void)state;
    for (int k = 0; k < ALGORITHMS * DTYPES * COUNTS; k++) {
        Case c = {.a = k % ALGORITHMS, .dtype = dtypes[k / ALGORITHMS % DTYPES],
                  .count = counts[k / ALGORITHMS / DTYPES], .place = k % 2 ? WINDOW : PLAIN, .in_place = true};
        c.integers = c.dtype == DTYPE_I32;
        bool same = algorithms[c.a].rank_order && algorithms[c.a].algorithm != ALLREDUCE_DOUBLING; /* its sum is not */
        if (!is_wanted(c.a) || !(same || dtype_size(c.dtype) == 2))
            continue;
        size_t longer = (size_t)pg_world_size(pg) * c.count, part = c.count * dtype_size(c.dtype);
        unsigned char *whole = other + GUARD, *halves = buffer_of(&c), *mine = halves + (size_t)pg_rank(pg) * part;
        pg_set_algorithm(pg, algorithms[c.a].algorithm);
        fill(&c, whole, pg_rank(pg), 0, longer);
        memcpy(halves, whole, longer * dtype_size(c.dtype));
        pg_all_reduce(pg, whole, whole, longer, c.dtype, REDUCE_SUM, "whole");
        pg_reduce_scatter(pg, halves, mine, c.count, c.dtype, REDUCE_SUM, "half");
        pg_all_gather(pg, mine, halves, c.count, c.dtype, "other half");
        for (size_t i = 0; i < longer; i++)
            expect_number("reduce_scatter and all_gather", &c, halves, i, load_value(whole, c.dtype, i),
                         "added in another order than all_reduce, or rounded in between");
    }
}

/* Late ranks, and calls of different sizes one after the other: no rank may overwrite what another still reads. A rank
 * changes its `send` as soon as its call returns. */
static void late_ranks_get_the_right_parts(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 70000, 3, 2048, 100003, 600};
    enum { ROUNDS = 60, SIZES = sizeof sizes / sizeof sizes[0] };
    int N = pg_world_size(pg), rank = pg_rank(pg);
    for (int k = 0; k < ALGORITHMS * ROUNDS; k++) {
        int round = k % ROUNDS;
        size_t count = sizes[round * 5 % SIZES];
        float *longer = (float *)(void *)(round % 3 == 0 ? plain : window), *short_one = (float *)(void *)other;
        if (!is_wanted(k / ROUNDS))
            continue;
        pg_set_algorithm(pg, algorithms[k / ROUNDS].algorithm);
        for (size_t i = 0; i < (size_t)N * count; i++)
            longer[i] = (float)((rank + 1) * (round + (int)(i % 7)));
        if ((round + rank) % 3 == 0)
            sleep_seconds(300e-6);
        pg_reduce_scatter(pg, longer, short_one, count, DTYPE_F32, REDUCE_SUM, "a round");
        for (size_t i = 0; i < (size_t)N * count; i++)
            longer[i] = -1;
        for (size_t i = 0; i < count; i++)
            if (short_one[i] != (float)(N * (N + 1) / 2 * (round + (int)(((size_t)rank * count + i) % 7))))
                fail_msg("%s: reduce_scatter, round %d, element %zu of %zu is %g: it belongs to another round, or a "
                         "rank changed it while it was read", algorithms[k / ROUNDS].name, round, i, count,
                         (double)short_one[i]);
        memcpy(longer, short_one, count * sizeof *longer);
        if ((round + rank) % 3 == 1)
            sleep_seconds(300e-6);
        pg_all_gather(pg, longer, short_one, count, DTYPE_F32, "a round");
        memset(longer, 0xff, count * sizeof *longer);
        for (size_t i = 0; i < (size_t)N * count; i++)
            if (short_one[i] != (float)(N * (N + 1) / 2 * (round + (int)(i % 7))))
                fail_msg("%s: all_gather, round %d, element %zu of %zu is %g: it belongs to another round, or a rank "
                         "changed it while it was read", algorithms[k / ROUNDS].name, round, i, count,
                         (double)short_one[i]);
    }
}

int main(int argc, char **argv)
{
    job_set_program("test_reduce_scatter");
    only = argc > 1 ? argv[1] : NULL;
    pg = tests_start_group(&argc, &argv, &(ProcessGroupOptions){.algorithm = ALLREDUCE_SHM, .timeout = 120});
    window = pg_alloc_shared(pg, room());
    plain = alloc_or_fault(room());
    other = alloc_or_fault(room());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_algorithm_dtype_count_and_place),
        cmocka_unit_test(both_halves_are_an_all_reduce),
        cmocka_unit_test(late_ranks_get_the_right_parts),
    };
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    free(plain);
    free(other);
    pg_set_algorithm(pg, ALLREDUCE_SHM);
    pg_free_shared(pg, window);
    pg_destroy(pg);
    return failures != 0;
}
