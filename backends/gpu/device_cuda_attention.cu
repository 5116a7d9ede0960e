/* device_cuda_attention.cu: causal self-attention on an NVIDIA GPU, after Dao et al., "FlashAttention" (2022).
 *
 * For each sequence and each head, with q, k, v (T, head width) cut out of qkv:
 *     scores (T, T) = q k^T / sqrt(head width)
 *     p             = softmax of each row over the positions up to its own; 0 after it
 *     out           = p v
 * p is never stored in memory. A block has one tile of rows and loops over the tiles of k and v. For each row it keeps
 * the largest score of the tiles before, the sum of exp(score - largest), and the sum of exp(score - largest) v. When a
 * tile has a larger score, both sums are scaled down to it ("online softmax"). Forward saves one number per row,
 * log(sum of exp(score)), (B, heads, T), from which backward recomputes any tile of p.
 *
 * These kernels are for float32. For bf16 and f16, those of device_cuda_attention_half.cu use tensor cores.
 */
#include "backends/gpu/device_cuda_attention.h"

/* A block has THREADS_X by THREADS_Y threads. In a tile of scores, thread (x, y) computes rows y, y + THREADS_Y, ...
 * and columns x, x + THREADS_X, ...; so 16 threads of one warp share a row. */
enum { THREADS_X = 16, THREADS_Y = 8 };
static const dim3 ATTENTION_BLOCK(THREADS_X, THREADS_Y);

/* Heads are padded with zeros to a WIDTH of 64 or 128. */
template <int WIDTH> constexpr int TILE = WIDTH == 64 ? 32 : 16;            /* rows: four tiles fit into 48 KiB */
template <int WIDTH> constexpr int ROWS = TILE<WIDTH> / THREADS_Y;          /* rows of one thread, */
template <int WIDTH> constexpr int SCORE_COLUMNS = TILE<WIDTH> / THREADS_X; /* its columns of the scores, */
template <int WIDTH> constexpr int HEAD_COLUMNS = WIDTH / THREADS_X;        /* and its columns of a head */

/* ---- tiles ---- */

/* Matrices in shared memory. Rows are 4 numbers longer, so that the same column of neighbouring rows is in different
 * memory banks, and each row is still aligned for a float4. */
template <int WIDTH> struct alignas(16) HeadTile { /* rows of q, k, v or dout */
    float at[TILE<WIDTH>][WIDTH + 4];
};
template <int WIDTH> struct alignas(16) ScoreTile { /* scores, p or dscores */
    float at[TILE<WIDTH>][TILE<WIDTH> + 4];
};

/* One thread's part of them, in registers. */
template <int WIDTH> struct HeadPart {
    float at[ROWS<WIDTH>][HEAD_COLUMNS<WIDTH>];
};
template <int WIDTH> struct ScorePart {
    float at[ROWS<WIDTH>][SCORE_COLUMNS<WIDTH>];
};

/* Copies rows first, first + 1, ... of a head; zeros below row T and right of the head's width. `rows` points
 * to the head's first number; `stride` numbers from one row to the next. */
template <int WIDTH>
static __device__ void load_tile(HeadTile<WIDTH> *tile, const float *rows, int64_t stride, int64_t first,
                                 AttentionShape shape)
{
    const int thread = threadIdx.y * THREADS_X + threadIdx.x;
    for (int i = thread; i < TILE<WIDTH> * WIDTH; i += THREADS_X * THREADS_Y) {
        const int row = i / WIDTH, column = i % WIDTH;
        const bool inside = first + row < shape.T && column < shape.width;
        tile->at[row][column] = inside ? rows[(first + row) * stride + column] : 0;
    }
}

