/* device_cuda_elementwise.cu: the kernels on an NVIDIA GPU, first part: gradients, element-wise operations, rounded
 * numbers. Each thread takes four neighbours. Rules for all: device_cuda.h. */
#include "backends/gpu/device_cuda.h"

/* ---- gradients ---- */

void device_contribute(Gradient to, const float *x, int64_t n)
{
    if (to.add)
        device_accumulate(to.values, x, n);
    else if (to.dtype != DTYPE_F32)
        device_store_rounded(to.values, x, to.dtype, n);
    else
        device_copy(to.values, x, (size_t)n * sizeof *x);
}

/* ---- element-wise ---- */

static __global__ void add_kernel(float *out, const float *a, const float *b, int64_t n)
{
    const int64_t i = first_of_four();
    Four<float> sum = load_four(a, i, n);
    const Four<float> other = load_four(b, i, n);
    for (int k = 0; k < 4; k++)
        sum.at[k] += other.at[k];
    store_four(out, i, n, sum);
}

void device_add(float *out, const float *a, const float *b, int64_t n)
{
    if (n == 0)
        return; /* CUDA refuses a launch of no blocks */
    add_kernel<<<blocks_of_fours(n), THREADS, 0, cudaStreamPerThread>>>(out, a, b, n);
    CHECK_CUDA(cudaGetLastError());
}

void device_accumulate(float *out, const float *x, int64_t n)
{
    device_add(out, out, x, n);
}

static __global__ void fill_kernel(float *x, float value, int64_t n)
{
    const int64_t i = first_of_four();
    store_four(x, i, n, Four<float>{{value, value, value, value}});
}

void device_fill(float *x, float value, int64_t n)
{
    if (n == 0)
        return;
    fill_kernel<<<blocks_of_fours(n), THREADS, 0, cudaStreamPerThread>>>(x, value, n);
    CHECK_CUDA(cudaGetLastError());
}

static __global__ void scale_kernel(float *x, float factor, int64_t n)
{
    const int64_t i = first_of_four();
    Four<float> four = load_four(x, i, n);
    for (int k = 0; k < 4; k++)
        four.at[k] *= factor;
    store_four(x, i, n, four);
}

void device_scale(float *x, float factor, int64_t n)
{
    if (n == 0)
        return;
    scale_kernel<<<blocks_of_fours(n), THREADS, 0, cudaStreamPerThread>>>(x, factor, n);
    CHECK_CUDA(cudaGetLastError());
}

static __global__ void scale_by_kernel(float *x, const float *factor, int64_t n)
{
    const int64_t i = first_of_four();
    const float by = *factor;
    if (by == 1)
        return; /* nothing changes */
    Four<float> four = load_four(x, i, n);
    for (int k = 0; k < 4; k++)
        four.at[k] *= by;
    store_four(x, i, n, four);
}

void device_scale_by(float *x, const float *factor, int64_t n)
{
    if (n == 0)
        return;
    scale_by_kernel<<<blocks_of_fours(n), THREADS, 0, cudaStreamPerThread>>>(x, factor, n);
    CHECK_CUDA(cudaGetLastError());
}

static __global__ void round_kernel(float *out, const float *x, DType precision, int64_t n)
{
    const int64_t i = first_of_four();
    Four<float> four = load_four(x, i, n);
    for (int k = 0; k < 4; k++)
        four.at[k] = nearest(four.at[k], precision);
    store_four(out, i, n, four);
}

void device_round(float *out, const float *x, DType precision, int64_t n)
{
    if (n == 0)
        return;
    round_kernel<<<blocks_of_fours(n), THREADS, 0, cudaStreamPerThread>>>(out, x, precision, n);
    CHECK_CUDA(cudaGetLastError());
}

static __global__ void relu_forward_kernel(float *out, const float *x, int64_t n)
{
    const int64_t i = first_of_four();
    Four<float> four = load_four(x, i, n);
    for (int k = 0; k < 4; k++)
        four.at[k] = four.at[k] < 0 ? 0 : four.at[k]; /* written so that NaN stays NaN */
    store_four(out, i, n, four);
}

void device_relu_forward(float *out, const float *x, int64_t n)
{
    if (n == 0)
        return;
    relu_forward_kernel<<<blocks_of_fours(n), THREADS, 0, cudaStreamPerThread>>>(out, x, n);
    CHECK_CUDA(cudaGetLastError());
}

