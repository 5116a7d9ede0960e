/* trial.c: see trial.h. */
#include "trial.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "arrays.h"
#include "base/check.h"
#include "collectives.h"

enum { UNWRITTEN = 0xA5, DIGIT_BITS = 7, DIGIT = 127 };

static const struct {
    const char *name;
    CollectiveFunction *function;
} collectives[] = {
    [BROADCAST] = {"broadcast", broadcast},
    [REDUCE_SCATTER] = {"ring_reduce_scatter", ring_reduce_scatter},
    [ALL_GATHER] = {"ring_all_gather", ring_all_gather},
    [RING] = {"ring_all_reduce", ring_all_reduce},
    [HALVING] = {"halving_doubling_all_reduce", halving_doubling_all_reduce},
};

/* ---- values ---- */

/* Drawn when the program starts: so no file knows what another rank begins with. */
static uint64_t salt;

/* A number from 0 to limit - 1 for this element of this rank. */
static unsigned drawn(int rank, size_t i, unsigned limit)
{
    uint64_t bits = (salt + i * MOST_RANKS + (size_t)rank + 1) * 0x9E3779B97F4A7C15ull;
    return (unsigned)(((bits ^ bits >> 29) * 0xBF58476D1CE4E5B9ull >> 33) % limit);
}

/* The rank's digit is 1 to 31: three times that still fits. */
static int64_t digit(int rank, size_t i)
{
    return (int64_t)(1 + drawn(rank, i, 31)) << DIGIT_BITS * rank;
}

static int64_t sum_of_digits(const Trial *trial, size_t i)
{
    int64_t sum = 0;
    for (int rank = 0; rank < trial->ranks; rank++)
        sum += digit(rank, i);
    return sum;
}

static int chunk_of(const Trial *trial, size_t i)
{
    int chunk = 0;
    while (chunk_start(trial->count, trial->ranks, chunk + 1) <= i)
        chunk++;
    return chunk;
}

static bool has_nan(const Trial *trial, int rank, size_t i)
{
    const bool can_be = trial->dtype == DTYPE_F32 || trial->dtype == DTYPE_F64;
    return can_be && rank == trial->root && i == trial->count / 2;
}

static float fraction(int rank, size_t i)
{
    return ldexpf((float)drawn(rank, i, 1 << 20) + 1, (int)drawn(rank, i + 77, 20) - 20);
}

/* Sums of NUMBERS are exact in their own type, and in no other. */
static long double number(const Trial *trial, int rank, size_t i)
{
    static const long double units[] = {[DTYPE_F32] = 1, [DTYPE_F64] = 1 + 0x1p-30L, [DTYPE_BF16] = 1,
                                        [DTYPE_I32] = 0x1p12L + 1, [DTYPE_I64] = 0x1p45L + 1};
    if (has_nan(trial, rank, i))
        return NAN;
    if (trial->op == REDUCE_MAX && i % 4 == 1) /* which of two zeros is the larger one depends on their order */
        return drawn(rank, i, 2) == 0 ? 0.0L : -0.0L;
    return ((long double)drawn(rank, i, 1000) - 500) * units[trial->dtype];
}

static void put(void *array, size_t i, DType dtype, long double value)
{
    if (dtype == DTYPE_F32)
        ((float *)array)[i] = (float)value;
    else if (dtype == DTYPE_F64)
        ((double *)array)[i] = (double)value;
    else if (dtype == DTYPE_BF16) /* it is copied only: any 16 bits */
        ((int16_t *)array)[i] = (int16_t)value;
    else if (dtype == DTYPE_I32)
        ((int32_t *)array)[i] = (int32_t)value;
    else
        ((int64_t *)array)[i] = (int64_t)value;
}

static long double get(const void *array, size_t i, DType dtype)
{
    switch (dtype) {
    case DTYPE_F32: return (long double)((const float *)array)[i];
    case DTYPE_F64: return (long double)((const double *)array)[i];
    case DTYPE_BF16: return (long double)((const int16_t *)array)[i];
    case DTYPE_I32: return (long double)((const int32_t *)array)[i];
    default: return (long double)((const int64_t *)array)[i];
    }
}

