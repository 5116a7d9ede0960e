/* device_cuda_attention_half.cu: causal self-attention under bf16 and f16, on tensor cores.
 *
 * device_cuda_attention.cu explains what is computed, and why p is never stored in memory. Here a block has four warps
 * and 64 rows of a head, 16 per warp. It loops over the tiles of the other side: over keys, or, for the gradients of k
 * and v, over queries. All warps need all rows of a tile, so tiles are in shared memory; while the warps multiply one
 * tile, the next one is being copied. Each warp's own rows, scores and sums are in registers, as squares of 16 by 16:
 * see device_cuda_mma.h.
 *
 * The operands of products are rounded: q, k, v, dout, p and the gradient of the scores. Separate kernels round the
 * first four, and store the rows of each head together. Sums and the softmax are float32. out is rounded when it is
 * stored, because it is an operand of the next layer. The GPU has an instruction for powers of two, so
 * exp(x) = 2^(x log2(e)).
 */
#include "backends/gpu/device_cuda_attention_tiles.h"

/* ---- operands: each matrix is stored as all rows of head 0 (padded_T, WIDTH), then of head 1, ... ---- */

/* Rounds q, k and v. Each thread rounds eight neighbours; block (x, y) works on matrix y. */
template <typename Half, int WIDTH>
static __global__ void round_qkv_kernel(Half *to, const float *qkv, AttentionShape shape)
{
    const int64_t i = 8 * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    const int64_t head = i / WIDTH / shape.padded_T, row = i / WIDTH % shape.padded_T, column = i % WIDTH;
    qkv += ((head / shape.heads * shape.T + row) * 3 + blockIdx.y) * shape.C + head % shape.heads * shape.width;
    to += blockIdx.y * shape.B * shape.heads * shape.padded_T * WIDTH;
    Four<float> left = {}, right = {};
    if (row < shape.T) {
        left = load_four(qkv, column, shape.width);
        right = load_four(qkv, column + 4, shape.width);
    }
    uint4 eight;
    eight.x = round_pair<Half>(left.at[0], left.at[1]);
    eight.y = round_pair<Half>(left.at[2], left.at[3]);
    eight.z = round_pair<Half>(right.at[0], right.at[1]);
    eight.w = round_pair<Half>(right.at[2], right.at[3]);
    *(uint4 *)(to + i) = eight;
}

/* Rounds dout, and computes row_dots: for each row the sum of dout * out over its width (device_cuda_attention.cu says
 * why). One warp per row. */
