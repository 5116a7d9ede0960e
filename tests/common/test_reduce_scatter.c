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
#include "comm/allreduce.h"
#include "comm/process_group.h"
#include "dtype_values.h"
#include "expect.h"
#include "mpi_main.h"

/* The longest: several staged pieces, segments of the ordered algorithm, and (of 4 bytes) segments of the ring. */
static const size_t counts[] = {0, 1, 5, 31, 32, 33, 1000, 100003};
static const DType dtypes[] = {DTYPE_F32, DTYPE_F64, DTYPE_I32, DTYPE_BF16, DTYPE_F16, DTYPE_INT8_BLOCK};
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
    {"hierarchical", ALLREDUCE_HIERARCHICAL, false},
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
    return (size_t)pg_world_size(pg) * LARGEST * sizeof(Int8Block) + 2 * GUARD + 64 * (size_t)pg_world_size(pg);
}

static bool is_wanted(int a)
{
    return only == NULL || strcmp(only, algorithms[a].name) == 0;
}

/* ---- numbers ---- */

/* What the ranks send, and what must come out, of the longest count; stored in a dtype. A result of fewer elements is
 * the first ones of it. */
typedef struct Reference {
    DType dtype;
    unsigned char *sent;    /* (world_size, room): what every rank sends */
    unsigned char *reduced; /* (room): combined in rank order: 16-bit types in float32, and rounded once */
} Reference;

/* The rank's number for element i: a small integer, or of both signs and sizes from 1/16 to 16. */
static double value_of(int rank, size_t i, bool integers)
{
    uint64_t random = (i * 8 + (uint64_t)rank + 1) * 0x9e3779b97f4a7c15u;
    random = (random ^ (random >> 29)) * 0xbf58476d1ce4e5b9u;
    random ^= random >> 32;
    if (integers)
        return (double)(random % 11) - 5;
    return ldexp((double)(random >> 12 & 0xffffff) / 0xffffff * 2 - 1, (int)(random % 9) - 4);
}

static size_t longest(void)
{
    return (size_t)pg_world_size(pg) * LARGEST;
}

/* What the rank sends, from element `first` on. */
static unsigned char *sent_by(const Reference *reference, int rank, size_t first)
{
    return reference->sent + ((size_t)rank * longest() + first) * dtype_size(reference->dtype);
}

static Reference reference_create(DType dtype, ReduceOp op, bool integers)
{
    Reference reference = {.dtype = dtype};
    reference.sent = alloc_or_fault((size_t)pg_world_size(pg) * longest() * dtype_size(dtype));
    reference.reduced = alloc_or_fault(longest() * dtype_size(dtype));
    for (size_t i = 0; i < longest(); i++) {
        double total = 0;
        for (int rank = 0; rank < pg_world_size(pg); rank++) {
            store_value(sent_by(&reference, rank, i), dtype, 0, value_of(rank, i, integers));
            double part = load_value(sent_by(&reference, rank, i), dtype, 0);
            if (rank == 0 || op == REDUCE_MAX)
                total = rank == 0 || part > total ? part : total;
            else
                total = dtype == DTYPE_F64 ? total + part : (double)((float)total + (float)part);
        }
        store_value(reference.reduced, dtype, i, total);
    }
    return reference;
}

static void reference_free(Reference *reference)
{
    free(reference->sent);
    free(reference->reduced);
}

/* ---- one case ---- */

typedef struct Case {
    const char *operation;
    const Reference *reference;
    int a; /* algorithm */
    size_t count;
    bool in_place;
    ReduceOp op;
    Place place;
} Case;

/* The buffer (of `bytes` bytes, with guards on both sides) at the place that the case wants. */
static unsigned char *buffer_of(const Case *c, size_t bytes)
{
    bool in_window = c->place == WINDOW || c->place == WINDOW_SHIFTED ||
                     (c->place == WINDOW_ON_SOME_RANKS && pg_rank(pg) % 2 == 0);
    size_t shift = c->place == WINDOW_SHIFTED ? 64 * (size_t)pg_rank(pg) : 0;
    unsigned char *buffer = (in_window ? window : plain) + GUARD + shift;
    memset(buffer - GUARD, 0xa5, bytes + 2 * GUARD);
    return buffer;
}

/* Another buffer, which overlaps with none of these. */
static unsigned char *other_buffer(size_t bytes)
{
    memset(other, 0xa5, bytes + 2 * GUARD);
    return other + GUARD;
}