static __global__ void relu_backward_kernel(Gradient dx, const float *x, const float *dout, int64_t n)
{
    const int64_t i = first_of_four();
    Four<float> sum = four_so_far(dx, i, n);
    const Four<float> in = load_four(x, i, n), d = load_four(dout, i, n);
    for (int k = 0; k < 4; k++) {
        /* forward: out = x < 0 ? 0 : x. At 0 the gradient is defined as 0, as in PyTorch. */
        sum.at[k] += in.at[k] > 0 ? d.at[k] : 0;
    }
    store_four(dx.values, i, n, sum);
}

void device_relu_backward(Gradient dx, const float *x, const float *dout, int64_t n)
{
    if (n == 0)
        return;
    relu_backward_kernel<<<blocks_of_fours(n), THREADS, 0, cudaStreamPerThread>>>(dx, x, dout, n);
    CHECK_CUDA(cudaGetLastError());
}

/* GELU's tanh form is x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3). Because (1 + tanh(u)) / 2 = sigmoid(2u),
 * it equals x sigmoid(2u): one exp, and no cancellation where tanh(u) is near -1. */
constexpr float GELU_SLOPE = 1.59576912f; /* 2 sqrt(2/pi) */
constexpr float GELU_CUBIC = 0.044715f;

static __device__ inline float gelu(float x)
{
    const float two_u = GELU_SLOPE * x * (1 + GELU_CUBIC * x * x);
    return x * (1 / (1 + expf(-two_u)));
}

static __device__ inline float gelu_derivative(float x)
{
    const float square = x * x;
    const float two_u = GELU_SLOPE * x * (1 + GELU_CUBIC * square);
    const float dtwo_u = GELU_SLOPE * (1 + 3 * GELU_CUBIC * square); /* d(2u) / dx */
    const float sigmoid = 1 / (1 + expf(-two_u));
    return sigmoid + x * sigmoid * (1 - sigmoid) * dtwo_u; /* sigmoid' = sigmoid (1 - sigmoid) */
}

static __global__ void gelu_forward_kernel(float *out, const float *x, int64_t n)
{
    const int64_t i = first_of_four();
    Four<float> four = load_four(x, i, n);
    for (int k = 0; k < 4; k++)
        four.at[k] = gelu(four.at[k]);
    store_four(out, i, n, four);
}

void device_gelu_forward(float *out, const float *x, int64_t n)
{
    if (n == 0)
        return;
    gelu_forward_kernel<<<blocks_of_fours(n), THREADS, 0, cudaStreamPerThread>>>(out, x, n);
    CHECK_CUDA(cudaGetLastError());
}

static __global__ void gelu_backward_kernel(Gradient dx, const float *x, const float *dout, int64_t n)
{
    const int64_t i = first_of_four();
    Four<float> sum = four_so_far(dx, i, n);
    const Four<float> in = load_four(x, i, n), d = load_four(dout, i, n);
    for (int k = 0; k < 4; k++) {
        /* forward: out = gelu(x) */
        sum.at[k] += d.at[k] * gelu_derivative(in.at[k]);
    }
    store_four(dx.values, i, n, sum);
}

void device_gelu_backward(Gradient dx, const float *x, const float *dout, int64_t n)
{
    if (n == 0)
        return;
    gelu_backward_kernel<<<blocks_of_fours(n), THREADS, 0, cudaStreamPerThread>>>(dx, x, dout, n);
    CHECK_CUDA(cudaGetLastError());
}

/* ---- dropout: options_check.c rejects it on a GPU ---- */

void device_dropout(Gradient, const float *, const DropoutMask *, int64_t, int64_t)
{
    FAULT("there is no dropout on a GPU");
}

/* ---- rounded numbers ---- */

size_t device_rounded_bytes(DType precision, int64_t n)
{
    return (size_t)n * (precision == DTYPE_F32 ? 4 : 2);
}

void device_store_rounded(void *rounded, const float *x, DType precision, int64_t n)
{
    if (precision == DTYPE_F32)
        device_copy(rounded, x, (size_t)n * sizeof *x);
    else
        device_to_half(rounded, x, precision, n);
}
