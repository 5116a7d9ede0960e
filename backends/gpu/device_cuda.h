/* device_cuda.h: what the CUDA files share: checked calls, scratch memory, four numbers at a time, sums over a block.
 *
 * Rules for all kernels here:
 * - All work goes to cudaStreamPerThread, so each host thread's work runs in the order of its calls (see device.h).
 * - No atomics, and the order of each sum depends only on counts: the same input gives the same bits.
 * - Element-wise kernels are limited by memory bandwidth, so each thread loads and stores four neighbours at once.
 */
#ifndef LOCKSTEP_DEVICE_DEVICE_CUDA_H
#define LOCKSTEP_DEVICE_DEVICE_CUDA_H

#include <stdint.h>

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define _Noreturn [[noreturn]] /* C's word, which C++ does not know */
extern "C" {
#include "base/check.h"
#include "device/device.h"
}
#undef _Noreturn

/* ---- calls that may fail: the fault names the call, the place, the error and, if known, a remedy ---- */

#define CHECK_CUDA(call) check_cuda((call), #call, __FILE__, __LINE__)
#define CHECK_CUBLAS(call) check_cublas((call), #call, __FILE__, __LINE__)
void check_cuda(cudaError_t status, const char *call, const char *file, int line);
void check_cublas(cublasStatus_t status, const char *call, const char *file, int line);

/* ---- memory and launches ---- */

/* Device memory for intermediate results between the kernels of one call: valid until the next call of this function.
 * Call it from the training thread only. It grows during the first step, and is kept until the process ends. */
void *cuda_scratch(size_t bytes);

bool cuda_tf32_allowed(void); /* see device_allow_tf32() */

enum { THREADS = 256, WARP = 32 }; /* threads of a block, unless a kernel says otherwise */

/* The number of blocks for `count` items, at `per_block` items each. */
static inline unsigned blocks_for(int64_t count, int64_t per_block)
{
    return (unsigned)((count + per_block - 1) / per_block);
}

/* ---- numbers of 32 and 16 bits; rounding is to nearest, ties to even ---- */

static __device__ inline float to_float(float x)
{
    return x;
}

static __device__ inline float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

static __device__ inline float to_float(__half x)
{
    return __half2float(x);
}

static __device__ inline void from_float(float *to, float x)
{
    *to = x;
}

static __device__ inline void from_float(__nv_bfloat16 *to, float x)
{
    *to = __float2bfloat16_rn(x);
}

static __device__ inline void from_float(__half *to, float x)
{
    *to = __float2half_rn(x);
}

/* x rounded to `precision`, as a float. */
static __device__ inline float nearest(float x, DType precision)
{
    if (precision == DTYPE_BF16)
        return __bfloat162float(__float2bfloat16_rn(x));
    if (precision == DTYPE_F16)
        return __half2float(__float2half_rn(x));
    return x;
}

/* ---- four neighbours at once: one wide load or store instead of four ---- */

template <typename Number> struct alignas(4 * sizeof(Number)) Four {
    Number at[4];
};

/* Thread 0 of block 0 takes numbers 0 to 3, thread 1 takes 4 to 7, and so on. */
static __device__ inline int64_t first_of_four()
{
    return 4 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
}

static inline unsigned blocks_of_fours(int64_t n)
{
    return blocks_for(n, 4 * THREADS);
}

template <typename Number> static __device__ inline bool four_fit(const Number *x, int64_t i, int64_t n)
{
    return i + 4 <= n && (uintptr_t)(x + i) % sizeof(Four<Number>) == 0;
}

/* x[i] to x[i + 3], with `beyond` for indices of n and more. Any alignment works: only the speed depends on it. */
template <typename Number>
static __device__ inline Four<Number> load_four(const Number *x, int64_t i, int64_t n, Number beyond = Number())
{
    if (four_fit(x, i, n))
        return *(const Four<Number> *)(x + i);
    Four<Number> four;
    for (int k = 0; k < 4; k++)
        four.at[k] = i + k < n ? x[i + k] : beyond;
    return four;
}

/* Stores the numbers whose index is below n. */
template <typename Number> static __device__ inline void store_four(Number *x, int64_t i, int64_t n, Four<Number> four)
{
    if (four_fit(x, i, n)) {
        *(Four<Number> *)(x + i) = four;
        return;
    }
    for (int k = 0; k < 4; k++)
        if (i + k < n)
            x[i + k] = four.at[k];
}

