/* shards.c: cuts buckets into shards, and moves weights and gradients into them. */
#include "stage5_sharded/shards.h"

#include <stdio.h>
#include <stdlib.h>

#include "autograd/rounding.h"
#include "base/check.h"
#include "device/device.h"
#include "stage2_bucketed/buckets.h"

/* ---- the plan ---- */

static size_t round_up(size_t elements, size_t multiple)
{
    return (elements + multiple - 1) / multiple * multiple;
}

/* Fills order with the trained parameters in the reverse order of registration, and bucket_of with the number of each
 * one's bucket. Returns the number of parameters. */
static int plan(const ParameterList *parameters, const DdpOptions *options, int *order, int *bucket_of, int *buckets)
{
    int count = 0;
    size_t *sizes = alloc_or_fault((size_t)parameters->count * sizeof *sizes);
    for (int i = parameters->count - 1; i >= 0; i--) {
        const Parameter *parameter = parameters->items[i];
        if (!parameter->tensor.requires_grad)
            continue;
        bool same_layer = count > 0 && parameter->layer == parameters->items[order[count - 1]]->layer;
        bucket_of[count] = count == 0 ? 0 : bucket_of[count - 1] + !same_layer;
        sizes[count] = (size_t)tensor_count(&parameter->tensor) * sizeof(float);
        order[count++] = i;
    }
    *buckets = count > 0 ? bucket_of[count - 1] + 1 : 0;
    if (!options->sharding->bucket_per_layer)
        *buckets = buckets_plan(sizes, count, options->first_bucket_cap_bytes, options->bucket_cap_bytes, bucket_of);
    free(sizes);
    return count;
}

static void add_parameter(ShardedBucket *bucket, Parameter *parameter, size_t room)
{
    if (bucket->parameters == NULL) {
        bucket->parameters = alloc_or_fault(room * sizeof *bucket->parameters);
        bucket->offsets = alloc_or_fault(room * sizeof *bucket->offsets);
        bucket->types = alloc_or_fault(room * sizeof *bucket->types);
    }
    bucket->parameters[bucket->count] = parameter;
    bucket->offsets[bucket->count++] = bucket->elements;
    bucket->elements += round_up((size_t)tensor_count(&parameter->tensor), SQUARES_BLOCK);
}

static void make_buckets(Shards *shards, ParameterList *parameters, const DdpOptions *options)
{
    const size_t room = (size_t)parameters->count, ranks = (size_t)pg_world_size(shards->pg);
    int *order = alloc_or_fault(room * sizeof *order), *bucket_of = alloc_or_fault(room * sizeof *bucket_of);
    const int trained = plan(parameters, options, order, bucket_of, &shards->count);
    shards->buckets = alloc_or_fault((size_t)shards->count * sizeof *shards->buckets);
    for (int i = 0; i < parameters->count; i++)
        shards->of_parameter[i] = -1;
    for (int i = 0; i < trained; i++) {
        add_parameter(&shards->buckets[bucket_of[i]], parameters->items[order[i]], room);
        shards->of_parameter[order[i]] = bucket_of[i];
    }
    for (int b = 0; b < shards->count; b++) {
        ShardedBucket *bucket = &shards->buckets[b];
        snprintf(bucket->gradients_name, sizeof bucket->gradients_name, "gradients of bucket %d", b);
        snprintf(bucket->weights_name, sizeof bucket->weights_name, "weights of bucket %d", b);
        bucket->elements = round_up(bucket->elements, ranks * SQUARES_BLOCK);
        bucket->shard_elements = bucket->elements / ranks;
    }
    free(order);
    free(bucket_of);
}

