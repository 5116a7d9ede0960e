/* buckets.c: assigns parameters to buckets and places their gradients there. */
#include "ddp/buckets.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"

/* Trained parameters in reverse order of registration; returns how many. */
static int reverse_order(const ParameterList *parameters, int *order)
{
    int count = 0;
    for (int i = parameters->count - 1; i >= 0; i--)
        if (parameters->items[i]->tensor.requires_grad)
            order[count++] = i;
    return count;
}

/* note: bucket-slices
 * A slice is a gradient, padded so that the next slice also starts on a 64-byte boundary (on a GPU: 256). Every
 * gradient then has the same alignment in every bucket, and kernels compute the same bits. */
static void place_gradients(Bucket *bucket, float *slice)
{
    bucket->data = slice;
    for (int i = 0; i < bucket->count; i++) {
        bucket->parameters[i]->tensor.grad = slice;
        bucket->parameters[i]->gradient_room = parameter_gradient_bytes(bucket->parameters[i]);
        slice += bucket->parameters[i]->gradient_room / sizeof(float);
    }
}

void buckets_create(Buckets *buckets, ProcessGroup *pg, ParameterList *parameters, const int *order, size_t first_cap,
                    size_t cap)
{
    size_t room = (size_t)parameters->count;
    int *reverse = alloc_or_fault(room * sizeof *reverse), *bucket_of = alloc_or_fault(room * sizeof *bucket_of);
    size_t *sizes = alloc_or_fault(room * sizeof *sizes), all_bytes = 0;
    int trained = reverse_order(parameters, reverse);
    if (order == NULL)
        order = reverse;
    for (int i = 0; i < trained; i++)
        sizes[i] = (size_t)tensor_count(&parameters->items[order[i]]->tensor) * sizeof(float);

    *buckets = (Buckets){.pg = pg};
    buckets->count = buckets_plan(sizes, trained, first_cap, cap, bucket_of);
    buckets->items = alloc_or_fault((size_t)buckets->count * sizeof *buckets->items);
    buckets->of_parameter = alloc_or_fault(room * sizeof *buckets->of_parameter);
    for (int i = 0; i < parameters->count; i++)
        buckets->of_parameter[i] = -1;
    for (int i = 0; i < trained; i++) {
        Bucket *bucket = &buckets->items[bucket_of[i]];
        if (bucket->parameters == NULL)
            bucket->parameters = alloc_or_fault(room * sizeof(Parameter *));
        bucket->parameters[bucket->count++] = parameters->items[order[i]];
        const size_t bytes = parameter_gradient_bytes(parameters->items[order[i]]);
        bucket->elements += bytes / sizeof(float);
        all_bytes += bytes;
        buckets->of_parameter[order[i]] = bucket_of[i];
    }
    /* One allocation for all buckets: with shared memory, ranks meet for each one. */
    buckets->block = pg_alloc_shared(pg, all_bytes);
    float *data = buckets->block;
    for (int b = 0; b < buckets->count; b++) {
        snprintf(buckets->items[b].name, sizeof buckets->items[b].name, "bucket %d", b);
        place_gradients(&buckets->items[b], data);
        data += buckets->items[b].elements;
    }
    free(reverse);
    free(bucket_of);
    free(sizes);
}

/* Each buffer begins at a multiple of 16 bytes. */
static size_t codec_bytes(const GradientCodec *codec, const Bucket *bucket, int world_size)
{
    return (codec->buffer_bytes(codec, bucket->elements, world_size) + 15) / 16 * 16;
}

void buckets_add_codec_buffers(Buckets *buckets, const GradientCodec *codec)
{
    const int world_size = pg_world_size(buckets->pg);
    for (int b = 0; b < buckets->count; b++)
        buckets->sent_bytes += codec_bytes(codec, &buckets->items[b], world_size);
    if (buckets->sent_bytes == 0)
        return;
    char *sent = buckets->sent_block = pg_alloc_shared(buckets->pg, buckets->sent_bytes);
    for (int b = 0; b < buckets->count; b++) {
        buckets->items[b].sent = sent;
        sent += codec_bytes(codec, &buckets->items[b], world_size);
    }
}

void buckets_free(Buckets *buckets)
{
    for (int b = 0; b < buckets->count; b++)
        free(buckets->items[b].parameters);
    pg_free_shared(buckets->pg, buckets->block);
    pg_free_shared(buckets->pg, buckets->sent_block);
    free(buckets->items);
    free(buckets->of_parameter);
    *buckets = (Buckets){0};
}

size_t buckets_largest(const Buckets *buckets)
{
    size_t largest = 0;
    for (int b = 0; b < buckets->count; b++)
        if (buckets->items[b].elements > largest)
            largest = buckets->items[b].elements;
    return largest;
}
