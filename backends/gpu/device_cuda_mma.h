/* device_cuda_mma.h: tensor cores: a warp multiplies squares of 16 by 16 numbers.
 *
 * A square is stored in the registers of a warp, spread over its 32 lanes. It has four quarters of 8 by 8, numbered
 * down the columns, and each lane has two neighbours of each quarter:
 *
 *           columns                      a quarter: which lane has the number
 *           0-7  8-15
 *     rows +----+----+                    0  0  1  1  2  2  3  3
 *      0-7 | 0  | 2  |                    4  4  5  5  6  6  7  7
 *          +----+----+                    ...
 *     8-15 | 1  | 3  |                   28 28 29 29 30 30 31 31
 *          +----+----+
 *
 * So four neighbouring lanes have a row of a quarter, and a lane has numbers of two rows only. The tensor cores'
 * instruction requires this layout (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"). Its
 * advantage: operands and results have the same layout. So the result of one product can be rounded and used as an
 * operand of the next one without leaving the registers.
 *
 * Interface, for a whole warp at once:
 *   HalfSquare<Half> a = load_square(&tile[0][0], stride);     from shared memory; rows aligned to 16 bytes
 *   HalfSquare<Half> b = load_transposed(&tile[0][0], stride); the same, transposed: number (i, j) comes from (j, i)
 *   FloatSquare sum = {};
 *   add_product(&sum, a, b);                                   sum += a b^T
 *   HalfSquare<Half> c = rounded<Half>(sum);
 * Half is __nv_bfloat16 or __half. tests/gpu/test_device_mma.cu tests each of these functions alone.
 */
#ifndef LOCKSTEP_DEVICE_DEVICE_CUDA_MMA_H
#define LOCKSTEP_DEVICE_DEVICE_CUDA_MMA_H

#include "backends/gpu/device_cuda.h"

#include <string.h>

/* Operands: each 32 bits hold two neighbours, the left one in the lower half. */
template <typename Half> struct HalfSquare {
    uint32_t quarter[4];
};

struct FloatSquare {
    float quarter[4][2];
};

/* The row and column, in the square, of a lane's left number of a quarter; the other number is right of it. */
static __device__ inline int square_row(int quarter)
{
    return quarter % 2 * 8 + threadIdx.x % WARP / 4;
}

static __device__ inline int square_column(int quarter)
{
    return quarter / 2 * 8 + threadIdx.x % 4 * 2;
}

/* ---- the instructions. C++ has no names for some of them, so nvcc gets these as PTX, the GPU's assembly language. The
 * emulator has its own version, written from NVIDIA's description. ---- */

#ifdef __CUDACC__

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "lockstep needs compute capability 8.0 or later, for bf16 on tensor cores: see CMAKE_CUDA_ARCHITECTURES"
#endif

/* Loads four matrices of 8 by 8. Lane 8 m + r passes the address of row r of matrix m, 16 bytes. to[m]: the lane's two
 * numbers of matrix m, in the layout of a quarter. (PTX ISA: ldmatrix.) */
static __device__ inline void load_four_matrices(uint32_t *to, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* The same, but transposes each matrix. */
static __device__ inline void load_four_matrices_transposed(uint32_t *to, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* sum (16, 8) += a (16, 16) b (16, 8). upper and lower: two quarters of the sum, either the left or the right ones. b's
 * columns are stored as the rows of a quarter: b_first holds its rows 0-7, b_second its rows 8-15. */
static __device__ inline void multiply_add(float *upper, float *lower, HalfSquare<__nv_bfloat16> a, uint32_t b_first,
                                           uint32_t b_second)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(upper[0]), "+f"(upper[1]), "+f"(lower[0]), "+f"(lower[1])
        : "r"(a.quarter[0]), "r"(a.quarter[1]), "r"(a.quarter[2]), "r"(a.quarter[3]), "r"(b_first), "r"(b_second));
}

static __device__ inline void multiply_add(float *upper, float *lower, HalfSquare<__half> a, uint32_t b_first,
                                           uint32_t b_second)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(upper[0]), "+f"(upper[1]), "+f"(lower[0]), "+f"(lower[1])
        : "r"(a.quarter[0]), "r"(a.quarter[1]), "r"(a.quarter[2]), "r"(a.quarter[3]), "r"(b_first), "r"(b_second));
}

/* 2^x in one instruction, with a relative error of 2^-22; results below 2^-126 become 0. (expf() takes eight.) */
static __device__ inline float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#else
#include "emulated_mma.h" /* tests/gpu/cuda_emulator */
#endif

/* ---- squares ---- */

/* Loads the square whose first number `at` points to. The quarters are loaded in the order 0, 2, 1, 3: a product needs
 * quarters 0 and 2 of b in neighbouring registers, and also 1 and 3. So lanes 0-7 pass the addresses of quarter 0's
 * rows, and lanes 8-15 those of quarter 2's. */
template <typename Half> static __device__ inline HalfSquare<Half> load_square(const Half *at, int stride)
{
    const int lane = threadIdx.x % WARP;
    uint32_t loaded[4];
    load_four_matrices(loaded, at + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
    return HalfSquare<Half>{{loaded[0], loaded[2], loaded[1], loaded[3]}};
}

/* Loads a square transposed: transposes each quarter, and exchanges quarters 1 and 2. */
template <typename Half> static __device__ inline HalfSquare<Half> load_transposed(const Half *at, int stride)
{
    const int lane = threadIdx.x % WARP;
    uint32_t loaded[4];
    load_four_matrices_transposed(loaded, at + lane % 16 * stride + lane / 16 * 8);
    return HalfSquare<Half>{{loaded[0], loaded[2], loaded[1], loaded[3]}};
}

/* Loads a square from global memory, where each lane reads its own numbers: eight rows at a time, 16 bytes of each. */
template <typename Half> static __device__ inline HalfSquare<Half> load_square_directly(const Half *at, int stride)
{
    HalfSquare<Half> square;
    for (int i = 0; i < 4; i++)
        square.quarter[i] = *(const uint32_t *)&at[square_row(i) * stride + square_column(i)];
    return square;
}

/* sum += a b^T: number (i, j) is row i of a times row j of b. The sum's left half needs the upper rows of b, its right
 * half the lower ones. */
template <typename Half>
static __device__ inline void add_product(FloatSquare *sum, HalfSquare<Half> a, HalfSquare<Half> b)
{
    multiply_add(sum->quarter[0], sum->quarter[1], a, b.quarter[0], b.quarter[2]);
    multiply_add(sum->quarter[2], sum->quarter[3], a, b.quarter[1], b.quarter[3]);
}

/* Two numbers, rounded, in 32 bits. */
template <typename Half> __device__ inline uint32_t round_pair(float left, float right);

template <> __device__ inline uint32_t round_pair<__nv_bfloat16>(float left, float right)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(left, right);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

template <> __device__ inline uint32_t round_pair<__half>(float left, float right)
{
    const __half2 pair = __floats2half2_rn(left, right);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

template <typename Half> static __device__ inline HalfSquare<Half> rounded(FloatSquare x)
{
    HalfSquare<Half> square;
    for (int i = 0; i < 4; i++)
        square.quarter[i] = round_pair<Half>(x.quarter[i][0], x.quarter[i][1]);
    return square;
}

#endif