/* Returns the thread's part of a b^T: each number is a row of a times a row of b. */
template <int WIDTH>
static __device__ ScorePart<WIDTH> rows_times_rows(const HeadTile<WIDTH> *a, const HeadTile<WIDTH> *b)
{
    ScorePart<WIDTH> sum = {};
#pragma unroll 4
    for (int d = 0; d < WIDTH; d += 4) {
        float4 of_a[ROWS<WIDTH>], of_b[SCORE_COLUMNS<WIDTH>];
        for (int i = 0; i < ROWS<WIDTH>; i++)
            of_a[i] = *(const float4 *)&a->at[threadIdx.y + i * THREADS_Y][d];
        for (int j = 0; j < SCORE_COLUMNS<WIDTH>; j++)
            of_b[j] = *(const float4 *)&b->at[threadIdx.x + j * THREADS_X][d];
        for (int i = 0; i < ROWS<WIDTH>; i++)
            for (int j = 0; j < SCORE_COLUMNS<WIDTH>; j++)
                sum.at[i][j] += of_a[i].x * of_b[j].x + of_a[i].y * of_b[j].y + of_a[i].z * of_b[j].z +
                                of_a[i].w * of_b[j].w;
    }
    return sum;
}

/* The head's column for number c of a thread's part: four neighbours in each 64. */
static __device__ inline int head_column(int c)
{
    return c / 4 * 64 + 4 * threadIdx.x + c % 4;
}

/* Adds the thread's part of p b. */
template <int WIDTH>
static __device__ void add_product(HeadPart<WIDTH> *sum, const ScoreTile<WIDTH> *p, const HeadTile<WIDTH> *b)
{
#pragma unroll 8
    for (int k = 0; k < TILE<WIDTH>; k++) {
        float of_p[ROWS<WIDTH>];
        for (int i = 0; i < ROWS<WIDTH>; i++)
            of_p[i] = p->at[threadIdx.y + i * THREADS_Y][k];
        for (int c = 0; c < HEAD_COLUMNS<WIDTH>; c += 4) {
            const float4 of_b = *(const float4 *)&b->at[k][head_column(c)];
            for (int i = 0; i < ROWS<WIDTH>; i++) {
                sum->at[i][c] += of_p[i] * of_b.x;
                sum->at[i][c + 1] += of_p[i] * of_b.y;
                sum->at[i][c + 2] += of_p[i] * of_b.z;
                sum->at[i][c + 3] += of_p[i] * of_b.w;
            }
        }
    }
}

/* Contributes factor * sum to the gradient of q, k or v, from row `first`; `head`: the head's first number in dqkv. */
template <int WIDTH>
static __device__ void contribute_rows(Gradient dqkv, int64_t head, const HeadPart<WIDTH> &sum, float factor,
                                       int64_t first, AttentionShape shape)
{
    dqkv.values += head;
    for (int i = 0; i < ROWS<WIDTH>; i++) {
        const int64_t row = first + threadIdx.y + i * THREADS_Y;
        for (int c = 0; c < HEAD_COLUMNS<WIDTH>; c++) {
            const int64_t at = row * 3 * shape.C + head_column(c);
            if (row < shape.T && head_column(c) < shape.width)
                dqkv.values[at] = so_far(dqkv, at) + factor * sum.at[i][c];
        }
    }
}

/* ---- forward: one block per tile of queries ---- */

/* State of a thread's rows; output is the sum of exp(score - largest) v. */
template <int WIDTH> struct Softmax {
    float largest[ROWS<WIDTH>], sum[ROWS<WIDTH>];
    HeadPart<WIDTH> output;
};

/* Adds one tile of scores: scales the earlier sums to the new largest score, and writes exp(score - largest) to p. */
template <int WIDTH>
static __device__ void online_softmax(Softmax<WIDTH> *softmax, ScoreTile<WIDTH> *p, ScorePart<WIDTH> scores,
                                      int64_t first_query, int64_t first_key, AttentionShape shape)
{
    for (int i = 0; i < ROWS<WIDTH>; i++) {
        const int row = threadIdx.y + i * THREADS_Y;
        float largest = -INFINITY, sum = 0;
        for (int j = 0; j < SCORE_COLUMNS<WIDTH>; j++) {
            const bool seen = first_key + threadIdx.x + j * THREADS_X <= first_query + row;
            scores.at[i][j] = seen ? scores.at[i][j] * shape.scale : -INFINITY;
            largest = fmaxf(largest, scores.at[i][j]);
        }
        largest = fmaxf(softmax->largest[i], warp_max(largest, THREADS_X)); /* finite, as every row sees key 0 */
        for (int j = 0; j < SCORE_COLUMNS<WIDTH>; j++) {
            const float weight = expf(scores.at[i][j] - largest);
            sum += weight;
            p->at[row][threadIdx.x + j * THREADS_X] = weight;
        }
        const float shrink = expf(softmax->largest[i] - largest);
        softmax->sum[i] = softmax->sum[i] * shrink + warp_sum(sum, THREADS_X);
        softmax->largest[i] = largest;
        for (int c = 0; c < HEAD_COLUMNS<WIDTH>; c++)
            softmax->output.at[i][c] *= shrink;
    }
}

