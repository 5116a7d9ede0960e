/* device_cuda_layernorm.cu: the kernels on an NVIDIA GPU, third part: layernorm and embedding. */
#include "backends/gpu/device_cuda.h"

/* ---- layernorm: one warp per row, each thread reads four neighbours at a time ---- */

constexpr float LAYERNORM_EPS = 1e-5f;
enum { ROWS_PER_BLOCK = THREADS / WARP };

static __device__ inline int64_t row_of_warp()
{
    return (int64_t)blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / WARP;
}

static __global__ void layernorm_forward_kernel(float *out, float *mean, float *rstd, const float *x,
                                                const float *weight, const float *bias, int64_t rows, int64_t n)
{
    const int64_t row = row_of_warp(), lane = threadIdx.x % WARP;
    if (row >= rows)
        return;
    x += row * n;
    float sum = 0, squares = 0;
    for (int64_t i = 4 * lane; i < n; i += 4 * WARP) {
        const Four<float> in = load_four(x, i, n);
        sum += (in.at[0] + in.at[1]) + (in.at[2] + in.at[3]);
    }
    const float m = warp_sum(sum) / (float)n;
    for (int64_t i = 4 * lane; i < n; i += 4 * WARP) {
        const Four<float> in = load_four(x, i, n, m); /* beyond the row: m, at distance 0 from the mean */
        for (int k = 0; k < 4; k++)
            squares += (in.at[k] - m) * (in.at[k] - m);
    }
    const float r = 1 / sqrtf(warp_sum(squares) / (float)n + LAYERNORM_EPS);
    for (int64_t i = 4 * lane; i < n; i += 4 * WARP) {
        Four<float> in = load_four(x, i, n);
        const Four<float> w = load_four(weight, i, n), b = load_four(bias, i, n);
        for (int k = 0; k < 4; k++)
            in.at[k] = (in.at[k] - m) * r * w.at[k] + b.at[k];
        store_four(out + row * n, i, n, in);
    }
    if (lane == 0) {
        mean[row] = m;
        rstd[row] = r;
    }
}

void device_layernorm_forward(float *out, float *mean, float *rstd, const float *x, const float *weight,
                              const float *bias, int64_t rows, int64_t n)
{
    if (rows == 0 || n == 0)
        return;
    layernorm_forward_kernel<<<blocks_for(rows, ROWS_PER_BLOCK), THREADS, 0, cudaStreamPerThread>>>(
        out, mean, rstd, x, weight, bias, rows, n);
    CHECK_CUDA(cudaGetLastError());
}

/* With norm = (x - mean) rstd and dnorm = dout weight:
 * dx = rstd (dnorm - mean(dnorm) - norm mean(dnorm norm)), because the mean and the variance depend on x too. */
static __global__ void layernorm_dx_kernel(Gradient dx, const float *dout, const float *x, const float *mean,
                                           const float *rstd, const float *weight, int64_t rows, int64_t n)
{
    const int64_t row = row_of_warp(), lane = threadIdx.x % WARP;
    if (row >= rows)
        return;
    dx.values += row * n;
    dout += row * n;
    x += row * n;
    const float m = mean[row], r = rstd[row];
    float sum = 0, sum_with_norm = 0;
    for (int64_t i = 4 * lane; i < n; i += 4 * WARP) {
        const Four<float> in = load_four(x, i, n), d = load_four(dout, i, n), w = load_four(weight, i, n);
        for (int k = 0; k < 4; k++) {
            const float dnorm = d.at[k] * w.at[k];
            sum += dnorm;
            sum_with_norm += dnorm * ((in.at[k] - m) * r);
        }
    }
    const float mean_dnorm = warp_sum(sum) / (float)n;
    const float mean_dnorm_norm = warp_sum(sum_with_norm) / (float)n;
    for (int64_t i = 4 * lane; i < n; i += 4 * WARP) {
        const Four<float> in = load_four(x, i, n), d = load_four(dout, i, n), w = load_four(weight, i, n);
        Four<float> result = four_so_far(dx, i, n);
        for (int k = 0; k < 4; k++) {
            const float norm = (in.at[k] - m) * r;
            /* forward: out = norm * weight + bias */
            result.at[k] += r * (d.at[k] * w.at[k] - mean_dnorm - norm * mean_dnorm_norm);
        }
        store_four(dx.values, i, n, result);
    }
}

