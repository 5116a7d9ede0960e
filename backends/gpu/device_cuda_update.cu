/* device_cuda_update.cu: the kernels on an NVIDIA GPU, last part: losses, norm and clipping, optimizers, accuracy, half
 * precision. */
#include "backends/gpu/device_cuda.h"

#include <float.h>

/* A sum over all numbers uses at most SUM_BLOCKS blocks, and each writes one partial sum. The number of blocks, and so
 * the order of the sum, depends only on the count, not on the GPU. */
enum { SUM_BLOCKS = 256 };

/* `wanted`, limited to 1 to SUM_BLOCKS. */
static unsigned blocks_for_sum(int64_t wanted)
{
    if (wanted > SUM_BLOCKS)
        return SUM_BLOCKS;
    return wanted > 0 ? (unsigned)wanted : 1;
}

/* ---- losses ---- */

/* *out = factor * the sum of the `count` partial sums. Launch with one block. */
template <typename Number>
static __global__ void add_up_kernel(Number *out, const double *partial, int64_t count, double factor)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += THREADS)
        sum += partial[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *out = (Number)(factor * sum);
}

/* One block per row. One pass finds the largest logit and the sum of exp(x - largest) together: when a thread finds a
 * larger logit, it scales its sum down to it. */
static __global__ void cross_entropy_forward_kernel(double *row_loss, float *row_max, float *row_sum,
                                                    const float *logits, const int32_t *targets, int64_t V)
{
    const int64_t row = blockIdx.x;
    const float *x = logits + row * V;
    float largest = -FLT_MAX, sum = 0;
    for (int64_t i = 4 * threadIdx.x; i < V; i += 4 * blockDim.x) {
        const Four<float> four = load_four(x, i, V, -INFINITY);
        for (int k = 0; k < 4; k++) {
            const float before = largest;
            largest = fmaxf(largest, four.at[k]);
            if (largest > before)
                sum *= expf(before - largest);
            sum += expf(four.at[k] - largest);
        }
    }
    const float largest_of_row = block_max(largest);
    const float sum_of_row = block_sum(sum * expf(largest - largest_of_row));
    if (threadIdx.x == 0) {
        row_max[row] = largest_of_row;
        row_sum[row] = sum_of_row;
        /* -log(p[target]), computed from the logits, because p[target] itself may be 0 in float32 */
        row_loss[row] = 0;
        if (targets[row] >= 0)
            row_loss[row] = log((double)sum_of_row) - ((double)x[targets[row]] - (double)largest_of_row);
    }
}

/* Threads of a row's block: fewer for short rows. */
static unsigned threads_for_row(int64_t V)
{
    return V > 4096 ? 1024 : THREADS;
}

void device_cross_entropy_forward(float *loss, float *row_max, float *row_sum, const float *logits,
                                  const int32_t *targets, int64_t rows, int64_t V)
{
    double *row_loss = (double *)cuda_scratch((size_t)rows * sizeof *row_loss);
    const unsigned blocks = (unsigned)rows, threads = threads_for_row(V);
    if (rows > 0) {
        cross_entropy_forward_kernel<<<blocks, threads, 0, cudaStreamPerThread>>>(row_loss, row_max, row_sum,
                                                                                  logits, targets, V);
        CHECK_CUDA(cudaGetLastError());
    }
    add_up_kernel<float><<<1, THREADS, 0, cudaStreamPerThread>>>(loss, row_loss, rows, 1);
    CHECK_CUDA(cudaGetLastError());
}

static __global__ void cross_entropy_backward_kernel(Gradient dlogits, const float *dloss, const float *logits,
                                                     const float *row_max, const float *row_sum,
                                                     const int32_t *targets, int64_t V)
{
    const int64_t row = blockIdx.x, first = row * V, end = first + V, target = first + targets[row];
    const float d = targets[row] >= 0 ? *dloss : 0; /* 0: a masked row */
    const float largest = row_max[row], factor = 1 / row_sum[row];
    for (int64_t i = first + 4 * threadIdx.x; i < end; i += 4 * blockDim.x) {
        Four<float> dx = four_so_far(dlogits, i, end);
        const Four<float> x = load_four(logits, i, end);
        for (int k = 0; k < 4; k++) {
            const float p = expf(x.at[k] - largest) * factor;
            /* forward: loss += log(sum of exp(x)) - x[target], so dx = dloss * (softmax(x) - (1 at the target)) */
            dx.at[k] += d * (p - (i + k == target ? 1 : 0));
        }
        store_gradient(dlogits, i, end, dx);
    }
}

