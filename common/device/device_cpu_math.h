/* device_cpu_math.h: small functions that the CPU kernels share: sums in a fixed order, exp, and the call of BLAS.
 *
 * Same bits everywhere: the order of a sum depends only on the number of elements, never on their address or on
 * the width of the machine's vectors, and exp_of() gives the same bits in a vectorised loop and in its scalar tail.
 */
#ifndef LOCKSTEP_DEVICE_DEVICE_CPU_MATH_H
#define LOCKSTEP_DEVICE_DEVICE_CPU_MATH_H

#include "device/device.h"
#include "base/dtype.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

/* ---- gradients ---- */

/* The gradient of element i before this contribution: 0 if this is the first. */
static inline float so_far(Gradient gradient, int64_t i)
{
    return gradient.add ? gradient.values[i] : 0;
}

/* For a kernel that sums terms in place: after this call it can use += for every contribution, also the first. */
static inline void clear_if_first(Gradient gradient, int64_t n)
{
    if (gradient.values != NULL && !gradient.add)
        device_zero(gradient.values, (size_t)n * sizeof *gradient.values);
}

/* ---- sums ----
 * A single running sum is slow, because each addition waits for the one before. So element i goes to partial sum
 * i % LANES. The compiler keeps these in vector registers; their number is fixed here, not by the machine. */
enum { LANES = 16 };

/* Adds the partial sums up, pair by pair. */
static inline float sum_of_lanes(float *lane)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

static inline float sum_of(const float *x, int64_t n)
{
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            lane[l] += x[i + l];
    }
    for (; i < n; i++)
        lane[i % LANES] += x[i];
    return sum_of_lanes(lane);
}

static inline float dot_of(const float *x, const float *y, int64_t n)
{
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            lane[l] += x[i + l] * y[i + l];
    }
    for (; i < n; i++)
        lane[i % LANES] += x[i] * y[i];
    return sum_of_lanes(lane);
}

/* The largest of n > 0 numbers. The compiler may reorder the comparisons: the result stays the same. */
static inline float max_of(const float *x, int64_t n)
{
    float largest = x[0];
#pragma omp simd reduction(max : largest)
    for (int64_t i = 1; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    return largest;
}

/* ---- exp ---- */

/* exp(x), to about 1 unit in the last place; NaN stays NaN. The C library's expf() is as exact, but loops that call
 * it are not vectorised. With x = n ln 2 + r: exp(x) = 2^n exp(r), and for |r| <= ln(2) / 2 the Taylor series up to
 * r^7 is exact enough. */
static inline float exp_of(float x)
{
    const float round_to_integer = 0x1.8p23f; /* above 2^23 a float has no fraction: adding this rounds */
    const float shifted = x * 1.44269504f + round_to_integer;
    const float n = shifted - round_to_integer;
    const float ln2_high = 0x1.63p-1f, ln2_low = -0x1.bd0106p-13f; /* n * ln2_high is exact */
    const float r = (x - n * ln2_high) - n * ln2_low;
    float series = 1.0f / 5040;
    series = series * r + 1.0f / 720;
    series = series * r + 1.0f / 120;
    series = series * r + 1.0f / 24;
    series = series * r + 1.0f / 6;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    /* times 2^n: the low bits of `shifted` hold n as an integer; add it to the exponent */
    const float result = float_of(bits_of(series) + (bits_of(shifted) << 23));
    const float not_too_large = x > 88.72283f ? INFINITY : result;
    return x < -87.33654f ? 0.0f : not_too_large; /* smaller results would be subnormal */
}

/* ---- BLAS ---- */

/* c (m, n) = alpha * a b + beta * c, with a (m, k) or its transpose, b (k, n) or its transpose. If beta = 0, c may
 * hold anything before. stride: numbers from one stored row to the next. */
static inline void matmul(float *c, int64_t c_stride, float alpha, const float *a, int64_t a_stride,
                          CBLAS_TRANSPOSE a_transposed, const float *b, int64_t b_stride,
                          CBLAS_TRANSPOSE b_transposed, float beta, int64_t m, int64_t n, int64_t k)
{
    if (m == 0 || n == 0)
        return;
    for (int64_t row = 0; row < m && k == 0 && beta == 0; row++)
        memset(c + row * c_stride, 0, (size_t)n * sizeof *c); /* an empty sum */
    if (k == 0)
        return; /* BLAS refuses strides of 0 */
    cblas_sgemm(CblasRowMajor, a_transposed, b_transposed, (int)m, (int)n, (int)k, alpha, a, (int)a_stride, b,
                (int)b_stride, beta, c, (int)c_stride);
}

/* ---- products of rounded numbers: device_cpu_rounded.c, or another file that is linked in its place ----
 * That file also defines device_rounded_bytes() and device_store_rounded(), so it chooses the format in memory. */

/* c (m, n) = a b, or c += a b if `add`. a (m, k) and b (k, n) are rounded to `precision` and stored row by row;
 * transposed: the matrix is stored as its transpose. */
void rounded_product(float *c, const void *a, bool a_transposed, const void *b, bool b_transposed, bool add, int64_t m,
                     int64_t n, int64_t k, DType precision);
/* sum += the n rounded numbers from number `first` on. */
void rounded_accumulate(float *sum, const void *rounded, int64_t first, DType precision, int64_t n);
/* For device_description(): "" if the products are emulated, else a comma and the library that computes them. */
const char *rounded_products_by(void);

#endif
