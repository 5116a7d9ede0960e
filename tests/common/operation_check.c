/* operation_check.c: draws cases, runs kernels on guarded memory, and compares runs. See operation_check.h. */
#include "operation_check.h"

#include <stdio.h>

#include "base/check.h"

enum { GUARD = 64, DRAWS = 10, WHOLE = (1 << CHECKED_ARRAYS) - 1 };

/* ---- cases ---- */

bool is_differentiable(const CheckedArray *array)
{
    return array->kind == ARRAY_INPUT || array->kind == ARRAY_ROUNDED;
}

const char *case_label(const Case *c, const char *what, const char *name)
{
    static char text[240];
    int used = snprintf(text, sizeof text, "%s, shape %lld", c->operation->name, (long long)c->dim[0]);
    for (int i = 1; i < CHECKED_DIMS && c->operation->largest[i] > 0; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, " x %lld", (long long)c->dim[i]);
    if (c->operation->has_precisions)
        used += snprintf(text + used, sizeof text - (size_t)used, ", %s", dtype_name(c->precision));
    snprintf(text + used, sizeof text - (size_t)used, ", seed %lld: %s%s", (long long)c->seed, what, name);
    return text;
}

float *add_array(Case *c, const char *name, ArrayKind kind, int64_t rows, int64_t columns, int64_t depth)
{
    CHECK(c->arrays < CHECKED_ARRAYS, "%s: too many arrays", c->operation->name);
    CheckedArray *array = &c->array[c->arrays];
    *array = (CheckedArray){.name = name, .kind = kind, .shape = {rows, columns, depth}, .count = 1};
    while (array->ndim < 3 && array->shape[array->ndim] >= 0)
        array->count *= array->shape[array->ndim++];
    const Operation *operation = c->operation;
    if (kind == ARRAY_OUTPUT || kind == ARRAY_WORK) {
        array->start = room_for_floats(array->count);
        for (int64_t i = 0; i < array->count; i++)
            array->start[i] = NAN;
    } else {
        array->start = c->arrays == 0 ? normals_around(operation->offset, operation->scale, array->count)
                                      : normals(array->count);
    }
    if (is_differentiable(array))
        c->sums[c->arrays] = normals(array->count);
    if (kind == ARRAY_OUTPUT && c->direction == NULL) {
        c->out = c->arrays;
        c->direction = normals(array->count);
    }
    c->arrays++;
    return array->start;
}

/* Less than a vector register, a warp, a tile; one more; several. */
static const int32_t sizes[] = {1,  2,  3,  4,  5,  7,  8,  15,  16,  17,   31,
                                32, 33, 40, 63, 64, 65, 129, 257, 1025, 5003, 70001};

static void draw_shape(Case *c, int draw)
{
    const Operation *operation = c->operation;
    for (int k = 0; k < CHECKED_DIMS && operation->largest[k] > 0; k++) {
        int first = 0, end = 0;
        while (sizes[first] < operation->smallest)
            first++;
        while (end < (int)(sizeof sizes / sizeof *sizes) && sizes[end] <= operation->largest[k])
            end++;
        const bool empty = draw == k && !(operation->never_empty >> k & 1);
        c->dim[k] = empty ? 0 : sizes[first + *indices_below(end - first, 1)];
    }
}

/* ---- one run of the kernels ---- */

/* Device memory for one array, between guards. */
typedef struct Placed {
    float *memory, *values, *image; /* image: of all memory before, on the host */
    int64_t room, first, count;
} Placed;

static Placed place(const float *start, int64_t count, int shift)
{
    static int calls = 0; /* no two guards are equal: what a kernel makes of one guard must not be another */
    calls = (calls + 1) % 1000;
    Placed placed = {.room = count + 2 * GUARD + shift, .first = GUARD + shift, .count = count};
    placed.image = room_for_floats(placed.room);
    for (int64_t i = 0; i < placed.room; i++)
        placed.image[i] = (float)(1000 + calls);
    for (int64_t i = 0; i < count; i++)
        placed.image[placed.first + i] = NAN;
    if (start != NULL && count > 0)
        memcpy(placed.image + placed.first, start, (size_t)count * sizeof *start);
    placed.memory = device_copy_of(placed.image, (size_t)placed.room * sizeof *start);
    placed.values = placed.memory + placed.first;
    return placed;
}

/* Frees the memory, and returns what the array holds now. */
static float *take(const Case *c, Placed *placed, const char *name, bool writable)
{
    float *now = room_for_floats(placed->room);
    device_to_host(now, placed->memory, (size_t)placed->room * sizeof *now);
    device_free(placed->memory);
    for (int64_t i = 0; i < placed->room; i++) {
        const bool inside = i >= placed->first && i < placed->first + placed->count;
        if ((!inside || !writable) && memcmp(&now[i], &placed->image[i], sizeof *now) != 0)
            fail_msg("%s was written at [%lld], which is %s", case_label(c, "", name), (long long)(i - placed->first),
                     inside ? "an input" : "outside of it");
    }
    return now + placed->first;
}