static void expect_guards(const Case *c, const unsigned char *buffer, size_t bytes)
{
    for (size_t i = 0; i < GUARD; i++)
        if (buffer[i - GUARD] != 0xa5 || buffer[bytes + i] != 0xa5)
            fail_msg("%s of %zu x %s by %s wrote beside its buffer", c->operation, c->count,
                     dtype_name(c->reference->dtype), algorithms[c->a].name);
}

static void expect_elements(const Case *c, const void *got, const void *expected, size_t count, const char *cause)
{
    DType dtype = c->reference->dtype;
    size_t size = dtype_size(dtype), i = 0;
    if (count == 0 || memcmp(got, expected, count * size) == 0)
        return;
    while (memcmp((const char *)got + i * size, (const char *)expected + i * size, size) == 0)
        i++;
    fail_msg("%s of %zu x %s by %s on %d ranks, rank %d, %s, %s, in %s: element %zu: expected %.17g, got %.17g; usual "
             "cause: %s", c->operation, c->count, dtype_name(dtype), algorithms[c->a].name, pg_world_size(pg),
             pg_rank(pg), c->op == REDUCE_SUM ? "sum" : "max", c->in_place ? "in place" : "not in place",
             place_names[c->place], i, load_value(expected, dtype, i), load_value(got, dtype, i), cause);
}

static void check_reduce_scatter(Case c)
{
    size_t size = dtype_size(c.reference->dtype), part = c.count * size, all = (size_t)pg_world_size(pg) * part;
    unsigned char *send = buffer_of(&c, all), *mine = sent_by(c.reference, pg_rank(pg), 0);
    unsigned char *receive = c.in_place ? send + (size_t)pg_rank(pg) * part : other_buffer(part);
    c.operation = "reduce_scatter";
    memcpy(send, mine, all);
    pg_reduce_scatter(pg, send, receive, c.count, c.reference->dtype, c.op, "parts");
    expect_elements(&c, receive, c.reference->reduced + (size_t)pg_rank(pg) * part, c.count,
                    "another rank's part, one that its rank has changed already, or parts not added in rank order");
    expect_guards(&c, send, all);
    if (c.in_place)
        return;
    expect_guards(&c, receive, part);
    expect_elements(&c, send, mine, (size_t)pg_world_size(pg) * c.count, "what was sent has been overwritten");
}

static void check_all_gather(Case c)
{
    size_t part = c.count * dtype_size(c.reference->dtype), all = (size_t)pg_world_size(pg) * part;
    unsigned char *receive = c.in_place ? buffer_of(&c, all) : other_buffer(all);
    unsigned char *send = c.in_place ? receive + (size_t)pg_rank(pg) * part : buffer_of(&c, part);
    c.operation = "all_gather";
    memcpy(send, sent_by(c.reference, pg_rank(pg), 0), part);
    pg_all_gather(pg, send, receive, c.count, c.reference->dtype, "parts");
    for (int rank = 0; rank < pg_world_size(pg); rank++)
        expect_elements(&c, receive + (size_t)rank * part, sent_by(c.reference, rank, 0), c.count,
                        "parts in another order, or one that its rank has changed already");
    expect_guards(&c, receive, all);
    if (c.in_place)
        return;
    expect_guards(&c, send, part);
    expect_elements(&c, send, sent_by(c.reference, pg_rank(pg), 0), c.count, "what was sent has been overwritten");
}

/* The numbers are integers, or (if not) only algorithms that add in rank order are checked: to the bit. */
static void check_dtype(DType dtype, ReduceOp op, bool integers)
{
    Reference reference = reference_create(dtype, op, integers);
    bool half = dtype_size(dtype) == 2; /* always added in rank order */
    for (int a = 0; a < ALGORITHMS; a++) {
        pg_set_algorithm(pg, algorithms[a].algorithm);
        if (!is_wanted(a) || !(integers || half || algorithms[a].rank_order))
            continue;
        for (int k = 0; k < COUNTS * PLACES * 2; k++) {
            Case c = {.reference = &reference, .a = a, .count = counts[k % COUNTS], .op = op,
                      .place = (Place)(k / COUNTS % PLACES), .in_place = k / COUNTS / PLACES == 1};
            check_reduce_scatter(c);
            check_all_gather(c);
        }
    }
    reference_free(&reference);
}

