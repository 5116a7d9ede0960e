/* device_cuda_attention.h: shared by the two sets of attention kernels. device_cuda_attention.cu explains attention and
 * has the kernels for float32; device_cuda_attention_half.cu has those for bf16 and f16.
 */
#ifndef LOCKSTEP_DEVICE_DEVICE_CUDA_ATTENTION_H
#define LOCKSTEP_DEVICE_DEVICE_CUDA_ATTENTION_H

#include "backends/gpu/device_cuda.h"

struct AttentionShape {
    int64_t B, T, C;
    int64_t padded_T; /* T, rounded up to a multiple of device_cuda_attention_half.cu's tiles */
    int heads, width; /* width: of one head */
    float scale;      /* of the scores: 1 / sqrt(width) */
};

static inline int64_t padded_rows(int64_t T)
{
    return (T + 63) / 64 * 64;
}

/* A block's tile: `first` is its first row in the head; the head begins at `row` and `column` of a matrix
 * (B * T, ...). */
struct Place {
    int64_t row;
    int head, column, first; /* head: b * heads + h */
};

/* backwards: the last tiles first. Their rows see most keys, so the blocks that take longest start first. */
static __device__ inline Place place_of_block(AttentionShape shape, int tile_rows, bool backwards)
{
    const int heads = (int)shape.B * shape.heads, tiles = (int)((shape.T + tile_rows - 1) / tile_rows);
    const int tile = blockIdx.x / heads;
    Place place;
    place.head = blockIdx.x % heads;
    place.row = place.head / shape.heads * shape.T;
    place.column = place.head % shape.heads * shape.width;
    place.first = (backwards ? tiles - 1 - tile : tile) * tile_rows;
    return place;
}

static inline unsigned blocks_of_tiles(AttentionShape shape, int tile_rows)
{
    return (unsigned)(shape.B * shape.heads * blocks_for(shape.T, tile_rows));
}

/* ---- device_cuda_attention_half.cu. precision: DTYPE_BF16 or DTYPE_F16; B * T * C > 0. `saved` and `row_dots` have
 * padded_rows(T) numbers for each head ---- */
void attention_half_forward(void *out, float *saved, const float *qkv, AttentionShape shape, DType precision);
void attention_half_backward(Gradient dqkv, float *row_dots, const float *dout, const float *qkv, const void *out,
                             const float *saved, AttentionShape shape, DType precision);

#endif