Slice shards_slice_of_rank(const ShardedBucket *bucket, int i, int rank)
{
    const size_t offset = bucket->offsets[i], count = (size_t)tensor_count(&bucket->parameters[i]->tensor);
    const size_t begin = (size_t)rank * bucket->shard_elements, end = begin + bucket->shard_elements;
    const size_t first = offset > begin ? offset : begin, last = offset + count < end ? offset + count : end;
    return first < last ? (Slice){.begin = (int64_t)(first - offset), .count = (int64_t)(last - first)} : (Slice){0};
}

ShardedBucket *shards_bucket(const Shards *shards, const Parameter *parameter)
{
    const int number = shards->of_parameter[parameter->index];
    return number < 0 ? NULL : &shards->buckets[number];
}

/* ---- what the optimizer needs of the other ranks ---- */

static void add_up(void *owner, double *squares, size_t count)
{
    pg_all_reduce(((Shards *)owner)->pg, squares, squares, count, DTYPE_F64, REDUCE_SUM, "squares of the gradients");
}

static void gather_slices(void *owner, int index, const float *slice, float *whole)
{
    const Shards *shards = owner;
    if (shards->of_parameter[index] < 0)
        return;
    const ShardedBucket *bucket = &shards->buckets[shards->of_parameter[index]];
    int i = 0;
    while (bucket->parameters[i]->index != index)
        i++;
    for (int rank = 0; rank < pg_world_size(shards->pg); rank++) {
        const Slice part = shards_slice_of_rank(bucket, i, rank);
        if (rank == pg_rank(shards->pg))
            device_copy(whole + part.begin, slice, (size_t)part.count * sizeof(float));
        if (part.count > 0)
            pg_broadcast(shards->pg, whole + part.begin, (size_t)part.count, DTYPE_F32, rank, "optimizer's state");
    }
}

/* ---- memory ---- */

static size_t bytes_of(size_t elements)
{
    return elements * sizeof(float);
}

/* Points the parameters into the bucket's whole weights, or nowhere. */
static void point_at_weights(ShardedBucket *bucket)
{
    for (int i = 0; i < bucket->count; i++)
        bucket->parameters[i]->tensor.data = bucket->weights != NULL ? bucket->weights + bucket->offsets[i] : NULL;
}

static void point_at_gradients(ShardedBucket *bucket)
{
    for (int i = 0; i < bucket->count; i++) {
        Parameter *parameter = bucket->parameters[i];
        parameter->tensor.grad = bucket->gradients != NULL ? bucket->gradients + bucket->offsets[i] : NULL;
        parameter->gradient_room = bytes_of(round_up((size_t)tensor_count(&parameter->tensor), SQUARES_BLOCK));
    }
}

/* note: spare-blocks
 * Whole gradients and weights last for a part of a step. Blocks of 256 KiB and more go back to the system when they are
 * freed (RETURNED_WHEN_FREED in device_cpu.c), and the system clears every page of the next one: 650 pages in a
 * backward pass of the MLP at level 2, which doubled its time. So the two blocks that were dropped last are kept until
 * a bucket needs one of their size. Sizes are rounded up to multiples of 256 KiB, so that more buckets have the same.
 * Under the address sanitizer nothing is kept or rounded: it shall see every use of a dropped block, and every write
 * beyond the end. */
#ifdef __SANITIZE_ADDRESS__
#define KEPT_FROM SIZE_MAX
#else
#define KEPT_FROM ((size_t)256 << 10)
#endif

static size_t whole_bytes(const ShardedBucket *bucket)
{
    const size_t bytes = bytes_of(bucket->elements);
    return bytes < KEPT_FROM ? bytes : round_up(bytes, KEPT_FROM);
}

/* Memory for the whole bucket: zeroed, or uninitialized. */
static float *take_whole(Shards *shards, const ShardedBucket *bucket, bool zeroed)
{
    for (int i = 0; i < SPARES; i++)
        if (shards->spares[i].block != NULL && shards->spares[i].bytes == whole_bytes(bucket)) {
            float *block = shards->spares[i].block;
            shards->spares[i].block = NULL;
            if (zeroed)
                device_zero(block, bytes_of(bucket->elements));
            return block;
        }
    return device_alloc(whole_bytes(bucket));
}

