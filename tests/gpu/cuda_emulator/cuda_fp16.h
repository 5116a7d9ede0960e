/* cuda_fp16.h: the emulator's version of CUDA's header. f16: 5 bits of exponent, 10 of fraction. */
#ifndef LOCKSTEP_TESTS_CUDA_FP16_H
#define LOCKSTEP_TESTS_CUDA_FP16_H

#include "emulated_half.h"

struct __half {
    unsigned short bits;
};

static inline __half __float2half_rn(float x)
{
    return __half{emulated_half_bits(x, 5, 10)};
}

static inline __half __float2half(float x)
{
    return __float2half_rn(x);
}

static inline float __half2float(__half x)
{
    return emulated_half_value(x.bits, 5, 10);
}

struct alignas(4) __half2 {
    __half x, y; /* x: the lower half */
};

static inline __half2 __floats2half2_rn(float x, float y)
{
    return __half2{__float2half_rn(x), __float2half_rn(y)};
}

#endif
