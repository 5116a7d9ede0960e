/* emulated_mma.h: the instructions of backends/gpu/device_cuda_mma.h, emulated; mma.cpp implements them. */
#ifndef LOCKSTEP_TESTS_EMULATED_MMA_H
#define LOCKSTEP_TESTS_EMULATED_MMA_H

void emulator_ldmatrix(uint32_t *to, const void *row, bool transposed, EmulatedPlace place);
/* c (c0 to c3) += a (a0 to a7) b (b0 to b3) */
void emulator_mma(float *c, const float *a, const float *b, EmulatedPlace place);

static inline void load_four_matrices(uint32_t *to, const void *row, const char *file = __builtin_FILE(),
                                      int line = __builtin_LINE())
{
    emulator_ldmatrix(to, row, false, EmulatedPlace{"ldmatrix", file, line});
}

static inline void load_four_matrices_transposed(uint32_t *to, const void *row, const char *file = __builtin_FILE(),
                                                 int line = __builtin_LINE())
{
    emulator_ldmatrix(to, row, true, EmulatedPlace{"ldmatrix.trans", file, line});
}

static inline float emulated_value(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

static inline float emulated_value(__half x)
{
    return __half2float(x);
}

/* Unpacks registers of two numbers each, the lower half first. */
template <typename Half> static inline void emulated_unpack(float *to, const uint32_t *registers, int count)
{
    for (int i = 0; i < count; i++)
        to[i] = emulated_value(Half{(unsigned short)(registers[i / 2] >> i % 2 * 16)});
}

template <typename Half>
static inline void multiply_add(float *upper, float *lower, HalfSquare<Half> a, uint32_t b_first, uint32_t b_second,
                                const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    float a_values[8], b_values[4], c[4] = {upper[0], upper[1], lower[0], lower[1]};
    const uint32_t b[2] = {b_first, b_second};
    emulated_unpack<Half>(a_values, a.quarter, 8);
    emulated_unpack<Half>(b_values, b, 4);
    emulator_mma(c, a_values, b_values, EmulatedPlace{"mma", file, line});
    upper[0] = c[0], upper[1] = c[1], lower[0] = c[2], lower[1] = c[3];
}

/* ex2.approx.ftz */
static inline float power_of_two(float x)
{
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0 : y;
}

#endif