static void fill(const Trial *trial, int rank, void *array)
{
    for (size_t i = 0; i < trial->count; i++)
        if (trial->values == DIGITS)
            ((int64_t *)array)[i] = digit(rank, i);
        else if (trial->values == FRACTIONS)
            ((float *)array)[i] = fraction(rank, i);
        else
            put(array, i, trial->dtype, number(trial, rank, i));
}

/* ---- arrays ---- */

void trial_run(Trial *trial, Outcome *outcome)
{
    const DType dtypes[] = {[DIGITS] = DTYPE_I64, [FRACTIONS] = DTYPE_F32, [NUMBERS] = trial->dtype};
    static const Operation operations[] = {OP_BROADCAST, OP_ALL_REDUCE, OP_REDUCE_SCATTER, OP_ALL_GATHER};
    Collective c[MOST_RANKS], before[MOST_RANKS];
    char what[160];
    const Place place = trial->kind == BROADCAST ? IN_PLACE : trial->place;
    CHECK(trial->values != DIGITS || trial->ranks <= MOST_DIGITS, "%d ranks have too many digits", trial->ranks);
    CHECK(salt != 0 || getrandom(&salt, sizeof salt, 0) == (ssize_t)sizeof salt, "getrandom() failed");
    const Operation any_operation = operations[drawn(0, trial->count, 4)]; /* neither counts */
    const size_t any_stride = drawn(1, trial->count, 5000);
    *outcome = (Outcome){.dtype = dtypes[trial->values]};
    size_t bytes = trial->count * dtype_size(outcome->dtype);
    for (int rank = 0; rank < trial->ranks; rank++) {
        outcome->receive[rank] = array_new(rank, RECEIVE, bytes);
        memset(outcome->receive[rank], UNWRITTEN, bytes);
        const bool in_place = place == IN_PLACE || (place == SOME_IN_PLACE && rank % 2 == 0);
        outcome->send[rank] = in_place ? outcome->receive[rank] : array_new(rank, SEND, bytes);
        fill(trial, rank, outcome->send[rank]);
        c[rank] = (Collective){.operation = any_operation, .send = outcome->send[rank],
                               .receive = outcome->receive[rank], .count = trial->count, .stride = any_stride,
                               .dtype = outcome->dtype, .op = trial->op, .root = trial->root, .carries = "numbers"};
    }
    int length = snprintf(what, sizeof what, "%s on %d ranks, %zu elements%s%s", collectives[trial->kind].name,
                          trial->ranks, trial->count, trial->values == NUMBERS ? " of " : "",
                          trial->values == NUMBERS ? dtype_name(trial->dtype) : "");
    if (trial->kind == BROADCAST)
        length += snprintf(what + length, sizeof what - (size_t)length, ", root %d", trial->root);
    else if (place != APART)
        length += snprintf(what + length, sizeof what - (size_t)length, ", in place%s",
                           place == IN_PLACE ? "" : " on every second rank");
    if (trial->op == REDUCE_MAX)
        snprintf(what + length, sizeof what - (size_t)length, ", maximum");
    memcpy(before, c, sizeof before);
    mailboxes_run(trial->ranks, &trial->rules, what, collectives[trial->kind].function, c, outcome->traffic);
    if (memcmp(before, c, (size_t)trial->ranks * sizeof *c) != 0)
        mailboxes_fail("the Collective is const, and a caller may use it again: change a copy",
                       "a rank has changed the Collective that it was given");
    for (int rank = 0; rank < trial->ranks; rank++) {
        array_expect_guards(rank, RECEIVE);
        if (outcome->send[rank] != outcome->receive[rank])
            array_expect_guards(rank, SEND);
    }
}

/* ---- what is right ---- */