template <int WIDTH>
static __global__ void attention_forward_kernel(float *out, float *saved, const float *qkv, AttentionShape shape)
{
    __shared__ HeadTile<WIDTH> q, k, v;
    __shared__ ScoreTile<WIDTH> p;
    const Place place = place_of_block(shape, TILE<WIDTH>, true);
    const int64_t C = shape.C, first = place.first;
    const float *head = qkv + place.row * 3 * C + place.column;
    Softmax<WIDTH> softmax = {};
    for (int i = 0; i < ROWS<WIDTH>; i++)
        softmax.largest[i] = -INFINITY;

    load_tile<WIDTH>(&q, head, 3 * C, first, shape);
    for (int64_t key = 0; key <= first; key += TILE<WIDTH>) {
        __syncthreads(); /* all threads have read the previous k and v */
        load_tile<WIDTH>(&k, head + C, 3 * C, key, shape);
        load_tile<WIDTH>(&v, head + 2 * C, 3 * C, key, shape);
        __syncthreads();
        online_softmax<WIDTH>(&softmax, &p, rows_times_rows<WIDTH>(&q, &k), first, key, shape);
        __syncwarp(); /* enough, because a warp reads only the rows of p that it wrote */
        add_product<WIDTH>(&softmax.output, &p, &v);
    }
    for (int i = 0; i < ROWS<WIDTH>; i++) {
        const int64_t row = first + threadIdx.y + i * THREADS_Y;
        for (int c = 0; c < HEAD_COLUMNS<WIDTH>; c++)
            if (row < shape.T && head_column(c) < shape.width)
                out[(place.row + row) * C + place.column + head_column(c)] = softmax.output.at[i][c] / softmax.sum[i];
        if (row < shape.T && threadIdx.x == 0)
            saved[place.head * shape.T + row] = softmax.largest[i] + logf(softmax.sum[i]);
    }
}

/* ---- backward ----
 * With dp = dout v^T, the gradient of the scores is dscores = p (dp - sum of p dp over the row). That sum equals the
 * sum of dout * out over the head's width, which does not need p: `row_dots` (B, heads, T). */

/* One warp per row of a head. */
static __global__ void row_dots_kernel(float *row_dots, const float *dout, const float *out, AttentionShape shape)
{
    const int64_t index = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP; /* as in row_dots */
    if (index >= shape.B * shape.heads * shape.T)
        return;
    const int64_t head = index / shape.T, row = head / shape.heads * shape.T + index % shape.T;
    const int64_t begin = row * shape.C + head % shape.heads * shape.width;
    float sum = 0;
    for (int i = threadIdx.x % WARP; i < shape.width; i += WARP)
        sum += dout[begin + i] * out[begin + i];
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        row_dots[index] = sum;
}

