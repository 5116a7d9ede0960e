/* device_cpu_update.c: the kernels on the CPU, last part: losses, norm and clipping, optimizers, accuracy, half
 * precision. */
#include "device/device.h"
#include "device/device_cpu_math.h"

/* ---- losses ---- */

/* The sum of exp(x[i] - largest), in the order of sum_of(), without storing the terms. */
static float sum_of_exp(const float *x, float largest, int64_t n)
{
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            lane[l] += exp_of(x[i + l] - largest);
    }
    for (; i < n; i++)
        lane[i % LANES] += exp_of(x[i] - largest);
    return sum_of_lanes(lane);
}

void device_cross_entropy_forward(float *loss, float *row_max, float *row_sum, const float *logits,
                                  const int32_t *targets, int64_t rows, int64_t V)
{
    double total = 0;
    for (int64_t row = 0; row < rows; row++) {
        const float *x = logits + row * V;
        const float largest = max_of(x, V); /* subtracted so that exp cannot overflow */
        const float sum = sum_of_exp(x, largest, V);
        row_max[row] = largest;
        row_sum[row] = sum;
        /* -log(p[target]), computed from the logits, because p[target] itself may be 0 in float32 */
        if (targets[row] >= 0)
            total += log((double)sum) - ((double)x[targets[row]] - (double)largest);
    }
    *loss = (float)total;
}

void device_cross_entropy_backward(Gradient dlogits, const float *dloss, const float *logits, const float *row_max,
                                   const float *row_sum, const int32_t *targets, int64_t rows, int64_t V)
{
    for (int64_t row = 0; row < rows; row++) {
        const float d = targets[row] >= 0 ? *dloss : 0; /* 0: a masked row */
        const float *x = logits + row * V;
        const float largest = row_max[row], factor = 1 / row_sum[row];
        const Gradient dx = {.values = dlogits.values + row * V, .add = dlogits.add};
        /* forward: loss += log(sum of exp(x)) - x[target], so dx = dloss * (softmax(x) - (1 at the target, else 0)) */
#pragma omp simd
        for (int64_t i = 0; i < V; i++)
            dx.values[i] = so_far(dx, i) + d * (exp_of(x[i] - largest) * factor);
        if (targets[row] >= 0)
            dx.values[targets[row]] -= d;
    }
}

void device_mse_forward(float *loss, const float *prediction, const float *target, int64_t rows, int64_t n)
{
    double total = 0;
    for (int64_t i = 0; i < rows * n; i++) {
        const double difference = (double)prediction[i] - (double)target[i];
        total += difference * difference;
    }
    *loss = n > 0 ? (float)(total / (double)n) : 0; /* the mean over each row, summed over rows */
}

void device_mse_backward(Gradient dprediction, const float *dloss, const float *prediction, const float *target,
                         int64_t rows, int64_t n)
{
    const float factor = *dloss * 2 / (float)n; /* not used if n = 0 */
#pragma omp simd
    for (int64_t i = 0; i < rows * n; i++) {
        /* forward: loss += (prediction - target)^2 / n */
        dprediction.values[i] = so_far(dprediction, i) + factor * (prediction[i] - target[i]);
    }
}

/* ---- norm and clipping ---- */

static double block_sum_of_squares(const float *x, int64_t n)
{
    double lane[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            lane[l] += (double)x[i + l] * (double)x[i + l];
    }
    for (; i < n; i++)
        lane[i % LANES] += (double)x[i] * (double)x[i];
    for (int l = 0; l < LANES; l++)
        sum += lane[l];
    return sum;
}

void device_sum_of_squares(double *sums, const float *x, int64_t n)
{
    for (int64_t start = 0; start < n; start += SQUARES_BLOCK)
        *sums++ = block_sum_of_squares(x + start, n - start < SQUARES_BLOCK ? n - start : SQUARES_BLOCK);
}

void device_clip_factor(float *factor, const double *sums, int64_t count, double max_norm)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += sums[i];
    const double wanted = max_norm / (sqrt(sum) + 1e-6); /* the 1e-6 is PyTorch's */
    *factor = !isfinite(sum) ? NAN : wanted < 1 ? (float)wanted : 1;
}

/* ---- optimizers ---- */

void device_sgd(const DeviceUpdate *update, float *momentum_buffer, float lr, float momentum, float weight_decay,
                bool first_step)
{
    float *weight = update->weight;
    const float *grad = update->grad;
    if (isnan(*update->factor))
        return;
    if (momentum_buffer == NULL) {
#pragma omp simd
        for (int64_t i = 0; i < update->n; i++)
            weight[i] -= lr * (grad[i] + weight_decay * weight[i]);
        return;
    }
    const float keep = first_step ? 0 : momentum;
#pragma omp simd
    for (int64_t i = 0; i < update->n; i++) {
        const float velocity = keep * momentum_buffer[i] + (grad[i] + weight_decay * weight[i]);
        momentum_buffer[i] = velocity;
        weight[i] -= lr * velocity;
    }
}

void device_adamw(const DeviceUpdate *update, float *m, float *v, float lr, float beta1, float beta2, float eps,
                  float weight_decay, float correction1, float correction2)
{
    const float keep = 1 - lr * weight_decay;
    const float step_size = lr / correction1;
    const float root_correction2 = sqrtf(correction2);
    float *weight = update->weight;
    const float *grad = update->grad;
    if (isnan(*update->factor))
        return;
    /* One pass: each number is read once and written once, so memory bandwidth is the only limit. */
#pragma omp simd
    for (int64_t i = 0; i < update->n; i++) {
        const float mean = beta1 * m[i] + (1 - beta1) * grad[i];
        const float square = beta2 * v[i] + (1 - beta2) * grad[i] * grad[i];
        m[i] = mean;
        v[i] = square;
        weight[i] = keep * weight[i] - step_size * mean / (sqrtf(square) / root_correction2 + eps);
    }
}

/* ---- accuracy ---- */

/* If several logits are the largest, the prediction is the first of them. A row with a NaN counts as wrong, because no
 * comparison holds. */
static bool row_is_correct(const float *x, int64_t target, int64_t V)
{
    bool correct = x[target] <= x[target];
    for (int64_t i = 0; i < target; i++)
        correct &= x[i] < x[target];
    for (int64_t i = target + 1; i < V; i++)
        correct &= x[i] <= x[target];
    return correct;
}

int64_t device_count_correct(const float *logits, const int32_t *targets, int64_t rows, int64_t V)
{
    int64_t correct = 0;
    for (int64_t row = 0; row < rows; row++)
        correct += row_is_correct(logits + row * V, targets[row], V);
    return correct;
}

/* ---- for device_cpu_rounded.c ---- */

void device_accumulate(float *out, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] += x[i];
}

void device_round(float *out, const float *x, DType precision, int64_t n)
{
    if (precision == DTYPE_BF16) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            out[i] = nearest_bf16(x[i]);
    } else if (precision == DTYPE_F16) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            out[i] = nearest_f16(x[i]);
    } else if (out != x && n > 0) {
        memmove(out, x, (size_t)n * sizeof *x); /* float32: nothing to round */
    }
}

/* ---- half precision on the wire ---- */

void device_to_half(void *half, const float *x, DType dtype, int64_t n)
{
    half_from_floats(half, x, dtype, n);
}

void device_from_half(float *x, const void *half, DType dtype, int64_t n)
{
    half_to_floats(x, half, dtype, n);
}