static bool is_writable(const CheckedArray *array)
{
    return array->kind == ARRAY_OUTPUT || array->kind == ARRAY_IN_PLACE || array->kind == ARRAY_WORK;
}

/* needs, adds: bit k: of array k. shift: numbers by which addresses move. stored: the gradients' format. */
static Results run_kernels(const Case *c, unsigned needs, unsigned adds, int shift, DType stored)
{
    Results results = {0};
    Placed placed[CHECKED_ARRAYS], gradient[CHECKED_ARRAYS];
    void *a[CHECKED_ARRAYS] = {NULL};
    Gradient d[CHECKED_ARRAYS] = {{0}};
    for (int k = 0; k < c->arrays; k++) {
        placed[k] = place(c->array[k].start, c->array[k].count, shift);
        a[k] = placed[k].values;
        gradient[k] = place(adds >> k & 1 ? c->sums[k] : NULL, c->array[k].count, shift);
        const bool needed = is_differentiable(&c->array[k]) && needs >> k & 1;
        d[k] = (Gradient){needed ? gradient[k].values : NULL, adds >> k & 1, stored};
    }
    c->operation->forward(c, a);
    if (c->operation->backward != NULL) {
        Placed dout = place(c->direction, c->array[c->out].count, shift);
        c->operation->backward(c, a, d, dout.values);
        take(c, &dout, "the output's gradient", false);
    }
    for (int k = 0; k < c->arrays; k++) {
        if (stored != DTYPE_F32 && d[k].values != NULL) {
            float *numbers = device_alloc((size_t)c->array[k].count * sizeof *numbers);
            numbers_of(numbers, d[k].values, stored, c->array[k].count);
            device_copy(d[k].values, numbers, (size_t)c->array[k].count * sizeof *numbers);
            device_free(numbers);
        }
        results.array[k] = take(c, &placed[k], c->array[k].name, is_writable(&c->array[k]));
        float *now = take(c, &gradient[k], "a gradient", true);
        results.gradient[k] = c->operation->backward != NULL && d[k].values != NULL ? now : NULL;
    }
    return results;
}

/* ---- comparisons of runs ---- */

static void expect_same(const Case *c, const char *what, const char *name, const float *got, const float *expected,
                        int64_t count, const char *hint)
{
    if (count > 0)
        expect_bits_equal(case_label(c, what, name), got, expected, count, hint);
}

static void expect_same_results(const Case *c, const Results *got, const Results *expected, const char *hint)
{
    for (int k = 0; k < c->arrays; k++) {
        const CheckedArray *array = &c->array[k];
        if (got->array[k] != NULL && (array->kind == ARRAY_OUTPUT || array->kind == ARRAY_IN_PLACE))
            expect_same(c, "", array->name, got->array[k], expected->array[k], array->count, hint);
        if (got->gradient[k] != NULL)
            expect_same(c, "gradient of ", array->name, got->gradient[k], expected->gradient[k], array->count, hint);
    }
}

/* Each gradient must be what lay there, plus the first contribution. The tolerance covers another order of the sum. */
static void expect_sums(const Case *c, const Results *sums, const Results *first)
{
    const double roundings = c->operation->roundings != NULL ? c->operation->roundings(c) : 2;
    for (int k = 0; k < c->arrays; k++) {
        const int64_t n = sums->gradient[k] != NULL ? c->array[k].count : 0;
        double *expected = room_for_doubles(n), *bound = room_for_doubles(n), largest = 0;
        for (int64_t i = 0; i < n; i++) {
            const double size = fabs((double)first->gradient[k][i]) + fabs((double)c->sums[k][i]);
            largest = size > largest ? size : largest;
            expected[i] = (double)c->sums[k][i] + (double)first->gradient[k][i];
        }
        for (int64_t i = 0; i < n; i++)
            bound[i] = 2 * roundings * U * largest;
        expect_within(case_label(c, "added to the gradient of ", c->array[k].name), sums->gradient[k], expected, bound,
                      n, "the first contribution is set (=), later ones are added (+=)");
    }
}

static void check_needs(const Case *c, unsigned all, const Results *first, const Results *sums)
{
    for (unsigned needs = 0; needs < all; needs++) {
        if ((needs & ~all) != 0)
            continue;
        const unsigned adds = 5 * needs;
        Results expected = *first;
        for (int k = 0; k < c->arrays; k++)
            expected.gradient[k] = adds >> k & 1 ? sums->gradient[k] : first->gradient[k];
        const Results some = run_kernels(c, needs, adds, 0, DTYPE_F32);
        expect_same_results(c, &some, &expected, "an input that needs no gradient must not change the others'");
    }
}

/* A GPU may store a gradient as the operand of the next product: it is the one in float32, rounded. */
static void check_16_bits(const Case *c, const Results *first)
{
    if (!c->operation->stores_16_bits || c->precision == DTYPE_F32 || device_kind() != DEVICE_CUDA)
        return;
    const Results stored = run_kernels(c, WHOLE, 0, 0, c->precision);
    for (int k = 0; k < c->arrays; k++)
        if (stored.gradient[k] != NULL)
            expect_same(c, "in 16 bits, the gradient of ", c->array[k].name, stored.gradient[k],
                        rounded(first->gradient[k], c->precision, c->array[k].count), c->array[k].count,
                        "it is the gradient in float32, rounded to nearest");
}

