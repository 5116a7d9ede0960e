/* device_cuda_attention_tiles.h: building blocks of device_cuda_attention_half.cu: tiles in shared memory, which all
 * warps of a block read, and squares in the registers of one warp (device_cuda_mma.h).
 */
#ifndef LOCKSTEP_DEVICE_DEVICE_CUDA_ATTENTION_TILES_H
#define LOCKSTEP_DEVICE_DEVICE_CUDA_ATTENTION_TILES_H

#include "backends/gpu/device_cuda_attention.h"
#include "backends/gpu/device_cuda_mma.h"

#include <cuda_pipeline.h>

enum { SIDE = 16, OWN_ROWS = 64, BLOCK_THREADS = OWN_ROWS / SIDE * WARP }; /* SIDE: of a square */
constexpr float LOG2_E = 1.44269504f;

/* Heads are padded with zeros to a WIDTH of 64 or 128, and to whole tiles of rows. */
template <int WIDTH> constexpr int SQUARES = WIDTH / SIDE;
template <int WIDTH> constexpr int TILE_ROWS = 4096 / WIDTH; /* so that four tiles fit into 48 KiB */
template <int WIDTH> constexpr int STRIDE = WIDTH + 8;       /* from row to row of a Tile, see below */

/* ---- tiles, in shared memory ---- */

/* Each row has 16 bytes of padding, so that the eight rows that are read at once are in different memory banks. */
template <typename Half, int WIDTH> struct alignas(16) Tile {
    Half at[TILE_ROWS<WIDTH>][STRIDE<WIDTH>];
};

/* Starts to copy the rows that a and b point to, 16 bytes at a time. The copies are asynchronous and use no registers;
 * wait_for_tiles() waits for them. */
template <typename Half, int WIDTH>
static __device__ inline void start_tiles(Tile<Half, WIDTH> *to_a, const Half *a, Tile<Half, WIDTH> *to_b,
                                          const Half *b)
{
    const int row = threadIdx.x / (WIDTH / 8), column = threadIdx.x % (WIDTH / 8) * 8;
    constexpr int ROWS_AT_ONCE = BLOCK_THREADS / (WIDTH / 8);
#pragma unroll
    for (int i = 0; i < TILE_ROWS<WIDTH>; i += ROWS_AT_ONCE) {
        __pipeline_memcpy_async(&to_a->at[row + i][column], &a[(row + i) * WIDTH + column], 16);
        __pipeline_memcpy_async(&to_b->at[row + i][column], &b[(row + i) * WIDTH + column], 16);
    }
    __pipeline_commit();
}

static __device__ inline void wait_for_tiles()
{
    __pipeline_wait_prior(0); /* this thread's copies are done */
    __syncthreads();          /* so are all others', and all threads have read the previous tiles */
}

/* ---- squares, in registers ---- */

static __device__ inline int first_row_of_warp(Place place)
{
    return place.first + threadIdx.x / WARP * SIDE;
}

/* The rows of the block's head in a matrix of operands. */
template <typename Half, int WIDTH>
static __device__ inline const Half *rows_of_head(const Half *matrix, Place place, AttentionShape shape)
{
    return matrix + place.head * shape.padded_T * WIDTH;
}

/* The warp's own 16 rows. */
template <typename Half, int WIDTH>
static __device__ inline void load_own_rows(HalfSquare<Half> *squares, const Half *rows)
{
#pragma unroll
    for (int d = 0; d < SQUARES<WIDTH>; d++)
        squares[d] = load_square_directly(rows + SIDE * d, WIDTH);
}

/* Returns the square own * tile^T, for 16 rows of the tile from row `first`. */
template <typename Half, int WIDTH>
static __device__ inline FloatSquare rows_times_rows(const HalfSquare<Half> *own, const Tile<Half, WIDTH> *tile,
                                                     int first)
{
    FloatSquare sum = {};
#pragma unroll
    for (int d = 0; d < SQUARES<WIDTH>; d++)
        add_product(&sum, own[d], load_square(&tile->at[first][SIDE * d], STRIDE<WIDTH>));
    return sum;
}

/* sums += p times 16 rows of the tile, from row `first`. */
template <typename Half, int WIDTH>
static __device__ inline void add_weighted_rows(FloatSquare *sums, HalfSquare<Half> p, const Tile<Half, WIDTH> *tile,
                                                int first)
{
#pragma unroll
    for (int d = 0; d < SQUARES<WIDTH>; d++)
        add_product(&sums[d], p, load_transposed(&tile->at[first][SIDE * d], STRIDE<WIDTH>));
}

/* Scores of keys that come after their query become -infinity. */
static __device__ inline void mask_future(FloatSquare *scores, int first_query, int first_key, bool rows_are_keys)
{
    if (first_key + SIDE - 1 <= first_query)
        return; /* every query sees every key */
    for (int i = 0; i < 4; i++)
        for (int c = 0; c < 2; c++) {
            const int row = square_row(i), column = square_column(i) + c;
            const int query = first_query + (rows_are_keys ? column : row);
            const int key = first_key + (rows_are_keys ? row : column);
            if (key > query)
                scores->quarter[i][c] = -INFINITY;
        }
}

/* The index, in a matrix (T, 3C), of the lane's left number of quarter i of square d. *count: numbers from there to the
 * end of the head's row; 0 or less if it is below row T or right of the head's width. */
static __device__ inline int64_t index_in_rows(int first, int d, int i, AttentionShape shape, int *count)
{
    const int row = first + square_row(i), column = SIDE * d + square_column(i);
    *count = row < shape.T ? shape.width - column : 0;
    return row * 3 * shape.C + column;
}

/* Writes `count` of two neighbours, rounded: with one store if both are inside and the address is a multiple of 4. */
template <typename Half> static __device__ inline void store_pair(Half *to, const float *pair, float factor, int count)
{
    if (count >= 2 && (uintptr_t)to % sizeof(uint32_t) == 0) {
        *(uint32_t *)to = round_pair<Half>(factor * pair[0], factor * pair[1]);
        return;
    }
    for (int c = 0; c < 2 && c < count; c++)
        from_float(&to[c], factor * pair[c]);
}

/* Contributes factor * sums to the gradient of q, k or v, from row `first`; `head`: the head's first number in dqkv.
 * If dqkv is stored in 16 bits, its type is Half. First all loads, then all stores: if they alternated, each load
 * would wait for the store before it. */
template <typename Half, int WIDTH>
static __device__ inline void contribute_rows(Gradient dqkv, int64_t head, const FloatSquare *sums, float factor,
                                              int first, AttentionShape shape)
{
    float *rows = dqkv.values + head;
    FloatSquare old[SQUARES<WIDTH>] = {};
    int count;
#pragma unroll
    for (int d = 0; d < SQUARES<WIDTH>; d++)
        for (int i = 0; i < 4; i++) {
            const float *pair = rows + index_in_rows(first, d, i, shape, &count);
            for (int c = 0; c < 2; c++)
                if (dqkv.add && c < count)
                    old[d].quarter[i][c] = pair[c];
        }
#pragma unroll
    for (int d = 0; d < SQUARES<WIDTH>; d++)
        for (int i = 0; i < 4; i++) {
            const int64_t index = index_in_rows(first, d, i, shape, &count);
            if (dqkv.dtype != DTYPE_F32)
                store_pair((Half *)dqkv.values + head + index, sums[d].quarter[i], factor, count);
            for (int c = 0; c < 2; c++)
                if (c < count && dqkv.dtype == DTYPE_F32)
                    rows[index + c] = old[d].quarter[i][c] + factor * sums[d].quarter[i][c];
        }
}

#endif