/* The same, rounded to x's type. */
template <typename Number>
static __device__ inline void store_rounded(Number *x, int64_t i, int64_t n, Four<float> four)
{
    Four<Number> rounded;
    for (int k = 0; k < 4; k++)
        from_float(&rounded.at[k], four.at[k]);
    store_four(x, i, n, rounded);
}

/* ---- gradients ---- */

/* The gradient of element i, or of i to i + 3, before this contribution: 0 if this is the first. */
static __device__ inline float so_far(Gradient gradient, int64_t i)
{
    return gradient.add ? gradient.values[i] : 0;
}

static __device__ inline Four<float> four_so_far(Gradient gradient, int64_t i, int64_t n)
{
    return gradient.add ? load_four(gradient.values, i, n) : Four<float>();
}

/* For an empty sum, for which no kernel is launched: a first contribution is then 0. */
static inline void clear_if_first(Gradient gradient, int64_t n)
{
    if (gradient.values != NULL && !gradient.add)
        device_zero(gradient.values, (size_t)n * sizeof *gradient.values);
}

/* `precision` is DTYPE_BF16 or DTYPE_F16. */
static __device__ inline void store_operand(void *operand, DType precision, int64_t i, int64_t n, Four<float> four)
{
    if (precision == DTYPE_BF16)
        store_rounded((__nv_bfloat16 *)operand, i, n, four);
    else
        store_rounded((__half *)operand, i, n, four);
}

/* Stores four numbers of a gradient, in the gradient's dtype. */
static __device__ inline void store_gradient(Gradient gradient, int64_t i, int64_t n, Four<float> four)
{
    if (gradient.dtype == DTYPE_F32)
        store_four(gradient.values, i, n, four);
    else
        store_operand(gradient.values, gradient.dtype, i, n, four);
}

/* ---- sums over threads, in a fixed order; every participating thread gets the result ---- */

/* Call with all 32 threads of a warp. threads: a power of two; each group of that many neighbours gets its own sum. */
template <typename Number> static __device__ inline Number warp_sum(Number x, int threads = WARP)
{
    for (int distance = threads / 2; distance > 0; distance /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

static __device__ inline float warp_max(float x, int threads = WARP)
{
    for (int distance = threads / 2; distance > 0; distance /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
}

/* Call with all threads of a block (a multiple of 32). Sums within each warp, then over the warps. */
template <typename Number> static __device__ inline Number block_sum(Number x)
{
    __shared__ Number of_warp[WARP];
    x = warp_sum(x);
    __syncthreads(); /* all threads have read the results of the previous call */
    if (threadIdx.x % WARP == 0)
        of_warp[threadIdx.x / WARP] = x;
    __syncthreads();
    Number sum = Number();
    for (unsigned warp = 0; warp < blockDim.x / WARP; warp++)
        sum += of_warp[warp];
    return sum;
}

static __device__ inline float block_max(float x)
{
    __shared__ float of_warp[WARP];
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        of_warp[threadIdx.x / WARP] = x;
    __syncthreads();
    float largest = of_warp[0];
    for (unsigned warp = 1; warp < blockDim.x / WARP; warp++)
        largest = fmaxf(largest, of_warp[warp]);
    return largest;
}

/* ---- sums over the rows of a matrix (rows, n): out[column] ----
 * A block sums one tile: WARP neighbouring columns by SUM_ROWS rows. Each of its SUM_LANES warps adds every
 * SUM_LANES-th row. The first stage writes one partial sum per tile and column: a smaller matrix (tiles, n), which the
 * second stage sums in the same way. */
enum { SUM_LANES = 8, SUM_ROWS = 128 };
static const dim3 SUM_BLOCK(WARP, SUM_LANES);

/* Adds the x of all warps of a block, for this thread's column. */
static __device__ inline float sum_of_lanes(float x)
{
    __shared__ float of_lane[SUM_LANES][WARP];
    __syncthreads(); /* all threads have read the results of the previous call */
    of_lane[threadIdx.y][threadIdx.x] = x;
    __syncthreads();
    float sum = 0;
    for (int lane = 0; lane < SUM_LANES; lane++)
        sum += of_lane[lane][threadIdx.x];
    return sum;
}

/* Second stage: contributes the sum of the rows of partial (tiles, n) to `to` (n). */
void cuda_contribute_partial_sums(Gradient to, const float *partial, int64_t tiles, int64_t n);

#endif
