/* cuda_bf16.h: the emulator's version of CUDA's header. bf16: 8 bits of exponent, 7 of fraction. */
#ifndef LOCKSTEP_TESTS_CUDA_BF16_H
#define LOCKSTEP_TESTS_CUDA_BF16_H

#include "emulated_half.h"

struct __nv_bfloat16 {
    unsigned short bits;
};

static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return __nv_bfloat16{emulated_half_bits(x, 8, 7)};
}

static inline __nv_bfloat16 __float2bfloat16(float x)
{
    return __float2bfloat16_rn(x);
}

static inline float __bfloat162float(__nv_bfloat16 x)
{
    return emulated_half_value(x.bits, 8, 7);
}

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y; /* x: the lower half */
};

static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return __nv_bfloat162{__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

#endif
