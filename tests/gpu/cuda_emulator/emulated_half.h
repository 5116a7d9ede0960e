/* emulated_half.h: 16-bit floating point for cuda_bf16.h and cuda_fp16.h, from the formats' definitions. Rounding is to
 * nearest, ties to even; NaN becomes 0x7fff, as on a GPU. Deliberately not the code of common/base/dtype.h. */
#ifndef LOCKSTEP_TESTS_EMULATED_HALF_H
#define LOCKSTEP_TESTS_EMULATED_HALF_H

#include <math.h>

/* x in 1 + exponent_bits + fraction_bits = 16 bits. */
static inline unsigned short emulated_half_bits(float x, int exponent_bits, int fraction_bits)
{
    if (isnan(x))
        return 0x7fff;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const unsigned infinity = ((1u << exponent_bits) - 1) << fraction_bits;
    const unsigned sign = signbit(x) ? 0x8000 : 0;
    int exponent = x == 0 || isinf(x) ? 1 - bias : ilogbf(x);
    if (exponent < 1 - bias)
        exponent = 1 - bias; /* subnormal numbers have the same distance as the smallest normal ones */
    const double steps = rint(ldexp(fabs((double)x), fraction_bits - exponent));
    if (steps >= ldexp(1, fraction_bits + bias + 1 - exponent)) /* 2^(bias + 1) is the first that is too large */
        return (unsigned short)(sign | infinity);
    /* A normal number has at least 2^fraction_bits steps, so its leading bit is added to the exponent field, as it
     * must. */
    const unsigned number = (unsigned)steps + ((unsigned)(exponent - 1 + bias) << fraction_bits);
    return (unsigned short)(sign | number);
}

static inline float emulated_half_value(unsigned short bits, int exponent_bits, int fraction_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (bits & 0x7fff) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
    double value =
        ldexp(fraction + (exponent > 0 ? 1 << fraction_bits : 0), (exponent > 0 ? exponent : 1) - bias - fraction_bits);
    if (exponent == (1 << exponent_bits) - 1)
        value = fraction ? NAN : INFINITY;
    return (float)(bits & 0x8000 ? -value : value);
}

#endif