/* One block per tile of queries; it loops over the keys that they see. */
template <int WIDTH>
static __global__ void attention_dq_kernel(Gradient dqkv, const float *dout, const float *qkv, const float *saved,
                                           const float *row_dots, AttentionShape shape)
{
    __shared__ HeadTile<WIDTH> q, k, v, d;
    __shared__ ScoreTile<WIDTH> dscores;
    const Place place = place_of_block(shape, TILE<WIDTH>, true);
    const int64_t C = shape.C, first = place.first, head_row = place.head * shape.T;
    const float *head = qkv + place.row * 3 * C + place.column;
    HeadPart<WIDTH> dq = {};

    load_tile<WIDTH>(&q, head, 3 * C, first, shape);
    load_tile<WIDTH>(&d, dout + place.row * C + place.column, C, first, shape);
    for (int64_t key = 0; key <= first; key += TILE<WIDTH>) {
        __syncthreads(); /* all threads have read the previous k and v */
        load_tile<WIDTH>(&k, head + C, 3 * C, key, shape);
        load_tile<WIDTH>(&v, head + 2 * C, 3 * C, key, shape);
        __syncthreads();
        const ScorePart<WIDTH> scores = rows_times_rows<WIDTH>(&q, &k);
        const ScorePart<WIDTH> dp = rows_times_rows<WIDTH>(&d, &v); /* forward: out = p v, so dp = dout v^T */
        for (int i = 0; i < ROWS<WIDTH>; i++) {
            const int row = threadIdx.y + i * THREADS_Y;
            const bool inside = first + row < shape.T;
            const float log_sum = inside ? saved[head_row + first + row] : 0;
            const float dot = inside ? row_dots[head_row + first + row] : 0;
            for (int j = 0; j < SCORE_COLUMNS<WIDTH>; j++) {
                const int column = threadIdx.x + j * THREADS_X;
                const bool seen = inside && key + column <= first + row;
                const float p = seen ? expf(scores.at[i][j] * shape.scale - log_sum) : 0;
                dscores.at[row][column] = p * (dp.at[i][j] - dot);
            }
        }
        __syncwarp(); /* enough, because a warp reads only the rows that it wrote */
        add_product<WIDTH>(&dq, &dscores, &k); /* forward: scores = q k^T * scale, so dq = dscores k * scale */
    }
    contribute_rows<WIDTH>(dqkv, place.row * 3 * C + place.column, dq, shape.scale, first, shape);
}

/* One block per tile of keys; it loops over the queries that see them. Its tiles of p and dscores are transposed: a
 * row is a key, a column is a query. */
template <int WIDTH>
static __global__ void attention_dkv_kernel(Gradient dqkv, const float *dout, const float *qkv, const float *saved,
                                            const float *row_dots, AttentionShape shape)
{
    __shared__ HeadTile<WIDTH> q, k, v, d;
    __shared__ ScoreTile<WIDTH> p, dscores;
    const Place place = place_of_block(shape, TILE<WIDTH>, false);
    const int64_t C = shape.C, first = place.first, head_row = place.head * shape.T;
    const float *head = qkv + place.row * 3 * C + place.column;
    HeadPart<WIDTH> dk = {}, dv = {};

    load_tile<WIDTH>(&k, head + C, 3 * C, first, shape);
    load_tile<WIDTH>(&v, head + 2 * C, 3 * C, first, shape);
    for (int64_t query = first; query < shape.T; query += TILE<WIDTH>) {
        __syncthreads(); /* all threads have read the previous q and dout */
        load_tile<WIDTH>(&q, head, 3 * C, query, shape);
        load_tile<WIDTH>(&d, dout + place.row * C + place.column, C, query, shape);
        __syncthreads();
        const ScorePart<WIDTH> scores = rows_times_rows<WIDTH>(&k, &q);
        const ScorePart<WIDTH> dp = rows_times_rows<WIDTH>(&v, &d);
        for (int j = 0; j < SCORE_COLUMNS<WIDTH>; j++) {
            const int column = threadIdx.x + j * THREADS_X;
            const bool inside = query + column < shape.T;
            const float log_sum = inside ? saved[head_row + query + column] : 0;
            const float dot = inside ? row_dots[head_row + query + column] : 0;
            for (int i = 0; i < ROWS<WIDTH>; i++) {
                const int row = threadIdx.y + i * THREADS_Y;
                const bool seen = inside && first + row <= query + column;
                const float weight = seen ? expf(scores.at[i][j] * shape.scale - log_sum) : 0;
                p.at[row][column] = weight;
                dscores.at[row][column] = weight * (dp.at[i][j] - dot);
            }
        }
        __syncwarp();
        add_product<WIDTH>(&dv, &p, &d);       /* forward: out = p v, so dv = p^T dout */
        add_product<WIDTH>(&dk, &dscores, &q); /* forward: scores = q k^T * scale, so dk = dscores^T q * scale */
    }
    const int64_t dq_at = place.row * 3 * C + place.column;
    contribute_rows<WIDTH>(dqkv, dq_at + C, dk, shape.scale, first, shape);
    contribute_rows<WIDTH>(dqkv, dq_at + 2 * C, dv, 1, first, shape);
}