static void test_integers(void **state)
{
    for (int d = 0; d < DTYPES; d++)
        check_dtype(dtypes[d], REDUCE_SUM, true);
    check_dtype(DTYPE_F32, REDUCE_MAX, true);
    check_dtype(DTYPE_BF16, REDUCE_MAX, true);
}

static void test_sums_in_rank_order(void **state)
{
    for (int d = 0; d < DTYPES; d++)
        if (dtypes[d] != DTYPE_I32)
            check_dtype(dtypes[d], REDUCE_SUM, false);
}

/* A sharded optimizer trains the same weights only if the two halves give the same bits as the whole. */
static void test_both_halves_are_an_all_reduce(void **state)
{
    for (int k = 0; k < ALGORITHMS * DTYPES * COUNTS; k++) {
        int a = k % ALGORITHMS;
        DType dtype = dtypes[k / ALGORITHMS % DTYPES];
        const Reference numbers = {.dtype = dtype};
        Case c = {"reduce_scatter and all_gather", .reference = &numbers, .a = a, .in_place = true,
                  .count = counts[k / ALGORITHMS / DTYPES], .place = k % 2 == 0 ? PLAIN : WINDOW};
        const bool same_order = all_reduce_in_rank_order(algorithms[a].algorithm, dtype) ||
                                algorithms[a].algorithm == ALLREDUCE_HIERARCHICAL;
        if (!is_wanted(a) || !same_order)
            continue;
        size_t all = (size_t)pg_world_size(pg) * c.count, part = c.count * dtype_size(dtype);
        unsigned char *whole = other_buffer(all * dtype_size(dtype)), *halves = buffer_of(&c, all * dtype_size(dtype));
        unsigned char *mine = halves + (size_t)pg_rank(pg) * part;
        for (size_t i = 0; i < all; i++)
            store_value(whole, dtype, i, value_of(pg_rank(pg), i, dtype == DTYPE_I32));
        memcpy(halves, whole, all * dtype_size(dtype));
        pg_set_algorithm(pg, algorithms[a].algorithm);
        pg_all_reduce(pg, whole, whole, all, dtype, REDUCE_SUM, "whole");
        pg_reduce_scatter(pg, halves, mine, c.count, dtype, REDUCE_SUM, "half");
        pg_all_gather(pg, mine, halves, c.count, dtype, "other half");
        expect_elements(&c, halves, whole, all, "added in another order than all_reduce, or rounded in between");
    }
}

/* A rank that adds late: the others have returned by then, if nothing holds them. */
static bool adds_late;

void __real_combine_parts(void *const *totals, int total_count, const void *const *parts, int part_count, size_t count,
                          DType dtype, ReduceOp op);
void __wrap_combine_parts(void *const *totals, int total_count, const void *const *parts, int part_count, size_t count,
                          DType dtype, ReduceOp op);
void __wrap_combine_parts(void *const *totals, int total_count, const void *const *parts, int part_count, size_t count,
                          DType dtype, ReduceOp op)
{
    if (adds_late)
        sleep_seconds(300e-6);
    __real_combine_parts(totals, total_count, parts, part_count, count, dtype, op);
}

/* Late ranks, and calls of different sizes one after the other: no rank may overwrite what another still reads. A rank
 * changes its `send` as soon as its call returns. */
static void test_late_ranks_get_the_right_parts(void **state)
{
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
        adds_late = (round + rank) % 3 == 1;
        pg_reduce_scatter(pg, longer, short_one, count, DTYPE_F32, REDUCE_SUM, "a round");
        adds_late = false;
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
    ProcessGroupOptions options = *pg_options(pg);
    options.ranks_per_host = pg_world_size(pg) % 2 == 0 && pg_world_size(pg) > 2 ? 2 : 1;
    pg_set_options(pg, &options);
    window = pg_alloc_shared(pg, room());
    plain = alloc_or_fault(room());
    other = alloc_or_fault(room());
    int failures = run_cases("tests", cmocka_unit_test(test_integers), cmocka_unit_test(test_sums_in_rank_order),
                             cmocka_unit_test(test_both_halves_are_an_all_reduce),
                             cmocka_unit_test(test_late_ranks_get_the_right_parts));
    free(plain);
    free(other);
    pg_set_algorithm(pg, ALLREDUCE_SHM);
    pg_free_shared(pg, window);
    job_close(pg);
    return failures != 0;
}