void device_cross_entropy_backward(Gradient dlogits, const float *dloss, const float *logits, const float *row_max,
                                   const float *row_sum, const int32_t *targets, int64_t rows, int64_t V)
{
    if (rows == 0)
        return;
    const unsigned blocks = (unsigned)rows, threads = threads_for_row(V);
    cross_entropy_backward_kernel<<<blocks, threads, 0, cudaStreamPerThread>>>(dlogits, dloss, logits, row_max,
                                                                               row_sum, targets, V);
    CHECK_CUDA(cudaGetLastError());
}

static __global__ void squared_errors_kernel(double *partial, const float *prediction, const float *target,
                                             int64_t count)
{
    double sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += gridDim.x * THREADS) {
        const double difference = (double)prediction[i] - (double)target[i];
        sum += difference * difference;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

void device_mse_forward(float *loss, const float *prediction, const float *target, int64_t rows, int64_t n)
{
    double *partial = (double *)cuda_scratch(SUM_BLOCKS * sizeof *partial);
    const unsigned blocks = blocks_for_sum(blocks_for(rows * n, THREADS));
    squared_errors_kernel<<<blocks, THREADS, 0, cudaStreamPerThread>>>(partial, prediction, target, rows * n);
    CHECK_CUDA(cudaGetLastError());
    const double factor = n > 0 ? 1.0 / (double)n : 0; /* the mean over each row, summed over rows */
    add_up_kernel<float><<<1, THREADS, 0, cudaStreamPerThread>>>(loss, partial, blocks, factor);
    CHECK_CUDA(cudaGetLastError());
}

static __global__ void mse_backward_kernel(Gradient dprediction, const float *dloss, const float *prediction,
                                           const float *target, int64_t n, int64_t count)
{
    const int64_t i = first_of_four();
    const float factor = *dloss * 2 / (float)n;
    Four<float> sum = four_so_far(dprediction, i, count);
    const Four<float> a = load_four(prediction, i, count), b = load_four(target, i, count);
    for (int k = 0; k < 4; k++) {
        /* forward: loss += (prediction - target)^2 / n */
        sum.at[k] += factor * (a.at[k] - b.at[k]);
    }
    store_four(dprediction.values, i, count, sum);
}

void device_mse_backward(Gradient dprediction, const float *dloss, const float *prediction, const float *target,
                         int64_t rows, int64_t n)
{
    const int64_t count = rows * n;
    if (count == 0)
        return;
    const unsigned blocks = blocks_of_fours(count);
    mse_backward_kernel<<<blocks, THREADS, 0, cudaStreamPerThread>>>(dprediction, dloss, prediction, target, n, count);
    CHECK_CUDA(cudaGetLastError());
}

/* ---- norm and clipping: the results stay on the device ---- */

/* One thread block for each block of x. */
static __global__ void sum_of_squares_kernel(double *sums, const float *x, int64_t n)
{
    const int64_t start = (int64_t)blockIdx.x * SQUARES_BLOCK;
    const int64_t end = start + SQUARES_BLOCK < n ? start + SQUARES_BLOCK : n;
    double sum = 0;
    for (int64_t i = start + 4 * threadIdx.x; i < end; i += 4 * THREADS) {
        const Four<float> four = load_four(x, i, n);
        for (int k = 0; k < 4; k++)
            sum += (double)four.at[k] * (double)four.at[k];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum;
}

void device_sum_of_squares(double *sums, const float *x, int64_t n)
{
    if (n == 0)
        return;
    sum_of_squares_kernel<<<(unsigned)squares_blocks(n), THREADS, 0, cudaStreamPerThread>>>(sums, x, n);
    CHECK_CUDA(cudaGetLastError());
}

/* Launch with one block. */
static __global__ void clip_factor_kernel(float *factor, const double *sums, int64_t count, double max_norm)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += THREADS)
        sum += sums[i];
    sum = block_sum(sum);
    const double wanted = max_norm / (sqrt(sum) + 1e-6); /* the 1e-6 is PyTorch's */
    if (threadIdx.x == 0)
        *factor = !isfinite(sum) ? NAN : wanted < 1 ? (float)wanted : 1;
}

