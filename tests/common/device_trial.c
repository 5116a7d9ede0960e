/* device_trial.c: see device_trial.h. */
#include "device_trial.h"

#include <stdio.h>

#include "base/check.h"
#include "base/rng.h"

/* ---- numbers ---- */

static void *room[1000];
static int rooms = 0;
static Rng rng;

static void *room_for(int64_t count, size_t size)
{
    CHECK(rooms < 1000, "a test has more than 1000 arrays");
    if (rooms == 0)
        rng_seed(&rng, 1); /* each test gets the same numbers, whatever tests ran before it */
    return room[rooms++] = alloc_or_fault((size_t)count * size);
}

int free_room(void **state)
{
    while (rooms > 0)
        free(room[--rooms]);
    return 0;
}

float *room_for_floats(int64_t count)
{
    return room_for(count, sizeof(float));
}

double *room_for_doubles(int64_t count)
{
    return room_for(count, sizeof(double));
}

float *normals_around(float middle, float scale, int64_t count)
{
    float *numbers = room_for_floats(count);
    for (int64_t i = 0; i < count; i++)
        numbers[i] = middle + scale * rng_normal(&rng);
    return numbers;
}

float *normals(int64_t count)
{
    return normals_around(0, 1, count);
}

int32_t *indices_below(int32_t limit, int64_t count)
{
    int32_t *numbers = room_for(count, sizeof *numbers);
    for (int64_t i = 0; i < count; i++)
        numbers[i] = (int32_t)rng_below(&rng, (uint64_t)limit);
    return numbers;
}

double unit_of(DType precision)
{
    return precision == DTYPE_BF16 ? 0x1p-8 : precision == DTYPE_F16 ? 0x1p-11 : 0;
}

double off_when_rounded(DType precision, double x, double off)
{
    const double between_subnormals = precision == DTYPE_BF16 ? 0x1p-133 : precision == DTYPE_F16 ? 0x1p-24 : 0;
    return off + unit_of(precision) * (fabs(x) + off) + between_subnormals / 2;
}

double nearest_in(DType precision, double x)
{
    if (precision == DTYPE_F32 || x == 0 || !isfinite(x))
        return x;
    const int significant_bits = precision == DTYPE_BF16 ? 8 : 11;
    const int lowest_exponent = precision == DTYPE_BF16 ? -126 : -14; /* of numbers that are not subnormal */
    const double largest = precision == DTYPE_BF16 ? 0x1.fep127 : 65504;
    int exponent = ilogb(x);
    if (exponent < lowest_exponent)
        exponent = lowest_exponent;
    const double distance = ldexp(1, exponent - significant_bits + 1); /* of neighbours */
    const double nearest = nearbyint(x / distance) * distance;
    return fabs(nearest) > largest ? copysign(INFINITY, x) : nearest;
}

float *rounded(const float *x, DType precision, int64_t count)
{
    float *result = room_for_floats(count);
    for (int64_t i = 0; i < count; i++)
        result[i] = (float)nearest_in(precision, (double)x[i]);
    return result;
}

/* ---- trials ---- */

void *device_copy_of(const void *host, size_t bytes)
{
    void *memory = device_alloc(bytes);
    device_from_host(memory, host, bytes);
    return memory;
}

void *operand_of(const void *x, DType precision, int64_t n)
{
    void *operand = device_alloc(device_rounded_bytes(precision, n));
    device_store_rounded(operand, x, precision, n);
    return operand;
}

void numbers_of(float *x, const void *operand, DType precision, int64_t n)
{
    const bool has_16_bits = device_rounded_bytes(precision, 1) == 2; /* otherwise the device stores a float */
    if (has_16_bits)
        device_from_half(x, operand, precision, n);
    else
        device_copy(x, operand, (size_t)n * sizeof *x);
}

static void add_array(Trial *trial, TrialArray array)
{
    CHECK(trial->arrays < TRIAL_ARRAYS, "%s: too many arrays", trial->name);
    trial->array[trial->arrays++] = array;
}

void trial_input(Trial *trial, const void *values, int64_t count)
{
    add_array(trial, (TrialArray){.start = values, .count = count, .result = room_for_floats(count)});
}

void trial_output(Trial *trial, const char *name, const float *start, int64_t count)
{
    const bool starts_as_nan = start == NULL;
    if (starts_as_nan) {
        float *nans = room_for_floats(count);
        for (int64_t i = 0; i < count; i++)
            nans[i] = NAN;
        start = nans;
    }
    add_array(trial, (TrialArray){.name = name,
                                  .start = start,
                                  .starts_as_nan = starts_as_nan,
                                  .count = count,
                                  .result = room_for_floats(count)});
}

void trial_null(Trial *trial)
{
    add_array(trial, (TrialArray){.count = -1});
}

Gradient trial_gradient(const Trial *trial, void **array, int i)
{
    return (Gradient){.values = array[i], .add = !trial->array[i].starts_as_nan};
}

double start_at(const float *start, int64_t i)
{
    return start != NULL ? (double)start[i] : 0;
}

