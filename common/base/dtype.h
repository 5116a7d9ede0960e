/* dtype.h: element types, and conversion between float32 and the narrow types in host memory: bf16 (the upper half of a
 * float32), f16 (5 bits of exponent, 10 of mantissa), and blocks of 8-bit integers with a scale. All rounding is to
 * nearest, ties to even. In its own memory, a device may store 16-bit numbers in another format. */
#ifndef LOCKSTEP_BASE_DTYPE_H
#define LOCKSTEP_BASE_DTYPE_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum DType { DTYPE_F32, DTYPE_F64, DTYPE_BF16, DTYPE_F16, DTYPE_I32, DTYPE_I64, DTYPE_INT8_BLOCK } DType;

size_t dtype_size(DType dtype); /* bytes of one element */
const char *dtype_name(DType dtype);

/* ---- 16-bit floating point in host memory ---- */

/* Convert n numbers from float32 to 16 bits, and back. dtype: DTYPE_BF16 or DTYPE_F16. NaN stays NaN; a number that is
 * too large for f16 becomes infinite. */
void half_from_floats(void *half, const float *x, DType dtype, int64_t n);
void half_to_floats(float *x, const void *half, DType dtype, int64_t n);

/* ---- 8-bit integers with a scale ---- */

enum { INT8_BLOCK = 16 };

/* An element of DTYPE_INT8_BLOCK: 16 numbers. The one with the largest magnitude is scale * 127 or scale * -127. */
typedef struct Int8Block {
    float scale;
    int8_t integers[INT8_BLOCK]; /* from -127 to 127 */
} Int8Block;

/* Convert n float32 numbers, a multiple of INT8_BLOCK, to blocks, and back. Each is off by at most half a scale. If the
 * scale would be subnormal, the block becomes zeros. A block with a NaN or an infinity becomes NaN. */
void int8_from_floats(Int8Block *blocks, const float *x, int64_t n);
void int8_to_floats(float *x, const Int8Block *blocks, int64_t n);

/* ---- the bits of a float ---- */

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- rounding to the nearest number of a format; the result is a float ---- */

static const float F16_LARGEST = 65504.0f;
static const float F16_SMALLEST_NORMAL = 0x1p-14f;

/* bf16 is the upper half of a float32. */
static inline float nearest_bf16(float x)
{
    const uint32_t bits = bits_of(x);
    const uint32_t last_kept_bit = (bits >> 16) & 1;
    const uint32_t rounded = (bits + 0x7fff + last_kept_bit) & 0xffff0000u; /* a carry into the exponent is right */
    const uint32_t quiet_nan = (bits & 0xffff0000u) | 0x00400000u;
    return float_of(x != x ? quiet_nan : rounded);
}

/* f16: 5 bits of exponent, 10 of mantissa (float32: 8 and 23). */
static inline float nearest_f16(float x)
{
    const uint32_t sign = bits_of(x) & 0x80000000u;
    const uint32_t bits = bits_of(x) & 0x7fffffffu;
    const float magnitude = float_of(bits);
    const uint32_t last_kept_bit = (bits >> 13) & 1;
    const float normal = float_of((bits + 0xfff + last_kept_bit) & ~0x1fffu);
    const float in_range = normal > F16_LARGEST ? INFINITY : normal;
    const float subnormal = (magnitude + 0.5f) - 0.5f; /* floats in [0.5, 1) lie 2^-24 apart, as f16's subnormals do */
    const float rounded = magnitude < F16_SMALLEST_NORMAL ? subnormal : in_range;
    return float_of(x != x ? bits_of(x) | 0x00400000u : sign | bits_of(rounded));
}

#endif
