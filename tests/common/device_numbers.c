/* device_numbers.c: see device_numbers.h. */
#include "device_numbers.h"

#include "base/check.h"
#include "base/rng.h"

/* ---- numbers ---- */

static void *room[10000];
static int rooms = 0;
static Rng rng;
static bool seeded = false;

void seed_numbers(uint64_t seed)
{
    rng_seed(&rng, seed);
    seeded = true;
}

static void *room_for(int64_t count, size_t size)
{
    CHECK(rooms < 10000, "a test has more than 10000 arrays");
    if (rooms == 0 && !seeded)
        seed_numbers(1); /* each test gets the same numbers, whatever tests ran before it */
    return room[rooms++] = alloc_or_fault((size_t)count * size);
}

int free_room(void **state)
{
    while (rooms > 0)
        free(room[--rooms]);
    seeded = false;
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

/* ---- on the device ---- */

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

/* ---- comparison ---- */

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