void device_clip_factor(float *factor, const double *sums, int64_t count, double max_norm)
{
    clip_factor_kernel<<<1, THREADS, 0, cudaStreamPerThread>>>(factor, sums, count, max_norm);
    CHECK_CUDA(cudaGetLastError());
}

/* ---- optimizers: one pass, so each number is read once and written once ---- */

static __global__ void sgd_kernel(DeviceUpdate update, float lr, float weight_decay)
{
    const int64_t i = first_of_four(), n = update.n;
    if (isnan(*update.factor))
        return; /* in all threads: skip the step */
    Four<float> w = load_four(update.weight, i, n);
    const Four<float> g = load_four(update.grad, i, n);
    for (int k = 0; k < 4; k++)
        w.at[k] -= lr * (g.at[k] + weight_decay * w.at[k]);
    store_four(update.weight, i, n, w);
}

static __global__ void sgd_momentum_kernel(DeviceUpdate update, float *momentum_buffer, float lr, float keep,
                                           float weight_decay)
{
    const int64_t i = first_of_four(), n = update.n;
    if (isnan(*update.factor))
        return;
    Four<float> w = load_four(update.weight, i, n), velocity = load_four(momentum_buffer, i, n);
    const Four<float> g = load_four(update.grad, i, n);
    for (int k = 0; k < 4; k++) {
        velocity.at[k] = keep * velocity.at[k] + (g.at[k] + weight_decay * w.at[k]);
        w.at[k] -= lr * velocity.at[k];
    }
    store_four(momentum_buffer, i, n, velocity);
    store_four(update.weight, i, n, w);
}

void device_sgd(const DeviceUpdate *update, float *momentum_buffer, float lr, float momentum, float weight_decay,
                bool first_step)
{
    const unsigned blocks = blocks_of_fours(update->n);
    const float keep = first_step ? 0 : momentum;
    if (update->n == 0)
        return;
    if (momentum_buffer == NULL)
        sgd_kernel<<<blocks, THREADS, 0, cudaStreamPerThread>>>(*update, lr, weight_decay);
    else
        sgd_momentum_kernel<<<blocks, THREADS, 0, cudaStreamPerThread>>>(*update, momentum_buffer, lr, keep,
                                                                         weight_decay);
    CHECK_CUDA(cudaGetLastError());
}

/* Arguments of AdamW's kernel, derived once on the host. */
struct AdamW {
    float beta1, beta2, eps;
    float keep;             /* 1 - lr * weight_decay */
    float step_size;        /* lr / correction1, because m starts at 0 */
    float root_correction2; /* sqrt(correction2), because v starts at 0 */
};

static __global__ void adamw_kernel(DeviceUpdate update, float *m, float *v, AdamW options)
{
    const int64_t i = first_of_four(), n = update.n;
    if (isnan(*update.factor))
        return;
    Four<float> w = load_four(update.weight, i, n), mean = load_four(m, i, n), square = load_four(v, i, n);
    const Four<float> g = load_four(update.grad, i, n);
    for (int k = 0; k < 4; k++) {
        mean.at[k] = options.beta1 * mean.at[k] + (1 - options.beta1) * g.at[k];
        square.at[k] = options.beta2 * square.at[k] + (1 - options.beta2) * g.at[k] * g.at[k];
        w.at[k] = options.keep * w.at[k] -
                  options.step_size * mean.at[k] / (sqrtf(square.at[k]) / options.root_correction2 + options.eps);
    }
    store_four(m, i, n, mean);
    store_four(v, i, n, square);
    store_four(update.weight, i, n, w);
}