/* "linear, shape 5 x 0 x 3, bfloat16: out" */
static const char *label(const Trial *trial, const char *what)
{
    static char text[200];
    int used = snprintf(text, sizeof text, "%s, shape %lld", trial->name, (long long)trial->shape[0]), dims = 4;
    while (dims > 1 && trial->shape[dims - 1] == 0)
        dims--;
    for (int i = 1; i < dims; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, " x %lld", (long long)trial->shape[i]);
    if (trial->heads > 0)
        used += snprintf(text + used, sizeof text - (size_t)used, ", %d heads", trial->heads);
    if (trial->precision != DTYPE_F32)
        used += snprintf(text + used, sizeof text - (size_t)used, ", %s", dtype_name(trial->precision));
    snprintf(text + used, sizeof text - (size_t)used, ": %s", what);
    return text;
}

/* Calls once, with each array at offset `shift`, in bytes, in memory of its own. */
static void run_once(const Trial *trial, size_t shift)
{
    char *memory[TRIAL_ARRAYS];
    void *argument[TRIAL_ARRAYS] = {NULL};
    for (int i = 0; i < trial->arrays; i++) {
        const TrialArray *array = &trial->array[i];
        memory[i] = array->count < 0 ? NULL : device_alloc(shift + (size_t)array->count * 4);
        if (memory[i] == NULL)
            continue;
        argument[i] = memory[i] + shift;
        device_from_host(argument[i], array->start, (size_t)array->count * 4);
    }
    trial->call(trial, argument);
    for (int i = 0; i < trial->arrays; i++) {
        if (memory[i] == NULL)
            continue;
        device_to_host(trial->array[i].result, argument[i], (size_t)trial->array[i].count * 4);
        device_free(memory[i]);
    }
}

void trial_run(Trial *trial)
{
    float *first[TRIAL_ARRAYS] = {NULL};
    run_once(trial, 0);
    for (int i = 0; i < trial->arrays; i++) {
        const TrialArray *array = &trial->array[i];
        if (array->count <= 0)
            continue;
        if (array->name == NULL && memcmp(array->result, array->start, (size_t)array->count * 4) != 0)
            fail_msg("%s", label(trial, "an input was changed"));
        first[i] = room_for_floats(array->count);
        memcpy(first[i], array->result, (size_t)array->count * 4);
    }
    run_once(trial, 64);
    for (int i = 0; i < trial->arrays; i++)
        if (first[i] != NULL && trial->array[i].name != NULL)
            expect_bits_equal(label(trial, trial->array[i].name), trial->array[i].result, first[i],
                              trial->array[i].count,
                              "two runs must give the same bits: does a sum depend on addresses, on the order in which "
                              "threads arrive, or on memory that was not written?");
}

/* The error of an element divided by its bound; 0 if it is within its bound. */
static double excess(float actual, double expected, double bound)
{
    if (!isfinite(actual) || !isfinite(expected) || !isfinite(bound))
        return INFINITY;
    const double difference = fabs((double)actual - expected);
    return difference <= bound ? 0 : difference / (bound + 1e-300);
}

void expect_within(const char *name, const float *actual, const double *expected, const double *bound, int64_t count,
                   const char *hint)
{
    int64_t wrong = 0, first = 0, worst = 0;
    double worst_excess = 0;
    for (int64_t i = 0; i < count; i++) {
        const double off = excess(actual[i], expected[i], bound[i]);
        if (off > 0 && wrong++ == 0)
            first = i;
        if (off > worst_excess) {
            worst_excess = off;
            worst = i;
        }
    }
    if (wrong == 0)
        return;
    print_error("ERROR: %s: %lld of %lld elements are off\n", name, (long long)wrong, (long long)count);
    for (int64_t i = first, n = 0; n < 2; i = worst, n++)
        print_error("  %s [%lld]: expected %.9g, got %.9g; difference %.3g, rounding explains %.3g\n",
                    n == 0 ? "first" : "worst", (long long)i, expected[i], (double)actual[i],
                    fabs((double)actual[i] - expected[i]), bound[i]);
    print_error("  usual cause: %s\n", hint);
    fail();
}

void trial_expect(const Trial *trial, int array, const double *expected, const double *bound, const char *hint)
{
    const TrialArray *result = &trial->array[array];
    expect_within(label(trial, result->name != NULL ? result->name : "?"), result->result, expected, bound,
                  result->count, hint);
}

void trial_expect_rounded(const Trial *trial, int array)
{
    const TrialArray *result = &trial->array[array];
    for (int64_t i = 0; i < result->count; i++)
        if ((double)result->result[i] != nearest_in(trial->precision, (double)result->result[i]))
            fail_msg("%s [%lld] is %.9g, which is no number of that format: was the result not rounded?",
                     label(trial, result->name), (long long)i, (double)result->result[i]);
}

void trial_expect_nan(const Trial *trial, int array, int64_t index, const char *hint)
{
    const TrialArray *result = &trial->array[array];
    if (isnan(result->result[index]))
        return;
    print_error("ERROR: %s [%lld] is %g: a NaN was lost\n  usual cause: %s\n", label(trial, result->name),
                (long long)index, (double)result->result[index], hint);
    fail();
}
