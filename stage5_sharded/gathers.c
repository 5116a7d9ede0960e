/* gathers.c: sends this rank's shard of a bucket's weights, and puts all ranks' shards together. */
#include "stage5_sharded/gathers.h"

#include "autograd/rounding.h"
#include "base/check.h"
#include "device/device.h"

typedef void (*Convert)(float *weights, void *sent, DType type, int64_t count);

static void pack(float *weights, void *sent, DType type, int64_t count)
{
    if (type == DTYPE_F32)
        device_copy(sent, weights, (size_t)count * sizeof(float));
    else
        device_to_half(sent, weights, type, count);
}

static void unpack(float *weights, void *sent, DType type, int64_t count)
{
    if (type == DTYPE_F32)
        device_copy(weights, sent, (size_t)count * sizeof(float));
    else
        device_from_half(weights, sent, type, count);
}

/* A rank's message has the part of each parameter that lies in its shard, in the parameter's type; each begins aligned.
 * Converts from the shard or to it, and returns the message's bytes. convert: NULL to count them only. */
static size_t convert_shard(const ShardedBucket *bucket, int rank, float *shard, unsigned char *message,
                            Convert convert)
{
    const size_t alignment = device_alignment(), begin = (size_t)rank * bucket->shard_elements;
    size_t bytes = 0;
    for (int i = 0; i < bucket->count; i++) {
        const Slice slice = shards_slice_of_rank(bucket, i, rank);
        if (slice.count > 0 && convert != NULL)
            convert(shard + (bucket->offsets[i] + (size_t)slice.begin - begin), message + bytes, bucket->types[i],
                    slice.count);
        bytes += ((size_t)slice.count * dtype_size(bucket->types[i]) + alignment - 1) / alignment * alignment;
    }
    return bytes;
}

void gathers_forget_reads(Shards *shards)
{
    for (int b = 0; b < shards->count; b++)
        for (int i = 0; i < shards->buckets[b].count; i++)
            parameter_forget_reads(shards->buckets[b].parameters[i]);
}

/* An all-gather takes equally much of each rank, but the ranks' shards hold different parameters. So all messages are
 * as long as the longest one. */
void gathers_choose_types(Shards *shards)
{
    for (int b = 0; b < shards->count; b++) {
        ShardedBucket *bucket = &shards->buckets[b];
        bool rounds = false;
        for (int i = 0; i < bucket->count; i++) {
            bucket->types[i] = parameter_read_as(bucket->parameters[i]);
            rounds = rounds || bucket->types[i] != DTYPE_F32;
        }
        bucket->message_bytes = 0;
        for (int rank = 0; rank < pg_world_size(shards->pg) && rounds; rank++) {
            const size_t bytes = convert_shard(bucket, rank, NULL, NULL, NULL);
            bucket->message_bytes = bytes > bucket->message_bytes ? bytes : bucket->message_bytes;
        }
    }
}

void gathers_check_types(const Shards *shards)
{
    for (int b = 0; b < shards->count; b++)
        for (int i = 0; i < shards->buckets[b].count; i++) {
            const DType sent = shards->buckets[b].types[i];
            const Parameter *parameter = shards->buckets[b].parameters[i];
            CHECK(sent == DTYPE_F32 || parameter_read_as(parameter) == sent,
                  "parameter %s was gathered in %s, because only matrix products read it in the first micro-batch; but "
                  "now another operation has read it, rounded: with --zero 3, each micro-batch must use weights alike",
                  parameter->name, dtype_name(sent));
        }
}

void gathers_start(Shards *shards, ShardedBucket *bucket, bool every_bit)
{
    const size_t bytes = bucket->message_bytes;
    shards_place_weights(shards, bucket);
    bucket->is_rounded = bytes > 0 && !every_bit;
    if (!bucket->is_rounded) {
        bucket->gather = pg_all_gather_async(shards->pg, bucket->weight_shard, bucket->weights, bucket->shard_elements,
                                             DTYPE_F32, bucket->weights_name);
        return;
    }
    bucket->messages = device_alloc((size_t)pg_world_size(shards->pg) * bytes);
    shards_count_gathered(shards, (size_t)pg_world_size(shards->pg) * bytes);
    unsigned char *own = bucket->messages + (size_t)pg_rank(shards->pg) * bytes;
    convert_shard(bucket, pg_rank(shards->pg), bucket->weight_shard, own, pack);
    /* A gather only copies, so the message may pass as float32: two numbers of 16 bits count as one element. */
    bucket->gather = pg_all_gather_async(shards->pg, own, bucket->messages, bytes / sizeof(float), DTYPE_F32,
                                         bucket->weights_name);
}

void gathers_finish(Shards *shards, ShardedBucket *bucket)
{
    if (bucket->gather == NULL)
        return;
    work_wait(bucket->gather);
    bucket->gather = NULL;
    for (int rank = 0; rank < pg_world_size(shards->pg) && bucket->is_rounded; rank++)
        convert_shard(bucket, rank, bucket->weights + (size_t)rank * bucket->shard_elements,
                      bucket->messages + (size_t)rank * bucket->message_bytes, unpack);
    if (bucket->is_rounded)
        shards->memory.gathered_weights -= (size_t)pg_world_size(shards->pg) * bucket->message_bytes;
    device_free(bucket->messages);
    bucket->messages = NULL;
    for (int i = 0; i < bucket->count; i++)
        parameter_changed(bucket->parameters[i]);
}
