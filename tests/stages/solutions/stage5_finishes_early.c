/* A correct stage 5 with another design: every event finishes the reduce-scatters that are over, and backward waits by
 * bytes of whole gradients, not by buckets under way. A bucket that is under way has a reduce_scatter: no index. */
#include "ddp.h"

#include <stdlib.h>

#include "base/check.h"
#include "ddp/readiness.h"
#include "ddp/replicas.h"
#include "ddp/shards.h"
#include "device/device.h"
#include "weights.h"

const int ddp_stage_number = 5;
const char *const ddp_stage_name = "sharded";

struct Ddp {
    ProcessGroup *pg;
    ParameterList *parameters;
    Tape *tape;
    DdpOptions options;
    Shards shards;
    Weights weights;
    Readiness readiness;
    size_t most_bytes; /* of whole gradients, before backward waits */
    int launched;
    bool last;
};

static void finish(Ddp *ddp, ShardedBucket *bucket)
{
    work_wait(bucket->reduce_scatter);
    bucket->reduce_scatter = NULL;
    if (bucket->half != NULL)
        device_from_half(bucket->gradient_shard, bucket->half_shard, ddp->options.grad_dtype,
                         (int64_t)bucket->shard_elements);
    device_free(bucket->half);
    bucket->half = NULL;
    if (ddp->options.zero != 1)
        shards_drop_gradients(&ddp->shards, bucket);
}

/* Waits only while there are more than `most` bytes of whole gradients. Level 1 counts none, so it never waits. */
static void finish_those_over(Ddp *ddp, size_t most)
{
    for (int b = 0; b < ddp->launched; b++) {
        ShardedBucket *bucket = &ddp->shards.buckets[b];
        if (bucket->reduce_scatter == NULL)
            continue;
        if (ddp->shards.whole_gradients <= most && !work_test(bucket->reduce_scatter))
            return;
        finish(ddp, bucket);
    }
}

static void launch(Ddp *ddp, ShardedBucket *bucket)
{
    shards_place_gradients(&ddp->shards, bucket);
    if (ddp->options.grad_dtype == DTYPE_F32) {
        bucket->reduce_scatter = pg_reduce_scatter_async(ddp->pg, bucket->gradients, bucket->gradient_shard,
                                                         bucket->shard_elements, DTYPE_F32, REDUCE_SUM,
                                                         bucket->gradients_name);
        return;
    }
    bucket->half = device_alloc(bucket->elements * sizeof *bucket->half);
    bucket->half_shard = bucket->half + (size_t)pg_rank(ddp->pg) * bucket->shard_elements;
    device_to_half(bucket->half, bucket->gradients, ddp->options.grad_dtype, (int64_t)bucket->elements);
    bucket->reduce_scatter = pg_reduce_scatter_async(ddp->pg, bucket->half, bucket->half_shard, bucket->shard_elements,
                                                     ddp->options.grad_dtype, REDUCE_SUM, bucket->gradients_name);
}

static void gradient_ready(void *listener, Parameter *parameter)
{
    Ddp *ddp = listener;
    readiness_mark(&ddp->readiness, parameter);
    if (!ddp->last)
        return;
    shards_bucket(&ddp->shards, parameter)->pending--;
    while (ddp->launched < ddp->shards.count && ddp->shards.buckets[ddp->launched].pending == 0)
        launch(ddp, &ddp->shards.buckets[ddp->launched++]);
    finish_those_over(ddp, SIZE_MAX);
}

static void gradient_needed(void *listener, Parameter *parameter)
{
    Ddp *ddp = listener;
    finish_those_over(ddp, ddp->most_bytes);
    shards_place_gradients(&ddp->shards, shards_bucket(&ddp->shards, parameter));
}

static void parameters_needed(void *listener, Parameter *const *parameters, int count)
{
    weights_need(&((Ddp *)listener)->weights, parameters, count);
}

Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    const ShardCaps caps = {options->bucket_per_layer, options->first_bucket_cap_bytes, options->bucket_cap_bytes};
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    *ddp = (Ddp){.pg = pg, .parameters = parameters, .tape = tape, .options = *options};
    replicas_check_same_model(pg, parameters);
    replicas_broadcast(pg, parameters);
    shards_create(&ddp->shards, pg, parameters, caps, options->zero);
    weights_create(&ddp->weights, &ddp->shards);
    readiness_create(&ddp->readiness, parameters);
    for (int b = 0; b < ddp->shards.count; b++) {
        const size_t bytes = 2 * ddp->shards.buckets[b].elements * sizeof(float);
        ddp->most_bytes = bytes > ddp->most_bytes ? bytes : ddp->most_bytes; /* two of the largest bucket */
    }
    tape->on_gradient_ready = gradient_ready;
    tape->on_gradient_needed = gradient_needed;
    tape->on_parameters_needed = parameters_needed;
    tape->listener = ddp;
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    weights_gather_all(&ddp->weights);
    ddp->tape->on_gradient_ready = NULL;
    ddp->tape->on_gradient_needed = NULL;
    ddp->tape->on_parameters_needed = NULL;
    readiness_free(&ddp->readiness);
    weights_free(&ddp->weights);
    shards_free(&ddp->shards);
    free(ddp);
}

int ddp_bucket_count(const Ddp *ddp)
{
    return ddp->shards.count;
}

const Partition *ddp_partition(Ddp *ddp)
{
    return &ddp->shards.partition;
}

void ddp_after_update(Ddp *ddp)
{
    weights_after_update(&ddp->weights);
}

void ddp_gather_weights(Ddp *ddp)
{
    weights_gather_all(&ddp->weights);
}

DdpMemory ddp_memory(const Ddp *ddp, const ParameterList *parameters)
{
    (void)parameters;
    return (DdpMemory){ddp->shards.weight_bytes, ddp->shards.gradient_bytes, ddp->shards.most_gathered,
                       ddp->shards.most_whole_gradients};
}

void ddp_before_forward(Ddp *ddp, bool last_micro_batch)
{
    weights_begin_micro_batch(&ddp->weights);
    ddp->last = last_micro_batch;
}

void ddp_before_backward(Ddp *ddp, Tensor *loss)
{
    bool *used = alloc_or_fault((size_t)ddp->parameters->count * sizeof *used);
    readiness_begin(&ddp->readiness, ddp->parameters);
    ddp->launched = 0;
    for (int b = 0; b < ddp->shards.count; b++)
        ddp->shards.buckets[b].pending = ddp->shards.buckets[b].count;
    tape_mark_used(ddp->tape, loss, used);
    for (int i = ddp->parameters->count - 1; i >= 0 && ddp->options.find_unused_parameters; i--)
        if (ddp->parameters->items[i]->tensor.requires_grad && !used[i])
            gradient_ready(ddp, ddp->parameters->items[i]);
    free(used);
}

void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    readiness_check_complete(&ddp->readiness, ddp->parameters);
    weights_end_micro_batch(&ddp->weights, ddp->last);
    if (!ddp->last)
        return;
    for (int b = 0; b < ddp->shards.count; b++)
        if (ddp->shards.buckets[b].reduce_scatter != NULL)
            finish(ddp, &ddp->shards.buckets[b]);
    for (int i = 0; i < ddp->parameters->count; i++) { /* slice by slice: nothing reads the padding */
        const Slice slice = ddp->shards.partition.slices[i];
        device_scale(slice.grad, gradient_scale, slice.count);
    }
    if (ddp->options.find_unused_parameters)
        readiness_agree_on_use(ddp->pg, ddp->parameters);
}