/* What element i must be if chunk `chunk` has it. */
static int64_t expected(const Trial *trial, int chunk, size_t i)
{
    switch (trial->kind) {
    case BROADCAST: return digit(trial->root, i);
    case ALL_GATHER: return digit(chunk, i);
    case REDUCE_SCATTER:
    case RING:
    case HALVING: break;
    }
    return sum_of_digits(trial, i);
}

/* Adds to text what is wrong with a sum, if whole parts are missing or too many; false if it is something else. */
static bool name_parts(const Trial *trial, size_t i, int64_t actual, char *text, size_t size)
{
    int length = 0;
    for (int rank = 0; rank < MOST_DIGITS; rank++) {
        int one = rank < trial->ranks ? (int)(digit(rank, i) >> DIGIT_BITS * rank) : 0;
        int found = (int)(actual >> DIGIT_BITS * rank & DIGIT);
        if (one == found)
            continue;
        if (one == 0 || found % one != 0)
            return false;
        if (found == 0)
            length += snprintf(text + length, size - (size_t)length, "%srank %d's part is missing",
                               length > 0 ? ", " : "", rank);
        else
            length += snprintf(text + length, size - (size_t)length, "%srank %d's part is in it %d times",
                               length > 0 ? ", " : "", rank, found / one);
    }
    return length > 0;
}

static _Noreturn void fail_value(const Trial *trial, int rank, int chunk, size_t i, int64_t actual)
{
    char where[120], parts[400];
    int64_t unwritten;
    memset(&unwritten, UNWRITTEN, sizeof unwritten);
    snprintf(where, sizeof where, "rank %d, element %zu (chunk %d of %d)", rank, i, chunk, trial->ranks);
    if (actual == unwritten)
        mailboxes_fail("a chunk is left out, or is not waited for", "%s was never written", where);
    bool sum = trial->kind != BROADCAST && trial->kind != ALL_GATHER;
    if (sum && name_parts(trial, i, actual, parts, sizeof parts))
        mailboxes_fail("a part is not added, or twice, or sent on before it is added", "%s: %s", where, parts);
    for (int other = 0; other < trial->ranks && !sum; other++)
        if (actual == digit(other, i))
            mailboxes_fail("a wrong number of a rank, or the step is left out",
                           "%s is what rank %d began with, expected rank %d's", where, other,
                           trial->kind == BROADCAST ? trial->root : chunk);
    for (size_t j = 0; j < trial->count; j++)
        if (actual == expected(trial, chunk, j))
            mailboxes_fail("a wrong start of a chunk", "%s is what belongs at element %zu", where, j);
    const int64_t want = expected(trial, chunk, i);
    const bool near = sum && actual - want < DIGIT && want - actual < DIGIT;
    mailboxes_fail(near ? "numbers are added in a type that rounds: use combine()" : "a wrong start or count of a chunk",
                   "%s is %#llx, expected %#llx (%d bits for each rank)", where, (unsigned long long)actual,
                   (unsigned long long)want, DIGIT_BITS);
}

void expect_values(const Trial *trial, const Outcome *outcome)
{
    for (int rank = 0; rank < trial->ranks; rank++) {
        const int64_t *receive = (const int64_t *)outcome->receive[rank];
        for (int chunk = 0; chunk < trial->ranks; chunk++) {
            size_t end = chunk_start(trial->count, trial->ranks, chunk + 1);
            for (size_t i = chunk_start(trial->count, trial->ranks, chunk); i < end; i++)
                if ((trial->kind != REDUCE_SCATTER || chunk == rank) && receive[i] != expected(trial, chunk, i))
                    fail_value(trial, rank, chunk, i, receive[i]);
        }
    }
}