/* ---- the interface ---- */

static AttentionShape shape_of(int64_t B, int64_t T, int64_t C, int heads)
{
    const int width = (int)(C / heads);
    CHECK(width <= 128, "attention: heads of %d numbers; the CUDA kernels support at most 128", width);
    AttentionShape shape = {B, T, C, padded_rows(T), heads, width, 1 / sqrtf((float)width)};
    return shape;
}

int64_t device_attention_saved(int64_t B, int64_t T, int64_t C, int heads)
{
    (void)C;
    return B * heads * padded_rows(T); /* log(sum of exp(score)) of each row */
}

int64_t device_attention_scratch(int64_t B, int64_t T, int64_t C, int heads)
{
    (void)C;
    return B * heads * padded_rows(T); /* row_dots */
}

template <int WIDTH> static void launch_forward(float *out, float *saved, const float *qkv, AttentionShape shape)
{
    const unsigned blocks = blocks_of_tiles(shape, TILE<WIDTH>);
    attention_forward_kernel<WIDTH><<<blocks, ATTENTION_BLOCK, 0, cudaStreamPerThread>>>(out, saved, qkv, shape);
    CHECK_CUDA(cudaGetLastError());
}

void device_attention_forward(void *out, float *saved, const float *qkv, int64_t B, int64_t T, int64_t C, int heads,
                              DType precision)
{
    const AttentionShape shape = shape_of(B, T, C, heads);
    if (B * T * C == 0)
        return;
    if (precision != DTYPE_F32)
        attention_half_forward(out, saved, qkv, shape, precision);
    else if (shape.width <= 64)
        launch_forward<64>((float *)out, saved, qkv, shape);
    else
        launch_forward<128>((float *)out, saved, qkv, shape);
}

template <int WIDTH>
static void launch_backward(Gradient dqkv, float *row_dots, const float *dout, const float *qkv, const float *out,
                            const float *saved, AttentionShape shape)
{
    const unsigned rows = blocks_for(shape.B * shape.heads * shape.T, THREADS / WARP);
    const unsigned blocks = blocks_of_tiles(shape, TILE<WIDTH>);
    row_dots_kernel<<<rows, THREADS, 0, cudaStreamPerThread>>>(row_dots, dout, out, shape);
    CHECK_CUDA(cudaGetLastError());
    attention_dq_kernel<WIDTH><<<blocks, ATTENTION_BLOCK, 0, cudaStreamPerThread>>>(dqkv, dout, qkv, saved, row_dots,
                                                                                    shape);
    CHECK_CUDA(cudaGetLastError());
    attention_dkv_kernel<WIDTH><<<blocks, ATTENTION_BLOCK, 0, cudaStreamPerThread>>>(dqkv, dout, qkv, saved, row_dots,
                                                                                     shape);
    CHECK_CUDA(cudaGetLastError());
}

void device_attention_backward(Gradient dqkv, float *scratch, const float *dout, const float *qkv, const void *out,
                               const float *saved, int64_t B, int64_t T, int64_t C, int heads, DType precision)
{
    const AttentionShape shape = shape_of(B, T, C, heads);
    if (B * T * C == 0)
        return;
    if (precision != DTYPE_F32)
        attention_half_backward(dqkv, scratch, dout, qkv, out, saved, shape, precision);
    else if (shape.width <= 64)
        launch_backward<64>(dqkv, scratch, dout, qkv, (const float *)out, saved, shape);
    else
        launch_backward<128>(dqkv, scratch, dout, qkv, (const float *)out, saved, shape);
}
