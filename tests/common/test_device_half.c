/* test_device_half.c: device.h's rounding to 16 bits, on the device that this is linked with: to a float, and to
 * memory. */
#include "device_numbers.h"

/* ---- rounding ---- */

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The f16 number with these bits, and in *middle the middle between it and the next larger size. Infinity for what is
 * larger than all numbers. */
static float f16_of(uint32_t bits, float *middle)
{
    const uint32_t exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
    const int scale = (int)(exponent > 0 ? exponent : 1) - 25;
    const float sign = bits & 0x8000 ? -1 : 1;
    const float integer = (float)(mantissa + (exponent > 0 ? 0x400 : 0));
    *middle = exponent == 31 ? sign * INFINITY : sign * ldexpf(integer + 0.5f, scale);
    return exponent == 31 ? sign * INFINITY : sign * ldexpf(integer, scale);
}

/* Numbers of the formats, the middles between two, and what lies beside those; zeros, infinities, NaN, subnormals. */
enum { HALVES = 0x10000, CASES = 7 * HALVES };

static float *hard_to_round(void)
{
    float *x = room_for_floats(CASES);
    for (uint32_t i = 0; i < HALVES; i++) {
        float f16_middle;
        const float f16 = f16_of(i, &f16_middle);
        const float seven[] = {from_bits(i << 16),
                               from_bits(i << 16 | 0x7fff),
                               from_bits(i << 16 | 0x8000),
                               from_bits(i << 16 | 0x8001),
                               f16,
                               f16_middle,
                               nextafterf(f16_middle, INFINITY)};
        memcpy(x + 7 * i, seven, sizeof seven);
    }
    return x;
}

static void expect_rounded(const char *name, const float *got, const float *x, DType precision, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float expected = (float)nearest_in(precision, (double)x[i]);
        const bool same = isnan(x[i]) ? isnan(got[i]) : got[i] == expected && signbit(got[i]) == signbit(expected);
        if (!same)
            fail_msg(
                "%s to %s: %a must become %a, not %a: to nearest, ties to even; NaN stays NaN, what is too large for "
                "float16 becomes infinite, and small numbers are subnormal",
                name, dtype_name(precision), (double)x[i], (double)expected, (double)got[i]);
    }
}

/* Rounds x to another array, or in place. */
static void check_rounding(const float *x, DType precision, bool in_place)
{
    float *from = device_copy_of(x, CASES * sizeof *x), *to = in_place ? from : device_alloc(CASES * sizeof *x);
    float *got = room_for_floats(CASES);
    device_round(to, from, precision, CASES);
    device_to_host(got, to, CASES * sizeof *got);
    expect_rounded(in_place ? "device_round in place" : "device_round", got, x, precision, CASES);
    device_free(in_place ? NULL : to);
    device_free(from);
}

static void test_rounding(void **state)
{
    const float *x = hard_to_round();
    const DType precisions[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (int i = 0; i < 6; i++)
        check_rounding(x, precisions[i / 2], i % 2);
}

/* ---- 16 bits in memory ---- */

/* The value of the 16 bits, from the definition of the format. */
static double decode(DType dtype, uint16_t bits)
{
    const int fraction_bits = dtype == DTYPE_BF16 ? 7 : 10, exponent_bits = 15 - fraction_bits;
    const int fraction = bits & ((1 << fraction_bits) - 1), exponent = (bits & 0x7fff) >> fraction_bits;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    double value = ldexp(fraction, 1 - bias - fraction_bits); /* subnormal */
    if (exponent > 0)
        value = ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
    if (exponent == (1 << exponent_bits) - 1)
        value = fraction == 0 ? INFINITY : NAN;
    return bits & 0x8000 ? -value : value;
}

static void check_half(DType dtype, const float *x, int64_t n)
{
    uint16_t *bits = (uint16_t *)room_for_floats(n), *all = (uint16_t *)room_for_floats(HALVES);
    float *got = room_for_floats(n > HALVES ? n : HALVES);
    float *from = device_copy_of(x, (size_t)n * 4), *floats = device_alloc(HALVES * 4);
    void *half = device_alloc((size_t)n * 2);
    device_to_half(half, from, dtype, n);
    device_to_host(bits, half, (size_t)n * 2);
    for (int64_t i = 0; i < n; i++)
        got[i] = (float)decode(dtype, bits[i]);
    expect_rounded("device_to_half", got, x, dtype, n);

    for (int i = 0; i < HALVES; i++)
        all[i] = (uint16_t)i;
    void *every = device_copy_of(all, HALVES * 2);
    device_fill(floats, NAN, HALVES);
    device_from_half(floats, every, dtype, HALVES);
    device_to_host(got, floats, HALVES * 4);
    for (int i = 0; i < HALVES; i++)
        if (!(got[i] == (float)decode(dtype, all[i])) && !(isnan(got[i]) && isnan(decode(dtype, all[i]))))
            fail_msg("device_from_half: 0x%04x as %s is %a, not %a", (unsigned)i, dtype_name(dtype),
                     decode(dtype, all[i]), (double)got[i]);
    void *to_free[] = {from, floats, half, every};
    for (int i = 0; i < 4; i++)
        device_free(to_free[i]);
}

static void test_half(void **state)
{
    float *x = hard_to_round();
    const int64_t sizes[] = {0, 1, 3, 31, 33, 257, 1025, CASES - 70};
    for (int p = 0; p < 2; p++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            check_half(p == 0 ? DTYPE_BF16 : DTYPE_F16, x + 70 * (s % 2), sizes[s]);
}

int main(void)
{
    device_init(0, 1);
    return run_cases("device_half", cmocka_unit_test_teardown(test_rounding, free_room),
                     cmocka_unit_test_teardown(test_half, free_room));
}
