/* device_cpu_layernorm.c: the kernels on the CPU, second part: layernorm and embedding. */
#include "device/device.h"
#include "device/device_cpu_math.h"

/* ---- layernorm ---- */

static const float LAYERNORM_EPS = 1e-5f;

/* The sum of (x - mean)^2. */
static float sum_of_squared_distances(const float *x, float mean, int64_t n)
{
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            lane[l] += (x[i + l] - mean) * (x[i + l] - mean);
    }
    for (; i < n; i++)
        lane[i % LANES] += (x[i] - mean) * (x[i] - mean);
    return sum_of_lanes(lane);
}

static void normalize_row(float *out, float *mean, float *rstd, const float *x, const float *weight, const float *bias,
                          int64_t n)
{
    const float m = sum_of(x, n) / (float)n;
    const float variance = sum_of_squared_distances(x, m, n) / (float)n;
    const float r = 1 / sqrtf(variance + LAYERNORM_EPS);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = (x[i] - m) * r * weight[i] + bias[i];
    *mean = m;
    *rstd = r;
}

void device_layernorm_forward(float *out, float *mean, float *rstd, const float *x, const float *weight,
                              const float *bias, int64_t rows, int64_t n)
{
    for (int64_t row = 0; row < rows && n > 0; row++)
        normalize_row(out + row * n, mean + row, rstd + row, x + row * n, weight, bias, n);
}

/* dx of one row. With norm = (x - mean) rstd and dnorm = dout weight:
 * dx = rstd (dnorm - mean(dnorm) - norm mean(dnorm norm)), because the mean and the variance depend on x too. */
static void layernorm_row_backward(Gradient dx, const float *dout, const float *x, float mean, float rstd,
                                   const float *weight, int64_t n)
{
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            lane[l] += dout[i + l] * weight[i + l] * ((x[i + l] - mean) * rstd);
    }
    for (; i < n; i++)
        lane[i % LANES] += dout[i] * weight[i] * ((x[i] - mean) * rstd);
    const float mean_dnorm = dot_of(dout, weight, n) / (float)n;
    const float mean_dnorm_norm = sum_of_lanes(lane) / (float)n;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        const float norm = (x[j] - mean) * rstd;
        /* forward: out = norm * weight + bias */
        dx.values[j] = so_far(dx, j) + rstd * (dout[j] * weight[j] - mean_dnorm - norm * mean_dnorm_norm);
    }
}

void device_layernorm_backward(Gradient dx, Gradient dweight, Gradient dbias, const float *dout, const float *x,
                               const float *mean, const float *rstd, const float *weight, int64_t rows, int64_t n)
{
    clear_if_first(dweight, n);
    clear_if_first(dbias, n);
    for (int64_t row = 0; row < rows; row++, x += n, dout += n) {
        const float m = mean[row], r = rstd[row];
        if (dx.values != NULL)
            layernorm_row_backward((Gradient){.values = dx.values + row * n, .add = dx.add}, dout, x, m, r, weight, n);
        if (dweight.values != NULL) {
#pragma omp simd
            for (int64_t i = 0; i < n; i++) {
                /* forward: out = (x - mean) * rstd * weight + bias */
                dweight.values[i] += dout[i] * ((x[i] - m) * r);
            }
        }
        if (dbias.values != NULL)
            device_accumulate(dbias.values, dout, n);
    }
}

/* ---- embedding ---- */

void device_embedding_forward(float *out, const int32_t *tokens, const float *token_table,
                              const float *position_table, int64_t B, int64_t T, int64_t C)
{
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            device_add(out + (b * T + t) * C, token_table + tokens[b * T + t] * C, position_table + t * C, C);
}

void device_embedding_backward(float *dtoken_table, float *dposition_table, const float *dout, const int32_t *tokens,
                               int64_t B, int64_t T, int64_t C)
{
    /* A token may occur many times: its contributions are added in the order of the text. */
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++, dout += C) {
            /* forward: out = token_table[token] + position_table[t] */
            if (dtoken_table != NULL)
                device_accumulate(dtoken_table + tokens[b * T + t] * C, dout, C);
            if (dposition_table != NULL)
                device_accumulate(dposition_table + t * C, dout, C);
        }
}