/* With a NaN among the inputs. Elements: drawn. */
static void check_nan(Case *c)
{
    const int64_t count = c->array[0].count, n = c->array[c->out].count;
    if (!c->operation->keeps_nan || count == 0)
        return;
    double *exact[CHECKED_ARRAYS];
    float *place_of_nan = &c->array[0].start[*indices_below((int32_t)count, 1)], kept = *place_of_nan;
    *place_of_nan = NAN;
    const Results results = run_kernels(c, WHOLE, 0, 0, DTYPE_F32);
    for (int k = 0; k < c->arrays; k++) {
        exact[k] = room_for_doubles(c->array[k].count);
        for (int64_t i = 0; i < c->array[k].count; i++)
            exact[k][i] = c->array[k].kind == ARRAY_INDICES ? 0 : (double)c->array[k].start[i];
    }
    c->operation->reference(c, exact);
    for (int64_t i = 0; i < n; i++)
        if (isnan(exact[c->out][i]) && !isnan(results.array[c->out][i]))
            fail_msg("%s [%lld] is a number: a comparison or a maximum drops NaN",
                     case_label(c, "a NaN among the inputs: ", c->array[c->out].name), (long long)i);
    *place_of_nan = kept;
}

/* ---- all checks of a case ---- */

static void check_tape(const Case *c, unsigned all, const Results *first)
{
    const bool has_kernels = c->operation->forward != NULL;
    const Results once = run_on_tape(c, all, 1), twice = run_on_tape(c, all, 2);
    if (!has_kernels)
        expect_reference(c, &once, 1);
    else
        expect_same_results(c, &once, first, "the tape gives the kernel another input, or in another order");
    Case again = *c;
    for (int k = 0; k < c->arrays; k++)
        again.sums[k] = once.gradient[k];
    if (has_kernels) {
        const Results sums = run_kernels(&again, all, all, 0, DTYPE_F32);
        for (int k = 0; k < c->arrays; k++)
            if (twice.gradient[k] != NULL)
                expect_same(c, "used twice, the gradient of ", c->array[k].name, twice.gradient[k], sums.gradient[k],
                            c->array[k].count, "each use adds to the gradient (+=)");
    } else {
        expect_reference(c, &twice, 2);
    }
    for (unsigned needs = 1; needs < all; needs++)
        if ((needs & ~all) == 0) {
            const Results some = run_on_tape(c, needs, 1);
            for (int k = 0; k < c->arrays; k++)
                assert_int_equal(some.gradient[k] != NULL, needs >> k & 1);
            expect_same_results(c, &some, &once, "a frozen input must not change the others' gradients");
        }
}

static void check_case(Case *c)
{
    Results first = {0};
    unsigned all = 0;
    for (int k = 0; k < c->arrays; k++)
        all |= is_differentiable(&c->array[k]) ? 1u << k : 0;
    if (c->operation->forward != NULL) {
        first = run_kernels(c, all, 0, 0, DTYPE_F32);
        const Results moved = run_kernels(c, all, 0, 16, DTYPE_F32);
        expect_reference(c, &first, 1);
        expect_same_results(c, &moved, &first, "two runs must give the same bits: does a sum depend on addresses, on "
                                               "the order of threads, or on memory that was not written?");
        if (c->operation->backward != NULL) {
            const Results sums = run_kernels(c, all, all, 0, DTYPE_F32);
            expect_sums(c, &sums, &first);
            check_needs(c, all, &first, &sums);
            check_16_bits(c, &first);
        }
        check_nan(c);
    }
    if (c->operation->record != NULL)
        check_tape(c, all, &first);
}

/* draw < 0: not drawn, but shapes[-1 - draw]. */
static void check_draw(const Operation *operation, int draw, uint64_t seed, DType precision)
{
    Case c = {.operation = operation, .precision = precision, .seed = seed};
    seed_numbers(seed);
    if (draw >= 0)
        draw_shape(&c, draw);
    else
        memcpy(c.dim, operation->shapes[-1 - draw], sizeof c.dim);
    operation->describe(&c);
    check_case(&c);
    free_room(NULL);
}

void check_operation(const Operation *operation)
{
    static const DType precisions[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    const char *chosen = getenv("LOCKSTEP_SEED");
    if (operation->cpu_only && device_kind() != DEVICE_CPU)
        return;
    for (int p = 0; p < (operation->has_precisions ? 3 : 1); p++) {
        for (int draw = 0; draw < DRAWS && chosen == NULL; draw++)
            check_draw(operation, draw, (uint64_t)draw + 1, precisions[p]);
        if (chosen != NULL)
            check_draw(operation, DRAWS, strtoull(chosen, NULL, 10), precisions[p]);
        for (int i = 0; operation->shapes != NULL && operation->shapes[i][0] >= 0; i++)
            check_draw(operation, -1 - i, 1, precisions[p]);
    }
}