template <typename Half, int WIDTH>
static __global__ void round_dout_kernel(Half *to, float *row_dots, const float *dout, const Half *out,
                                         AttentionShape shape)
{
    const int64_t index = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP; /* of the row, over all heads */
    const int64_t head = index / shape.padded_T, row = index % shape.padded_T;
    const int64_t begin = (head / shape.heads * shape.T + row) * shape.C + head % shape.heads * shape.width;
    float sum = 0;
    for (int column = threadIdx.x % WARP; column < WIDTH; column += WARP) {
        const bool inside = row < shape.T && column < shape.width;
        Half *half = &to[index * WIDTH + column];
        from_float(half, inside ? dout[begin + column] : 0);
        if (inside)
            sum += to_float(*half) * to_float(out[begin + column]);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        row_dots[index] = sum;
}

/* ---- forward ---- */

/* State of a lane's two rows: one row is in quarters 0 and 2 of each square, the other in 1 and 3. The sum is over this
 * lane's columns; three neighbouring lanes have the others. */
struct Softmax {
    float largest[2], sum[2];
};

/* Turns COUNT squares of scores into exp(scale * (score - largest)), adds them to softmax->sum, and scales the earlier
 * sums to the new largest score. factor: scale * log2(e). */
template <int COUNT, int WIDTH>
static __device__ inline void online_softmax(Softmax *softmax, FloatSquare *sums, FloatSquare *scores, float factor)
{
    for (int row = 0; row < 2; row++) {
        float largest = -INFINITY;
#pragma unroll
        for (int s = 0; s < COUNT; s++)
            for (int i = row; i < 4; i += 2)
                largest = fmaxf(largest, fmaxf(scores[s].quarter[i][0], scores[s].quarter[i][1]));
        largest = fmaxf(softmax->largest[row], warp_max(largest, 4)); /* finite, because every row sees key 0 */
        const float shrink = power_of_two(factor * (softmax->largest[row] - largest));
        float sum = softmax->sum[row] * shrink;
#pragma unroll
        for (int s = 0; s < COUNT; s++)
            for (int i = row; i < 4; i += 2)
                for (int c = 0; c < 2; c++) {
                    scores[s].quarter[i][c] = power_of_two(factor * scores[s].quarter[i][c] - factor * largest);
                    sum += scores[s].quarter[i][c];
                }
        softmax->largest[row] = largest;
        softmax->sum[row] = sum;
#pragma unroll
        for (int d = 0; d < SQUARES<WIDTH>; d++)
            for (int i = row; i < 4; i += 2)
                for (int c = 0; c < 2; c++)
                    sums[d].quarter[i][c] *= shrink;
    }
}

/* Writes the warp's rows of out, and for backward their log2(sum of exp(scale * score)). */
template <typename Half, int WIDTH>
static __device__ void write_rows(Half *out, float *saved, const FloatSquare *sums, Softmax softmax, Place place,
                                  int first, AttentionShape shape)
{
    out += place.row * shape.C + place.column;
    for (int i = 0; i < 4; i++) {
        const int64_t row = first + square_row(i);
        const float sum = warp_sum(softmax.sum[i % 2], 4), one_over_sum = 1 / sum;
        if (i < 2 && threadIdx.x % 4 == 0)
            saved[place.head * shape.padded_T + row] = shape.scale * LOG2_E * softmax.largest[i] + log2f(sum);
#pragma unroll
        for (int d = 0; d < SQUARES<WIDTH>; d++) {
            const int column = SIDE * d + square_column(i);
            if (row < shape.T)
                store_pair(&out[row * shape.C + column], sums[d].quarter[i], one_over_sum, shape.width - column);
        }
    }
}

/* One block per tile of queries. */
template <typename Half, int WIDTH>
static __global__ void __launch_bounds__(BLOCK_THREADS, 256 / WIDTH)
    forward_half_kernel(Half *out, float *saved, const Half *q, const Half *k, const Half *v, AttentionShape shape)
{
    __shared__ Tile<Half, WIDTH> k_tile[2], v_tile[2]; /* one in use, one being copied */
    const Place place = place_of_block(shape, OWN_ROWS, true);
    const int first = first_row_of_warp(place), end = place.first + OWN_ROWS;
    k = rows_of_head<Half, WIDTH>(k, place, shape);
    v = rows_of_head<Half, WIDTH>(v, place, shape);
    HalfSquare<Half> own_q[SQUARES<WIDTH>];
    FloatSquare sums[SQUARES<WIDTH>] = {};
    Softmax softmax = {{-INFINITY, -INFINITY}, {0, 0}};

    start_tiles(&k_tile[0], k, &v_tile[0], v);
    load_own_rows<Half, WIDTH>(own_q, rows_of_head<Half, WIDTH>(q, place, shape) + first * WIDTH);
    for (int key = 0, turn = 0; key < end; key += TILE_ROWS<WIDTH>, turn = 1 - turn) {
        const int next = key + TILE_ROWS<WIDTH>;
        wait_for_tiles();
        if (next < end)
            start_tiles(&k_tile[1 - turn], k + next * WIDTH, &v_tile[1 - turn], v + next * WIDTH);
        constexpr int COUNT = TILE_ROWS<WIDTH> / SIDE;
        FloatSquare scores[COUNT];
#pragma unroll
        for (int s = 0; s < COUNT; s++) {
            scores[s] = rows_times_rows(own_q, &k_tile[turn], SIDE * s);
            mask_future(&scores[s], first, key + SIDE * s, false);
        }
        online_softmax<COUNT, WIDTH>(&softmax, sums, scores, shape.scale * LOG2_E);
#pragma unroll
        for (int s = 0; s < COUNT; s++)
            add_weighted_rows(sums, rounded<Half>(scores[s]), &v_tile[turn], SIDE * s);
    }
    write_rows<Half, WIDTH>(out, saved, sums, softmax, place, first, shape);
}

/* ---- backward: one square of p after the other ---- */

/* Replaces a score by p, and dp by the gradient of the score. factor: scale * log2(e).
 * forward: p = exp(scale * score - log(sum)), so dscore = p (dp - row_dot) */
static __device__ inline void softmax_backward(float *score, float *dp, float factor, float log_sum, float row_dot)
{
    *score = power_of_two(factor * *score - log_sum);
    *dp = *score * (*dp - row_dot);
}

/* One block per tile of queries; it loops over the keys that they see. */
template <typename Half, int WIDTH>
static __global__ void __launch_bounds__(BLOCK_THREADS, 256 / WIDTH)
    dq_half_kernel(Gradient dqkv, const Half *q, const Half *k, const Half *v, const Half *dout, const float *saved,
                   const float *row_dots, AttentionShape shape)
{
    __shared__ Tile<Half, WIDTH> k_tile[2], v_tile[2];
    const Place place = place_of_block(shape, OWN_ROWS, true);
    const int first = first_row_of_warp(place), end = place.first + OWN_ROWS;
    k = rows_of_head<Half, WIDTH>(k, place, shape);
    v = rows_of_head<Half, WIDTH>(v, place, shape);
    saved += place.head * shape.padded_T + first;
    row_dots += place.head * shape.padded_T + first;
    const float log_sum[2] = {saved[square_row(0)], saved[square_row(1)]}; /* of the lane's two rows */
    const float row_dot[2] = {row_dots[square_row(0)], row_dots[square_row(1)]};
    HalfSquare<Half> own_q[SQUARES<WIDTH>], own_dout[SQUARES<WIDTH>];
    FloatSquare dq[SQUARES<WIDTH>] = {};

    start_tiles(&k_tile[0], k, &v_tile[0], v);
    load_own_rows<Half, WIDTH>(own_q, rows_of_head<Half, WIDTH>(q, place, shape) + first * WIDTH);
    load_own_rows<Half, WIDTH>(own_dout, rows_of_head<Half, WIDTH>(dout, place, shape) + first * WIDTH);
    for (int key = 0, turn = 0; key < end; key += TILE_ROWS<WIDTH>, turn = 1 - turn) {
        const int next = key + TILE_ROWS<WIDTH>;
        wait_for_tiles();
        if (next < end)
            start_tiles(&k_tile[1 - turn], k + next * WIDTH, &v_tile[1 - turn], v + next * WIDTH);
        for (int s = 0; s < TILE_ROWS<WIDTH> && key + s < first + SIDE; s += SIDE) { /* keys that the warp sees */
            FloatSquare scores = rows_times_rows(own_q, &k_tile[turn], s);
            FloatSquare dscores = rows_times_rows(own_dout, &v_tile[turn], s); /* first dp = dout v^T */
            mask_future(&scores, first, key + s, false);
            for (int i = 0; i < 4; i++)
                for (int c = 0; c < 2; c++)
                    softmax_backward(&scores.quarter[i][c], &dscores.quarter[i][c], shape.scale * LOG2_E,
                                     log_sum[i % 2], row_dot[i % 2]);
            /* forward: scores = q k^T * scale, so dq = dscores k * scale */
            add_weighted_rows(dq, rounded<Half>(dscores), &k_tile[turn], s);
        }
    }
    contribute_rows<Half, WIDTH>(dqkv, place.row * 3 * shape.C + place.column, dq, shape.scale, first, shape);
}

/* One block per tile of keys; it loops over the queries that see them. Its squares of p and dscores are transposed: a
 * row is a key, a column is a query. */
template <typename Half, int WIDTH>
static __global__ void __launch_bounds__(BLOCK_THREADS)
    dkv_half_kernel(Gradient dqkv, const Half *q, const Half *k, const Half *v, const Half *dout, const float *saved,
                    const float *row_dots, AttentionShape shape)
{
    __shared__ Tile<Half, WIDTH> q_tile[2], dout_tile[2];
    const Place place = place_of_block(shape, OWN_ROWS, false);
    const int first = first_row_of_warp(place), begin = place.first;
    q = rows_of_head<Half, WIDTH>(q, place, shape);
    dout = rows_of_head<Half, WIDTH>(dout, place, shape);
    saved += place.head * shape.padded_T;
    row_dots += place.head * shape.padded_T;
    HalfSquare<Half> own_k[SQUARES<WIDTH>], own_v[SQUARES<WIDTH>];
    FloatSquare dk[SQUARES<WIDTH>] = {}, dv[SQUARES<WIDTH>] = {};

    start_tiles(&q_tile[0], q + begin * WIDTH, &dout_tile[0], dout + begin * WIDTH);
    load_own_rows<Half, WIDTH>(own_k, rows_of_head<Half, WIDTH>(k, place, shape) + first * WIDTH);
    load_own_rows<Half, WIDTH>(own_v, rows_of_head<Half, WIDTH>(v, place, shape) + first * WIDTH);
    for (int query = begin, turn = 0; query < shape.padded_T; query += TILE_ROWS<WIDTH>, turn = 1 - turn) {
        const int next = query + TILE_ROWS<WIDTH>;
        wait_for_tiles();
        if (next < shape.padded_T)
            start_tiles(&q_tile[1 - turn], q + next * WIDTH, &dout_tile[1 - turn], dout + next * WIDTH);
        for (int s = 0; s < TILE_ROWS<WIDTH>; s += SIDE) {
            if (query + s < first)
                continue; /* these queries see none of the warp's keys */
            float log_sum[2][2], row_dot[2][2]; /* of the lane's queries: two in the left half, two in the right */
            for (int i = 0; i < 4; i++) {
                log_sum[i / 2][i % 2] = saved[query + s + square_column(i / 2 * 2) + i % 2];
                row_dot[i / 2][i % 2] = row_dots[query + s + square_column(i / 2 * 2) + i % 2];
            }
            FloatSquare p = rows_times_rows(own_k, &q_tile[turn], s);
            FloatSquare dscores = rows_times_rows(own_v, &dout_tile[turn], s);
            mask_future(&p, query + s, first, true);
            for (int i = 0; i < 4; i++)
                for (int c = 0; c < 2; c++)
                    softmax_backward(&p.quarter[i][c], &dscores.quarter[i][c], shape.scale * LOG2_E,
                                     log_sum[i / 2][c], row_dot[i / 2][c]);
            /* forward: out = p v, so dv = p^T dout; scores = q k^T * scale, so dk = dscores^T q * scale */
            add_weighted_rows(dv, rounded<Half>(p), &dout_tile[turn], s);
            add_weighted_rows(dk, rounded<Half>(dscores), &q_tile[turn], s);
        }
    }
    const int64_t dq_at = place.row * 3 * shape.C + place.column;
    contribute_rows<Half, WIDTH>(dqkv, dq_at + shape.C, dk, shape.scale, first, shape);
    contribute_rows<Half, WIDTH>(dqkv, dq_at + 2 * shape.C, dv, 1, first, shape);
}

/* ---- launches ---- */

/* Rounds q, k and v, each of *size numbers. The memory returned has room for dout after them. */
template <typename Half, int WIDTH> static Half *round_qkv(const float *qkv, AttentionShape shape, int64_t *size)
{
    *size = shape.B * shape.heads * shape.padded_T * WIDTH;
    Half *operands = (Half *)cuda_scratch((size_t)(4 * *size) * sizeof *operands);
    const dim3 grid(blocks_for(*size, 8 * THREADS), 3); /* exact: 64 WIDTH is a multiple of 8 THREADS */
    round_qkv_kernel<Half, WIDTH><<<grid, THREADS, 0, cudaStreamPerThread>>>(operands, qkv, shape);
    CHECK_CUDA(cudaGetLastError());
    return operands;
}

template <typename Half, int WIDTH>
static void launch_forward(void *out, float *saved, const float *qkv, AttentionShape shape)
{
    int64_t size;
    const Half *q = round_qkv<Half, WIDTH>(qkv, shape, &size), *k = q + size, *v = k + size;
    const unsigned blocks = blocks_of_tiles(shape, OWN_ROWS);
    forward_half_kernel<Half, WIDTH><<<blocks, BLOCK_THREADS, 0, cudaStreamPerThread>>>((Half *)out, saved, q, k, v,
                                                                                        shape);
    CHECK_CUDA(cudaGetLastError());
}

template <typename Half, int WIDTH>
static void launch_backward(Gradient dqkv, float *row_dots, const float *dout, const float *qkv, const void *out,
                            const float *saved, AttentionShape shape)
{
    int64_t size;
    Half *q = round_qkv<Half, WIDTH>(qkv, shape, &size), *k = q + size, *v = k + size, *d = v + size;
    const unsigned rows = blocks_for(size / WIDTH, THREADS / WARP), blocks = blocks_of_tiles(shape, OWN_ROWS);
    round_dout_kernel<Half, WIDTH><<<rows, THREADS, 0, cudaStreamPerThread>>>(d, row_dots, dout, (const Half *)out,
                                                                                shape);
    CHECK_CUDA(cudaGetLastError());
    dq_half_kernel<Half, WIDTH><<<blocks, BLOCK_THREADS, 0, cudaStreamPerThread>>>(dqkv, q, k, v, d, saved, row_dots,
                                                                                   shape);
    CHECK_CUDA(cudaGetLastError());
    dkv_half_kernel<Half, WIDTH><<<blocks, BLOCK_THREADS, 0, cudaStreamPerThread>>>(dqkv, q, k, v, d, saved, row_dots,
                                                                                    shape);
    CHECK_CUDA(cudaGetLastError());
}

void attention_half_forward(void *out, float *saved, const float *qkv, AttentionShape shape, DType precision)
{
    const bool bf16 = precision == DTYPE_BF16, narrow = shape.width <= 64;
    if (bf16 && narrow)
        launch_forward<__nv_bfloat16, 64>(out, saved, qkv, shape);
    else if (bf16)
        launch_forward<__nv_bfloat16, 128>(out, saved, qkv, shape);
    else if (narrow)
        launch_forward<__half, 64>(out, saved, qkv, shape);
    else
        launch_forward<__half, 128>(out, saved, qkv, shape);
}

void attention_half_backward(Gradient dqkv, float *row_dots, const float *dout, const float *qkv, const void *out,
                             const float *saved, AttentionShape shape, DType precision)
{
    const bool bf16 = precision == DTYPE_BF16, narrow = shape.width <= 64;
    if (bf16 && narrow)
        launch_backward<__nv_bfloat16, 64>(dqkv, row_dots, dout, qkv, out, saved, shape);
    else if (bf16)
        launch_backward<__nv_bfloat16, 128>(dqkv, row_dots, dout, qkv, out, saved, shape);
    else if (narrow)
        launch_backward<__half, 64>(dqkv, row_dots, dout, qkv, out, saved, shape);
    else
        launch_backward<__half, 128>(dqkv, row_dots, dout, qkv, out, saved, shape);
}
