/* buckets.c: decides which gradient goes into which bucket, and places the gradients there. */
#include "stage2_bucketed/buckets.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"

/* note: bucket-plan
 * A bucket closes after the gradient that fills it, so it may be larger than its cap. The last one may be smaller. Only
 * the sizes, their order and the caps decide. These are the same on all ranks, and so is the plan. */
int buckets_plan(const size_t *sizes, int count, size_t first_cap, size_t cap, int *bucket_of)
{
    int bucket = 0;
    size_t filled = 0;
    for (int i = 0; i < count; i++) {
        bucket_of[i] = bucket;
        filled += sizes[i];
        if (filled >= (bucket == 0 ? first_cap : cap)) {
            bucket++;
            filled = 0;
        }
    }
    return count > 0 ? bucket_of[count - 1] + 1 : 0; /* the last bucket may stay below its cap */
}

/* Writes the indices of the trained parameters to order, in the reverse order of registration: backward computes the
 * last layer's gradients first. Returns their number. */
static int list_trained_reversed(const ParameterList *parameters, int *order)
{
    int count = 0;
    for (int i = parameters->count - 1; i >= 0; i--)
        if (parameters->items[i]->tensor.requires_grad)
            order[count++] = i;
    return count;
}

/* Plans the buckets. order: the indices of parameters; trained: how many. Sets buckets->count and of_parameter. */
static void assign_buckets(Buckets *buckets, const ParameterList *parameters, const int *order, int trained,
                           size_t first_cap, size_t cap)
{
    size_t *sizes = alloc_or_fault((size_t)trained * sizeof *sizes);
    int *bucket_of = alloc_or_fault((size_t)trained * sizeof *bucket_of);
    for (int i = 0; i < trained; i++)
        sizes[i] = (size_t)tensor_count(&parameters->items[order[i]]->tensor) * sizeof(float);
    buckets->count = buckets_plan(sizes, trained, first_cap, cap, bucket_of);
    for (int i = 0; i < parameters->count; i++)
        buckets->of_parameter[i] = -1;
    for (int i = 0; i < trained; i++)
        buckets->of_parameter[order[i]] = bucket_of[i];
    free(sizes);
    free(bucket_of);
}

/* Lists each bucket's parameters in the order in which their gradients lie there, and adds up its elements, gaps
 * included. */
static void fill_buckets(Buckets *buckets, const ParameterList *parameters, const int *order, int trained)
{
    for (int i = 0; i < trained; i++) {
        Bucket *bucket = &buckets->items[buckets->of_parameter[order[i]]];
        if (bucket->parameters == NULL)
            bucket->parameters = alloc_or_fault((size_t)trained * sizeof(Parameter *));
        bucket->parameters[bucket->count++] = parameters->items[order[i]];
        bucket->elements += parameter_gradient_bytes(parameters->items[order[i]]) / sizeof(float);
    }
}

/* note: bucket-slices
 * A slice is a gradient, padded so that the next slice also starts on a 64-byte boundary (on a GPU: 256). At another
 * alignment a kernel may add numbers in another order, and round differently. Here a gradient has the same alignment in
 * any bucket, so no bit of it depends on the plan. The gaps are sent and scaled, too; the optimizer skips them. */
static void place_gradients(Bucket *bucket, float *slice)
{
    bucket->data = slice;
    for (int i = 0; i < bucket->count; i++) {
        bucket->parameters[i]->tensor.grad = slice;
        bucket->parameters[i]->gradient_room = parameter_gradient_bytes(bucket->parameters[i]);
        slice += bucket->parameters[i]->gradient_room / sizeof(float);
    }
}

/* note: buckets-create
 * The stage owns the memory; each parameter's tensor.grad points into it. All buckets share one allocation, because
 * the ranks of a host wait for each other at each allocation of shared memory. */
void buckets_create(Buckets *buckets, ProcessGroup *pg, ParameterList *parameters, const int *order, size_t first_cap,
                    size_t cap)
{
    int *reverse = alloc_or_fault((size_t)parameters->count * sizeof *reverse);
    const int trained = list_trained_reversed(parameters, reverse);
    if (order == NULL)
        order = reverse;
    *buckets = (Buckets){.pg = pg};
    buckets->of_parameter = alloc_or_fault((size_t)parameters->count * sizeof *buckets->of_parameter);
    assign_buckets(buckets, parameters, order, trained, first_cap, cap);
    buckets->items = alloc_or_fault((size_t)buckets->count * sizeof *buckets->items);
    fill_buckets(buckets, parameters, order, trained);
    float *data = buckets->block = pg_alloc_shared(pg, parameters_gradient_bytes(parameters));
    for (int b = 0; b < buckets->count; b++) {
        snprintf(buckets->items[b].name, sizeof buckets->items[b].name, "bucket %d", b);
        place_gradients(&buckets->items[b], data);
        data += buckets->items[b].elements;
    }
    free(reverse);
}

void buckets_free(Buckets *buckets)
{
    for (int b = 0; b < buckets->count; b++)
        free(buckets->items[b].parameters);
    pg_free_shared(buckets->pg, buckets->block);
    free(buckets->items);
    free(buckets->of_parameter);
    *buckets = (Buckets){0};
}