static void drop_whole(Shards *shards, const ShardedBucket *bucket, float *block)
{
    Spare *spares = shards->spares;
    if (whole_bytes(bucket) < KEPT_FROM) {
        device_free(block);
        return;
    }
    if (spares[0].block != NULL) {
        device_free(spares[1].block);
        spares[1] = spares[0];
    }
    spares[0] = (Spare){.block = block, .bytes = whole_bytes(bucket)};
}

void shards_place_gradients(Shards *shards, ShardedBucket *bucket)
{
    if (bucket->gradients != NULL)
        return;
    bucket->gradients = take_whole(shards, bucket, true);
    point_at_gradients(bucket);
    ShardedMemory *memory = &shards->memory;
    memory->whole_gradients += bytes_of(bucket->elements);
    if (memory->whole_gradients > memory->peak_whole_gradients)
        memory->peak_whole_gradients = memory->whole_gradients;
}

void shards_drop_gradients(Shards *shards, ShardedBucket *bucket)
{
    drop_whole(shards, bucket, bucket->gradients);
    bucket->gradients = NULL;
    point_at_gradients(bucket);
    shards->memory.whole_gradients -= bytes_of(bucket->elements);
}

void shards_count_gathered(Shards *shards, size_t bytes)
{
    ShardedMemory *memory = &shards->memory;
    memory->gathered_weights += bytes;
    if (memory->gathered_weights > memory->peak_gathered_weights)
        memory->peak_gathered_weights = memory->gathered_weights;
}

void shards_place_weights(Shards *shards, ShardedBucket *bucket)
{
    if (bucket->weights != NULL)
        return;
    bucket->weights = take_whole(shards, bucket, false);
    point_at_weights(bucket);
    shards_count_gathered(shards, bytes_of(bucket->elements));
}

void shards_drop_weights(Shards *shards, ShardedBucket *bucket)
{
    drop_whole(shards, bucket, bucket->weights);
    bucket->weights = NULL;
    point_at_weights(bucket);
    for (int i = 0; i < bucket->count; i++)
        parameter_drop_copy(bucket->parameters[i]);
    shards->memory.gathered_weights -= bytes_of(bucket->elements);
}

/* Memory for what is always there, in one block. Other ranks read it directly where they share memory, if `shared`. */
static float *take_block(Shards *shards, bool whole, bool shared, size_t *bytes)
{
    size_t elements = 0;
    for (int b = 0; b < shards->count; b++)
        elements += whole ? shards->buckets[b].elements : shards->buckets[b].shard_elements;
    *bytes = bytes_of(elements);
    return shared ? pg_alloc_shared(shards->pg, *bytes) : device_alloc(*bytes);
}

/* Sets a bucket's `whole` and `shard` to the next part of the block, and returns what follows it. */
static float *place(const Shards *shards, const ShardedBucket *bucket, float *block, bool is_whole, float **whole,
                    float **shard)
{
    *whole = is_whole ? block : NULL;
    *shard = is_whole ? block + (size_t)pg_rank(shards->pg) * bucket->shard_elements : block;
    return block + (is_whole ? bucket->elements : bucket->shard_elements);
}

/* Moves the parameters into their bucket, at level 3 only this rank's slices of them. */
static void move_weights(Shards *shards, ShardedBucket *bucket)
{
    const size_t rank = (size_t)pg_rank(shards->pg);
    for (int i = 0; i < bucket->count; i++) {
        Tensor *tensor = &bucket->parameters[i]->tensor;
        Slice slice = shards_slice_of_rank(bucket, i, (int)rank);
        if (slice.count > 0)
            slice.weight = bucket->weight_shard +
                           (bucket->offsets[i] + (size_t)slice.begin - rank * bucket->shard_elements);
        if (shards->level == 3)
            device_copy(slice.weight, (const float *)tensor->data + slice.begin, bytes_of((size_t)slice.count));
        else
            device_copy(bucket->weights + bucket->offsets[i], tensor->data, bytes_of((size_t)tensor_count(tensor)));
        device_free(tensor->data);
        shards->slices[bucket->parameters[i]->index] = slice;
    }
    point_at_weights(bucket);
}

