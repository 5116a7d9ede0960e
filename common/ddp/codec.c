/* codec.c: gradients travel as they are, or rounded to 16 bits. */
#include "ddp/codec.h"

#include <string.h>

#include "device/device.h"

/* ---- fp32: as they are ---- */

static size_t no_bytes(const GradientCodec *codec, size_t elements, int world_size)
{
    (void)codec, (void)elements, (void)world_size;
    return 0;
}

static Work *start_whole(const GradientCodec *codec, ProcessGroup *pg, float *gradients, void *buffer, size_t elements,
                         const char *carries)
{
    (void)buffer;
    return pg_all_reduce_async(pg, gradients, gradients, elements, codec->dtype, REDUCE_SUM, carries);
}

static Work *start_whole_scatter(const GradientCodec *codec, ProcessGroup *pg, float *gradients, void *buffer,
                                 float *shard, size_t shard_elements, const char *carries)
{
    (void)buffer;
    return pg_reduce_scatter_async(pg, gradients, shard, shard_elements, codec->dtype, REDUCE_SUM, carries);
}

static void finish_whole(const GradientCodec *codec, ProcessGroup *pg, float *sums, const void *buffer, size_t elements)
{
    (void)codec, (void)pg, (void)sums, (void)buffer, (void)elements; /* the sums are where they belong */
}

/* ---- bf16, fp16: rounded ---- */

static size_t half_bytes(const GradientCodec *codec, size_t elements, int world_size)
{
    (void)codec, (void)world_size;
    return elements * sizeof(uint16_t);
}

/* note: half-codec
 * Each rank rounds its own share once, when it is sent. The sum is made in what travels, and comes back into the same
 * buffer: the gradients stay float32, and get the sum's value. */
static Work *start_half(const GradientCodec *codec, ProcessGroup *pg, float *gradients, void *buffer, size_t elements,
                        const char *carries)
{
    device_to_half(buffer, gradients, codec->dtype, (int64_t)elements);
    return pg_all_reduce_async(pg, buffer, buffer, elements, codec->dtype, REDUCE_SUM, carries);
}

static void finish_half(const GradientCodec *codec, ProcessGroup *pg, float *gradients, const void *buffer,
                        size_t elements)
{
    (void)pg;
    device_from_half(gradients, buffer, codec->dtype, (int64_t)elements);
}

/* This rank's part of the buffer: the sums are written over what was sent. */
static uint16_t *own_part(ProcessGroup *pg, const void *buffer, size_t shard_elements)
{
    return (uint16_t *)buffer + (size_t)pg_rank(pg) * shard_elements;
}

static Work *start_half_scatter(const GradientCodec *codec, ProcessGroup *pg, float *gradients, void *buffer,
                                float *shard, size_t shard_elements, const char *carries)
{
    (void)shard;
    device_to_half(buffer, gradients, codec->dtype, (int64_t)shard_elements * pg_world_size(pg));
    return pg_reduce_scatter_async(pg, buffer, own_part(pg, buffer, shard_elements), shard_elements, codec->dtype,
                                   REDUCE_SUM, carries);
}

static void finish_half_scatter(const GradientCodec *codec, ProcessGroup *pg, float *shard, const void *buffer,
                                size_t shard_elements)
{
    device_from_half(shard, own_part(pg, buffer, shard_elements), codec->dtype, (int64_t)shard_elements);
}

static void round_to_half(const GradientCodec *codec, float *gradients, int64_t elements)
{
    device_round(gradients, gradients, codec->dtype, elements);
}

/* ---- the list ---- */

static const GradientCodec codecs[] = {
    {.name = "fp32", .dtype = DTYPE_F32, .buffer_bytes = no_bytes, .start_all_reduce = start_whole,
     .finish_all_reduce = finish_whole, .start_reduce_scatter = start_whole_scatter,
     .finish_reduce_scatter = finish_whole},
    {.name = "bf16", .dtype = DTYPE_BF16, .rounds = true, .buffer_bytes = half_bytes, .start_all_reduce = start_half,
     .finish_all_reduce = finish_half, .start_reduce_scatter = start_half_scatter,
     .finish_reduce_scatter = finish_half_scatter, .round_share = round_to_half, .round_sum = round_to_half},
    {.name = "fp16", .dtype = DTYPE_F16, .rounds = true, .buffer_bytes = half_bytes, .start_all_reduce = start_half,
     .finish_all_reduce = finish_half, .start_reduce_scatter = start_half_scatter,
     .finish_reduce_scatter = finish_half_scatter, .round_share = round_to_half, .round_sum = round_to_half},
};

const GradientCodec *codec_find(const char *name)
{
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++)
        if (strcmp(codecs[i].name, name) == 0)
            return &codecs[i];
    return NULL;
}