/* First stage of the gradients of weight and bias, as in sum_rows_kernel: both in one pass over dout. */
static __global__ void layernorm_dweight_kernel(float *dweight, float *dbias, const float *dout, const float *x,
                                                const float *mean, const float *rstd, int64_t rows, int64_t n)
{
    const int64_t column = (int64_t)blockIdx.y * WARP + threadIdx.x;
    const int64_t first = (int64_t)blockIdx.x * SUM_ROWS;
    const int64_t end = first + SUM_ROWS < rows ? first + SUM_ROWS : rows;
    float sum = 0, sum_with_norm = 0;
    if (column < n) {
        for (int64_t row = first + threadIdx.y; row < end; row += SUM_LANES) {
            const float d = dout[row * n + column];
            /* forward: out = (x - mean) * rstd * weight + bias */
            sum_with_norm += d * ((x[row * n + column] - mean[row]) * rstd[row]);
            sum += d;
        }
    }
    sum_with_norm = sum_of_lanes(sum_with_norm);
    sum = sum_of_lanes(sum);
    if (column < n && threadIdx.y == 0) {
        dweight[blockIdx.x * n + column] = sum_with_norm;
        dbias[blockIdx.x * n + column] = sum;
    }
}

void device_layernorm_backward(Gradient dx, Gradient dweight, Gradient dbias, const float *dout, const float *x,
                               const float *mean, const float *rstd, const float *weight, int64_t rows, int64_t n)
{
    if (rows == 0) {
        clear_if_first(dweight, n);
        clear_if_first(dbias, n);
    }
    if (rows == 0 || n == 0)
        return;
    if (dx.values != NULL) {
        const unsigned blocks = blocks_for(rows, ROWS_PER_BLOCK);
        layernorm_dx_kernel<<<blocks, THREADS, 0, cudaStreamPerThread>>>(dx, dout, x, mean, rstd, weight, rows, n);
        CHECK_CUDA(cudaGetLastError());
    }
    if (dweight.values == NULL && dbias.values == NULL)
        return;
    const int64_t tiles = blocks_for(rows, SUM_ROWS);
    const dim3 grid(blocks_for(rows, SUM_ROWS), blocks_for(n, WARP));
    float *weight_sums = (float *)cuda_scratch((size_t)(2 * tiles * n) * sizeof *weight_sums);
    float *bias_sums = weight_sums + tiles * n;
    layernorm_dweight_kernel<<<grid, SUM_BLOCK, 0, cudaStreamPerThread>>>(weight_sums, bias_sums, dout, x, mean, rstd,
                                                                          rows, n);
    CHECK_CUDA(cudaGetLastError());
    if (dweight.values != NULL)
        cuda_contribute_partial_sums(dweight, weight_sums, tiles, n);
    if (dbias.values != NULL)
        cuda_contribute_partial_sums(dbias, bias_sums, tiles, n);
}

/* ---- embedding ---- */

/* One block per position of the batch. */
static __global__ void embedding_forward_kernel(float *out, const int32_t *tokens, const float *token_table,
                                                const float *position_table, int64_t T, int64_t C)
{
    const int64_t position = blockIdx.x;
    const float *of_token = token_table + tokens[position] * C, *of_place = position_table + position % T * C;
    for (int64_t i = 4 * threadIdx.x; i < C; i += 4 * THREADS) {
        Four<float> sum = load_four(of_token, i, C);
        const Four<float> other = load_four(of_place, i, C);
        for (int k = 0; k < 4; k++)
            sum.at[k] += other.at[k];
        store_four(out + position * C, i, C, sum);
    }
}

void device_embedding_forward(float *out, const int32_t *tokens, const float *token_table,
                              const float *position_table, int64_t B, int64_t T, int64_t C)
{
    const unsigned positions = (unsigned)(B * T);
    if (positions == 0)
        return;
    embedding_forward_kernel<<<positions, THREADS, 0, cudaStreamPerThread>>>(out, tokens, token_table, position_table,
                                                                             T, C);
    CHECK_CUDA(cudaGetLastError());
}