/* A slice's gradient has the same place in its shard as its weight. */
static void point_slices_at_gradients(Shards *shards, const ShardedBucket *bucket)
{
    for (int i = 0; i < bucket->count; i++) {
        Slice *slice = &shards->slices[bucket->parameters[i]->index];
        if (slice->count > 0)
            slice->grad = bucket->gradient_shard + (slice->weight - bucket->weight_shard);
    }
}

void shards_create(Shards *shards, ProcessGroup *pg, ParameterList *parameters, const DdpOptions *options)
{
    const int level = options->sharding->level, shard_ranks = options->sharding->shard_ranks;
    CHECK(level >= 1 && level <= 3, "there are levels 1, 2 and 3 of sharding, not %d", level);
    const size_t count = (size_t)parameters->count;
    *shards = (Shards){.pg = pg, .level = level};
    shards->owns_group = shard_ranks > 0 && shard_ranks < pg_world_size(pg);
    if (shards->owns_group)
        shards->pg = pg_split_copies(pg, shard_ranks);
    shards->of_parameter = alloc_or_fault(count * sizeof *shards->of_parameter);
    shards->slices = alloc_or_fault(count * sizeof *shards->slices);
    make_buckets(shards, parameters, options);
    float *next = shards->weight_block = take_block(shards, level < 3, true, &shards->memory.weights);
    for (int b = 0; b < shards->count; b++) {
        ShardedBucket *bucket = &shards->buckets[b];
        next = place(shards, bucket, next, level < 3, &bucket->weights, &bucket->weight_shard);
        move_weights(shards, bucket);
    }
    /* Only now: move_weights() has freed the weights' old memory. */
    next = shards->gradient_block = take_block(shards, level == 1, level == 1, &shards->memory.gradients);
    for (int b = 0; b < shards->count; b++) {
        ShardedBucket *bucket = &shards->buckets[b];
        next = place(shards, bucket, next, level == 1, &bucket->gradients, &bucket->gradient_shard);
        point_at_gradients(bucket);
        point_slices_at_gradients(shards, bucket);
    }
    shards->partition =
        (Partition){.slices = shards->slices, .add_up = add_up, .gather = gather_slices, .owner = shards};
}

static void give_back(Shards *shards, ShardedBucket *bucket)
{
    for (int i = 0; i < bucket->count; i++) {
        Tensor *tensor = &bucket->parameters[i]->tensor;
        const void *shared = tensor->data;
        tensor->data = device_alloc(bytes_of((size_t)tensor_count(tensor)));
        device_copy(tensor->data, shared, bytes_of((size_t)tensor_count(tensor)));
        tensor->grad = NULL;
    }
    if (shards->level == 3)
        device_free(bucket->weights);
    if (shards->level >= 2)
        device_free(bucket->gradients);
    device_free(bucket->encoded);
    free(bucket->parameters);
    free(bucket->offsets);
    free(bucket->types);
}

void shards_free(Shards *shards)
{
    for (int b = 0; b < shards->count; b++)
        give_back(shards, &shards->buckets[b]);
    for (int i = 0; i < SPARES; i++)
        device_free(shards->spares[i].block);
    pg_free_shared(shards->pg, shards->weight_block);
    if (shards->level == 1)
        pg_free_shared(shards->pg, shards->gradient_block);
    else
        device_free(shards->gradient_block);
    if (shards->owns_group)
        pg_destroy(shards->pg);
    free(shards->buckets);
    free(shards->of_parameter);
    free(shards->slices);
    *shards = (Shards){0};
}
