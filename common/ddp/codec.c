/* codec.c: sends gradients as float32, rounded to 16 or 8 bits, or not at all. power_sgd.c sends thin matrices. */
#include "ddp/codec.h"

#include <string.h>

#include "base/check.h"
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

static void finish_whole(const GradientCodec *codec, ProcessGroup *pg, float *sums, void *buffer, size_t elements)
{
    (void)codec, (void)pg, (void)sums, (void)buffer, (void)elements; /* the sums are where they belong */
}

/* ---- bf16, fp16, int8: rounded ---- */

/* A bucket's parameters begin at multiples of 16 elements, so a block of int8 belongs to one of them. */
static size_t elements_sent(const GradientCodec *codec, size_t elements)
{
    return codec->dtype == DTYPE_INT8_BLOCK ? elements / INT8_BLOCK : elements;
}

static size_t rounded_bytes(const GradientCodec *codec, size_t elements, int world_size)
{
    (void)world_size;
    return elements_sent(codec, elements) * dtype_size(codec->dtype);
}

static void encode(const GradientCodec *codec, void *buffer, const float *gradients, size_t elements)
{
    const char *sent = buffer, *begin = (const char *)gradients;
    CHECK(sent + rounded_bytes(codec, elements, 0) <= begin || sent >= begin + elements * sizeof(float),
          "the buffer for %s overlaps the gradients: give it memory of its own", codec->name);
    if (codec->dtype == DTYPE_INT8_BLOCK)
        int8_from_floats(buffer, gradients, (int64_t)elements);
    else
        device_to_half(buffer, gradients, codec->dtype, (int64_t)elements);
}

static void decode(const GradientCodec *codec, float *gradients, const void *buffer, size_t elements)
{
    if (codec->dtype == DTYPE_INT8_BLOCK)
        int8_to_floats(gradients, buffer, (int64_t)elements);
    else
        device_from_half(gradients, buffer, codec->dtype, (int64_t)elements);
}

/* note: rounded-codec
 * Each rank rounds its own share once, before it is sent. The all-reduce adds in the payload's type and leaves the sum in
 * the buffer. finish_rounded() widens it into the gradients, which stay float32. */
static Work *start_rounded(const GradientCodec *codec, ProcessGroup *pg, float *gradients, void *buffer,
                           size_t elements, const char *carries)
{
    encode(codec, buffer, gradients, elements);
    return pg_all_reduce_async(pg, buffer, buffer, elements_sent(codec, elements), codec->dtype, REDUCE_SUM, carries);
}

static void finish_rounded(const GradientCodec *codec, ProcessGroup *pg, float *gradients, void *buffer,
                           size_t elements)
{
    (void)pg;
    decode(codec, gradients, buffer, elements);
}

/* This rank's part of the buffer: the sums are written over what was sent. */
static void *own_part(const GradientCodec *codec, ProcessGroup *pg, void *buffer, size_t shard_elements)
{
    return (char *)buffer + (size_t)pg_rank(pg) * rounded_bytes(codec, shard_elements, 0);
}

static Work *start_rounded_scatter(const GradientCodec *codec, ProcessGroup *pg, float *gradients, void *buffer,
                                   float *shard, size_t shard_elements, const char *carries)
{
    (void)shard;
    encode(codec, buffer, gradients, shard_elements * (size_t)pg_world_size(pg));
    return pg_reduce_scatter_async(pg, buffer, own_part(codec, pg, buffer, shard_elements),
                                   elements_sent(codec, shard_elements), codec->dtype, REDUCE_SUM, carries);
}

static void finish_rounded_scatter(const GradientCodec *codec, ProcessGroup *pg, float *shard, void *buffer,
                                   size_t shard_elements)
{
    decode(codec, shard, own_part(codec, pg, buffer, shard_elements), shard_elements);
}

static void round_to_half(const GradientCodec *codec, int rank, float *gradients, int64_t elements)
{
    (void)rank;
    device_round(gradients, gradients, codec->dtype, elements);
}

static void round_to_int8(const GradientCodec *codec, int rank, float *gradients, int64_t elements)
{
    (void)codec, (void)rank;
    for (int64_t i = 0; i < elements; i += INT8_BLOCK) {
        Int8Block block;
        int8_from_floats(&block, gradients + i, INT8_BLOCK);
        int8_to_floats(gradients + i, &block, INT8_BLOCK);
    }
}

/* ---- noop: nothing is sent ---- */

/* Each rank keeps its own gradients, to measure a step without communication. A collective of 0 elements gives the
 * stage a Work to wait for. */
static Work *start_nothing(const GradientCodec *codec, ProcessGroup *pg, float *gradients, void *buffer, size_t elements,
                           const char *carries)
{
    (void)buffer, (void)elements;
    return pg_all_reduce_async(pg, gradients, gradients, 0, codec->dtype, REDUCE_SUM, carries);
}

static Work *start_nothing_scatter(const GradientCodec *codec, ProcessGroup *pg, float *gradients, void *buffer,
                                   float *shard, size_t shard_elements, const char *carries)
{
    const float *own = gradients + (size_t)pg_rank(pg) * shard_elements;
    if (own != shard)
        device_copy(shard, own, shard_elements * sizeof(float));
    return start_nothing(codec, pg, gradients, buffer, 0, carries);
}

/* ---- the list ---- */

static const GradientCodec codecs[] = {
    {.name = "fp32", .dtype = DTYPE_F32, .buffer_bytes = no_bytes, .start_all_reduce = start_whole,
     .finish_all_reduce = finish_whole, .start_reduce_scatter = start_whole_scatter,
     .finish_reduce_scatter = finish_whole},
    {.name = "bf16", .dtype = DTYPE_BF16, .rounds = true, .buffer_bytes = rounded_bytes,
     .start_all_reduce = start_rounded, .finish_all_reduce = finish_rounded,
     .start_reduce_scatter = start_rounded_scatter, .finish_reduce_scatter = finish_rounded_scatter,
     .round_share = round_to_half, .round_sum = round_to_half},
    {.name = "fp16", .dtype = DTYPE_F16, .rounds = true, .buffer_bytes = rounded_bytes,
     .start_all_reduce = start_rounded, .finish_all_reduce = finish_rounded,
     .start_reduce_scatter = start_rounded_scatter, .finish_reduce_scatter = finish_rounded_scatter,
     .round_share = round_to_half, .round_sum = round_to_half},
    {.name = "int8", .dtype = DTYPE_INT8_BLOCK, .rounds = true, .on_cpu_only = true, .buffer_bytes = rounded_bytes,
     .start_all_reduce = start_rounded, .finish_all_reduce = finish_rounded,
     .start_reduce_scatter = start_rounded_scatter, .finish_reduce_scatter = finish_rounded_scatter,
     .round_share = round_to_int8, .round_sum = round_to_int8},
    {.name = "noop", .dtype = DTYPE_F32, .sends_nothing = true, .buffer_bytes = no_bytes,
     .start_all_reduce = start_nothing, .finish_all_reduce = finish_whole,
     .start_reduce_scatter = start_nothing_scatter, .finish_reduce_scatter = finish_whole},
    {.name = "powersgd", .dtype = DTYPE_F32, .rounds = true, .on_cpu_only = true, .keeps_state = true},
};

const GradientCodec *codec_find(const char *name)
{
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++)
        if (strcmp(codecs[i].name, name) == 0)
            return &codecs[i];
    return NULL;
}