void device_adamw(const DeviceUpdate *update, float *m, float *v, float lr, float beta1, float beta2, float eps,
                  float weight_decay, float correction1, float correction2)
{
    if (update->n == 0)
        return;
    const AdamW options = {beta1, beta2, eps, 1 - lr * weight_decay, lr / correction1, sqrtf(correction2)};
    adamw_kernel<<<blocks_of_fours(update->n), THREADS, 0, cudaStreamPerThread>>>(*update, m, v, options);
    CHECK_CUDA(cudaGetLastError());
}

/* ---- accuracy ---- */

/* Adds the blocks' counts, on the host. */
static int64_t total_of_counts(const int32_t *on_device, unsigned blocks)
{
    int32_t counts[SUM_BLOCKS];
    device_to_host(counts, on_device, blocks * sizeof *counts);
    int64_t total = 0;
    for (unsigned i = 0; i < blocks; i++)
        total += counts[i];
    return total;
}

/* Each block counts its correct rows. If several logits are the largest, the prediction is the first of them. A row
 * with a NaN counts as wrong, because no comparison holds. */
static __global__ void count_correct_kernel(int32_t *counts, const float *logits, const int32_t *targets, int64_t rows,
                                            int64_t V)
{
    int32_t correct = 0;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *x = logits + row * V;
        const int64_t target = targets[row];
        const float answer = x[target];
        int32_t better = 0;
        for (int64_t i = threadIdx.x; i < V; i += THREADS)
            better |= !(i < target ? x[i] < answer : x[i] <= answer);
        correct += block_sum(better) == 0;
    }
    if (threadIdx.x == 0)
        counts[blockIdx.x] = correct;
}

int64_t device_count_correct(const float *logits, const int32_t *targets, int64_t rows, int64_t V)
{
    int32_t *counts = (int32_t *)cuda_scratch(SUM_BLOCKS * sizeof *counts);
    const unsigned blocks = blocks_for_sum(rows);
    count_correct_kernel<<<blocks, THREADS, 0, cudaStreamPerThread>>>(counts, logits, targets, rows, V);
    CHECK_CUDA(cudaGetLastError());
    return total_of_counts(counts, blocks);
}

/* ---- half precision, for communication and for operands ---- */

template <typename Half> static __global__ void to_half_kernel(Half *to, const float *x, int64_t n)
{
    const int64_t i = first_of_four();
    store_rounded(to, i, n, load_four(x, i, n));
}

void device_to_half(void *to, const float *x, DType dtype, int64_t n)
{
    const unsigned blocks = blocks_of_fours(n);
    if (n == 0)
        return;
    if (dtype == DTYPE_BF16)
        to_half_kernel<__nv_bfloat16><<<blocks, THREADS, 0, cudaStreamPerThread>>>((__nv_bfloat16 *)to, x, n);
    else
        to_half_kernel<__half><<<blocks, THREADS, 0, cudaStreamPerThread>>>((__half *)to, x, n);
    CHECK_CUDA(cudaGetLastError());
}

template <typename Half> static __global__ void from_half_kernel(float *x, const Half *from, int64_t n)
{
    const int64_t i = first_of_four();
    const Four<Half> four = load_four(from, i, n);
    Four<float> wide;
    for (int k = 0; k < 4; k++)
        wide.at[k] = to_float(four.at[k]);
    store_four(x, i, n, wide);
}

void device_from_half(float *x, const void *from, DType dtype, int64_t n)
{
    const unsigned blocks = blocks_of_fours(n);
    if (n == 0)
        return;
    if (dtype == DTYPE_BF16)
        from_half_kernel<__nv_bfloat16><<<blocks, THREADS, 0, cudaStreamPerThread>>>(x, (const __nv_bfloat16 *)from, n);
    else
        from_half_kernel<__half><<<blocks, THREADS, 0, cudaStreamPerThread>>>(x, (const __half *)from, n);
    CHECK_CUDA(cudaGetLastError());
}
