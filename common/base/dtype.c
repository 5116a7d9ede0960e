/* dtype.c: sizes and names of types; float32 to 16 and 8 bits and back. */
#include "base/dtype.h"

#include <float.h>

#include "base/check.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {[DTYPE_F32] = {"float32", 4}, [DTYPE_F64] = {"float64", 8}, [DTYPE_BF16] = {"bfloat16", 2},
              [DTYPE_F16] = {"float16", 2}, [DTYPE_I32] = {"int32", 4}, [DTYPE_I64] = {"int64", 8},
              [DTYPE_INT8_BLOCK] = {"blocks of int8", sizeof(Int8Block)}};

size_t dtype_size(DType dtype)
{
    CHECK((size_t)dtype < sizeof dtypes / sizeof *dtypes, "no such dtype: %d", (int)dtype);
    return dtypes[dtype].size;
}

const char *dtype_name(DType dtype)
{
    CHECK((size_t)dtype < sizeof dtypes / sizeof *dtypes, "no such dtype: %d", (int)dtype);
    return dtypes[dtype].name;
}

/* The 16 bits of f16 for a float that nearest_f16() has already rounded. */
static inline uint32_t f16_bits(float x)
{
    const uint32_t sign = (bits_of(x) >> 16) & 0x8000u;
    const uint32_t bits = bits_of(x) & 0x7fffffffu;
    const float magnitude = float_of(bits);
    const uint32_t normal = (bits >> 13) - (112u << 10); /* the exponent's bias is 15, not 127 */
    const uint32_t in_range = magnitude > F16_LARGEST ? 0x7c00u : normal;
    const uint32_t subnormal = bits_of(magnitude + 0.5f) - bits_of(0.5f); /* in units of 2^-24, as nearest_f16() */
    const uint32_t finite = magnitude < F16_SMALLEST_NORMAL ? subnormal : in_range;
    return sign | (x != x ? 0x7e00u : finite);
}

static inline float float_of_f16_bits(uint32_t half)
{
    const uint32_t sign = (half & 0x8000u) << 16;
    const uint32_t shifted = (half & 0x7fffu) << 13; /* exponent and mantissa in float32's places */
    const float value = float_of(shifted) * 0x1p112f; /* corrects the exponent's bias; right for subnormals, too */
    const uint32_t not_finite = shifted | 0x7f800000u;
    return float_of(sign | ((half & 0x7c00u) == 0x7c00u ? not_finite : bits_of(value)));
}

void half_from_floats(void *half, const float *x, DType dtype, int64_t n)
{
    uint16_t *out = half;
    if (dtype == DTYPE_BF16) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            out[i] = (uint16_t)(bits_of(nearest_bf16(x[i])) >> 16);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            out[i] = (uint16_t)f16_bits(nearest_f16(x[i]));
    }
}

void half_to_floats(float *x, const void *half, DType dtype, int64_t n)
{
    const uint16_t *in = half;
    if (dtype == DTYPE_BF16) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            x[i] = float_of((uint32_t)in[i] << 16);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            x[i] = float_of_f16_bits(in[i]);
    }
}

static float largest_of_block(const float *x) /* NaN if a number is NaN */
{
    float largest = 0;
    for (int i = 0; i < INT8_BLOCK; i++)
        largest = fabsf(x[i]) > largest || x[i] != x[i] ? fabsf(x[i]) : largest;
    return largest;
}

static Int8Block block_from_floats(const float *x)
{
    const float largest = largest_of_block(x), round_to_integer = 0x1.8p23f;
    Int8Block block = {.scale = largest < INFINITY ? largest / 127.0f : NAN};
    if (block.scale >= FLT_MIN) /* else the integers stay 0 */
        for (int i = 0; i < INT8_BLOCK; i++)
            block.integers[i] = (int8_t)((x[i] / block.scale + round_to_integer) - round_to_integer);
    return block;
}

void int8_from_floats(Int8Block *blocks, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n / INT8_BLOCK; i++)
        blocks[i] = block_from_floats(x + i * INT8_BLOCK);
}

void int8_to_floats(float *x, const Int8Block *blocks, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = blocks[i / INT8_BLOCK].scale * (float)blocks[i / INT8_BLOCK].integers[i % INT8_BLOCK];
}