static void expect_bits_of_rank_0(const Trial *trial, const Outcome *outcome, size_t i)
{
    const size_t size = dtype_size(outcome->dtype);
    const unsigned char *first = outcome->receive[0] + i * size;
    for (int rank = 1; rank < trial->ranks; rank++) {
        const unsigned char *other = outcome->receive[rank] + i * size;
        if (memcmp(other, first, size) != 0)
            mailboxes_fail("two ranks combine the same parts in another order; combine each element on one rank, and "
                           "send the result", "element %zu has other bits on rank %d than on rank 0: %.9Lg and %.9Lg", i,
                           rank, get(other, 0, outcome->dtype), get(first, 0, outcome->dtype));
    }
}

void expect_same_bits(const Trial *trial, const Outcome *outcome)
{
    const float *first = (const float *)outcome->receive[0];
    for (size_t i = 0; i < trial->count; i++) {
        double sum = 0;
        for (int rank = 0; rank < trial->ranks; rank++)
            sum += (double)fraction(rank, i);
        if (!(fabs((double)first[i] - sum) <= 1e-5 * sum))
            mailboxes_fail(NULL, "rank 0, element %zu is %.9g, expected %.9g", i, (double)first[i], sum);
        expect_bits_of_rank_0(trial, outcome, i);
    }
}

/* The rank whose element is the result; NO_RANK: all ranks' elements are combined. */
static int origin(const Trial *trial, size_t i)
{
    return trial->kind == BROADCAST ? trial->root : trial->kind == ALL_GATHER ? chunk_of(trial, i) : NO_RANK;
}

static void expect_number(const Trial *trial, int rank, size_t i, long double actual)
{
    const char *op = trial->op == REDUCE_MAX ? "maximum" : "sum";
    const int from = origin(trial, i);
    long double sum = 0, largest = -INFINITY;
    bool nan_is_due = false;
    for (int other = 0; other < trial->ranks; other++) {
        const long double part = number(trial, other, i);
        if (from != NO_RANK && other != from)
            continue;
        sum += part;
        largest = part > largest ? part : largest;
        nan_is_due = nan_is_due || has_nan(trial, other, i);
    }
    if (nan_is_due && !isnan(actual))
        mailboxes_fail("a comparison with NaN is false, and fmaxf() drops a NaN: use combine()",
                       "rank %d's element %zu is a NaN, and on rank %d the %s is %Lg", trial->root, i, rank, op,
                       actual);
    const long double want = trial->op == REDUCE_MAX ? largest : sum;
    if (!nan_is_due && !(actual == want))
        mailboxes_fail(trial->op == REDUCE_MAX && actual == sum ? "the parts are added, whatever c->op says" :
                       from != NO_RANK ? "elements are copied as if they had other sizes: dtype_size() says how many" :
                       "elements are added or compared as if they were of another type: combine() looks at c->dtype",
                       "rank %d, element %zu is %.20Lg, expected the %s %.20Lg", rank, i, actual,
                       from != NO_RANK ? "number" : op, want);
}

void expect_numbers(const Trial *trial, const Outcome *outcome)
{
    for (int rank = 0; rank < trial->ranks; rank++)
        for (size_t i = 0; i < trial->count; i++)
            if (trial->kind != REDUCE_SCATTER || chunk_of(trial, i) == rank)
                expect_number(trial, rank, i, get(outcome->receive[rank], i, trial->dtype));
    for (size_t i = 0; i < trial->count && trial->kind >= RING; i++)
        expect_bits_of_rank_0(trial, outcome, i);
}

/* Of each element, N - 1 messages bring what the ranks have to one of them, and N - 1 bring the sum to the others. */
void expect_sent(const Trial *trial, const Outcome *outcome)
{
    const size_t least = (trial->kind >= RING ? 2 : 1) * (size_t)(trial->ranks - 1) * trial->count;
    size_t sent = 0;
    for (int rank = 0; rank < trial->ranks; rank++)
        sent += (size_t)outcome->traffic[rank].elements;
    if (sent < least)
        mailboxes_fail("a step is left out; or a rank looks into another one's memory, instead of getting a message",
                       "all ranks together send %zu elements, and their results need %zu", sent, least);
}