/* Sorts the n positions of the batch by their token; positions of one token stay in the order of the text. Each thread
 * finds the place of one position in `sorted`: after all positions with a smaller token, and after all earlier
 * positions with the same token. That takes n comparisons per thread, but in shared memory, and for any size of the
 * vocabulary. group[place]: at a token's first place, the number of its positions; 0 at its other places. */
static __global__ void sort_by_token_kernel(int32_t *sorted, int32_t *group, const int32_t *tokens, int64_t n)
{
    __shared__ int32_t tile[THREADS];
    const int64_t mine = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int32_t token = mine < n ? tokens[mine] : 0;
    int32_t smaller = 0, equal = 0, equal_before = 0;
    for (int64_t first = 0; first < n; first += THREADS) {
        __syncthreads(); /* all threads have read the previous tile */
        if (first + threadIdx.x < n)
            tile[threadIdx.x] = tokens[first + threadIdx.x];
        __syncthreads();
        const int count = n - first < THREADS ? (int)(n - first) : THREADS;
        for (int k = 0; k < count; k++) {
            smaller += tile[k] < token;
            equal += tile[k] == token;
            equal_before += tile[k] == token && first + k < mine;
        }
    }
    if (mine < n) {
        sorted[smaller + equal_before] = (int32_t)mine;
        group[smaller + equal_before] = equal_before == 0 ? equal : 0;
    }
}

/* Block (x, y): the token whose positions begin at place x, columns from y * WARP; the warps share its positions. */
static __global__ void embedding_token_kernel(float *dtoken_table, const float *dout, const int32_t *tokens,
                                              const int32_t *sorted, const int32_t *group, int64_t C)
{
    const int count = group[blockIdx.x];
    if (count == 0)
        return;
    sorted += blockIdx.x;
    const int64_t column = (int64_t)blockIdx.y * WARP + threadIdx.x;
    float sum = 0;
    if (column < C)
        for (int k = threadIdx.y; k < count; k += SUM_LANES)
            sum += dout[sorted[k] * C + column];
    sum = sum_of_lanes(sum);
    if (column < C && threadIdx.y == 0) {
        /* forward: out[position] = token_table[tokens[position]] + ... */
        dtoken_table[tokens[sorted[0]] * C + column] += sum;
    }
}

/* Each thread sums four neighbours of the table over the batch. */
static __global__ void embedding_position_kernel(float *dposition_table, const float *dout, int64_t B, int64_t n)
{
    const int64_t i = first_of_four();
    Four<float> sum = load_four(dposition_table, i, n);
    for (int64_t b = 0; b < B; b++) {
        const Four<float> d = load_four(dout + b * n, i, n);
        for (int k = 0; k < 4; k++) {
            /* forward: out[b][t] = ... + position_table[t] */
            sum.at[k] += d.at[k];
        }
    }
    store_four(dposition_table, i, n, sum);
}

void device_embedding_backward(float *dtoken_table, float *dposition_table, const float *dout, const int32_t *tokens,
                               int64_t B, int64_t T, int64_t C)
{
    const int64_t n = B * T;
    if (n == 0 || C == 0)
        return;
    if (dtoken_table != NULL) {
        int32_t *sorted = (int32_t *)cuda_scratch((size_t)(2 * n) * sizeof *sorted);
        int32_t *group = sorted + n;
        const dim3 grid((unsigned)n, blocks_for(C, WARP));
        sort_by_token_kernel<<<blocks_for(n, THREADS), THREADS, 0, cudaStreamPerThread>>>(sorted, group, tokens, n);
        CHECK_CUDA(cudaGetLastError());
        embedding_token_kernel<<<grid, SUM_BLOCK, 0, cudaStreamPerThread>>>(dtoken_table, dout, tokens, sorted, group,
                                                                            C);
        CHECK_CUDA(cudaGetLastError());
    }
    if (dposition_table != NULL) {
        const unsigned blocks = blocks_of_fours(T * C);
        embedding_position_kernel<<<blocks, THREADS, 0, cudaStreamPerThread>>>(dposition_table, dout, B, T * C);
        CHECK_CUDA(cudaGetLastError());
    }
}
