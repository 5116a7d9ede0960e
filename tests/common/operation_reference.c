/* operation_reference.c: results against the row's reference in float64, and gradients against its numerical
 * derivative. See operation_check.h.
 *
 * Each rounding between an input and a result has an error of up to U of the numbers that are added there, which are
 * about as large as the largest result. Most errors cancel, so a bound of all roundings is generous; the error of a
 * wrong formula, a forgotten term or a wrong index is far larger. */
#include "operation_check.h"

enum { PROBES = 40 }; /* elements whose derivative is computed, of large arrays */

static double roundings_of(const Case *c)
{
    return c->operation->roundings != NULL ? c->operation->roundings(c) : 2;
}

static double bound_of(const Case *c, double largest)
{
    return (2 * roundings_of(c) * U + c->operation->units * unit_of(c->precision)) * largest;
}

/* Number i of array k before the operation, as it sees it. */
static double exactly(const Case *c, int k, int64_t i)
{
    const double x = (double)c->array[k].start[i];
    return c->array[k].kind == ARRAY_ROUNDED ? nearest_in(c->precision, x) : x;
}

static void expect_outputs(const Case *c, const Results *results, double *const *exact)
{
    for (int k = 0; k < c->arrays; k++) {
        const CheckedArray *array = &c->array[k];
        if (results->array[k] == NULL || (array->kind != ARRAY_OUTPUT && array->kind != ARRAY_IN_PLACE))
            continue;
        double *bound = room_for_doubles(array->count), largest = 0;
        for (int64_t i = 0; i < array->count; i++)
            largest = fabs(exact[k][i]) > largest ? fabs(exact[k][i]) : largest;
        for (int64_t i = 0; i < array->count; i++)
            bound[i] = roundings_of(c) == 0 ? 0 : bound_of(c, largest);
        expect_within(case_label(c, "", array->name), results->array[k], exact[k], bound, array->count,
                      c->operation->hint);
    }
}

static const double nudge = 1e-4; /* the difference is wrong by about nudge^2, and by 1e-16 / nudge through rounding */

/* `out` for inputs that are a little larger, and a little smaller. */
typedef struct Nudged {
    double *up, *down;
} Nudged;

/* n elements of array k are nudged at once. The reference writes all of `out`. */
static void nudge_both_ways(const Case *c, double **a, int k, int64_t first, int64_t n, Nudged nudged)
{
    for (int way = 0; way < 2; way++) {
        for (int64_t i = first; i < first + n; i++)
            a[k][i] = exactly(c, k, i) + (way == 0 ? nudge : -nudge);
        c->operation->reference(c, a);
        memcpy(way == 0 ? nudged.up : nudged.down, a[c->out], (size_t)c->array[c->out].count * sizeof(double));
    }
    for (int64_t i = first; i < first + n; i++)
        a[k][i] = exactly(c, k, i);
}

/* The derivative of the sum of direction * out, over n elements of out; and the sum of its terms' sizes. */
static double slope(const Case *c, const Nudged *nudged, int64_t first, int64_t n, double *size)
{
    double sum = 0;
    *size = 0;
    for (int64_t j = first; j < first + n; j++) {
        double direction = (double)c->direction[j];
        if (c->array[0].kind == ARRAY_ROUNDED)
            direction = nearest_in(c->precision, direction);
        const double term = direction * (nudged->up[j] - nudged->down[j]) / (2 * nudge);
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

/* The elements of array k to look at: all, or the first, the last, and some between. */
static int64_t *probes_of(const Case *c, int k, int64_t *count)
{
    const int64_t n = c->array[k].count;
    *count = n < PROBES || c->operation->element_wise ? n : PROBES;
    int64_t *probes = (int64_t *)room_for_doubles(*count);
    for (int64_t i = 0; i < *count; i++)
        probes[i] = *count == n || i < PROBES / 4 ? i : i < PROBES / 2 ? n - 1 - (i - PROBES / 4)
                                                      : *indices_below((int32_t)n, 1);
    return probes;
}

static void expect_gradient(const Case *c, const float *gradient, double **a, int k, int uses)
{
    int64_t count, all = c->array[c->out].count;
    const int64_t *probes = probes_of(c, k, &count);
    double *expected = room_for_doubles(count), *bound = room_for_doubles(count), *size = room_for_doubles(count);
    double largest = 0;
    float *got = room_for_floats(count);
    const bool together = c->operation->element_wise && count > 0;
    const Nudged nudged = {room_for_doubles(all), room_for_doubles(all)};
    if (together)
        nudge_both_ways(c, a, k, 0, count, nudged);
    for (int64_t i = 0; i < count; i++) {
        if (!together)
            nudge_both_ways(c, a, k, probes[i], 1, nudged);
        expected[i] = uses * slope(c, &nudged, together ? i : 0, together ? 1 : all, &size[i]);
        got[i] = gradient[probes[i]];
        largest = fabs(expected[i]) > largest ? fabs(expected[i]) : largest;
    }
    for (int64_t i = 0; i < count; i++)
        bound[i] = bound_of(c, largest > size[i] ? largest : size[i]) + 1e-9;
    expect_within(case_label(c, "gradient of ", c->array[k].name), got, expected, bound, count, c->operation->hint);
}

void expect_reference(const Case *c, const Results *results, int uses)
{
    double *a[CHECKED_ARRAYS];
    for (int k = 0; k < c->arrays; k++) {
        a[k] = room_for_doubles(c->array[k].count);
        for (int64_t i = 0; i < c->array[k].count && c->array[k].kind != ARRAY_INDICES; i++)
            a[k][i] = exactly(c, k, i);
    }
    c->operation->reference(c, a);
    expect_outputs(c, results, a);
    for (int k = 0; k < c->arrays; k++)
        if (results->gradient[k] != NULL)
            expect_gradient(c, results->gradient[k], a, k, uses);
}
