/* A correct stage 5 with another design: every sum arrives in a buffer of its own, in 32 bits too, and is copied from
 * there to the shard. No bucket counts: it is full if all its parameters are marked as ready. */
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
    void **sums; /* by bucket: room for the sum of this rank's shard, in 16 or 32 bits */
    int launched, finished;
    bool last;
};

static void launch_next(Ddp *ddp)
{
    ShardedBucket *bucket = &ddp->shards.buckets[ddp->launched];
    const DType dtype = ddp->options.grad_dtype;
    shards_place_gradients(&ddp->shards, bucket);
    void *sent = bucket->gradients;
    if (dtype != DTYPE_F32) {
        sent = bucket->half = device_alloc(bucket->elements * sizeof *bucket->half);
        device_to_half(sent, bucket->gradients, dtype, (int64_t)bucket->elements);
    }
    bucket->reduce_scatter = pg_reduce_scatter_async(ddp->pg, sent, ddp->sums[ddp->launched++], bucket->shard_elements,
                                                     dtype, REDUCE_SUM, bucket->gradients_name);
}

static void finish_next(Ddp *ddp)
{
    ShardedBucket *bucket = &ddp->shards.buckets[ddp->finished];
    const void *sum = ddp->sums[ddp->finished++];
    work_wait(bucket->reduce_scatter);
    bucket->reduce_scatter = NULL;
    if (ddp->options.grad_dtype == DTYPE_F32)
        device_copy(bucket->gradient_shard, sum, bucket->shard_elements * sizeof(float));
    else
        device_from_half(bucket->gradient_shard, sum, ddp->options.grad_dtype, (int64_t)bucket->shard_elements);
    device_free(bucket->half);
    bucket->half = NULL;
    if (ddp->options.zero > 1)
        shards_drop_gradients(&ddp->shards, bucket);
}

static bool is_full(const Ddp *ddp, const ShardedBucket *bucket)
{
    for (int i = 0; i < bucket->count; i++)
        if (!ddp->readiness.ready[bucket->parameters[i]->index])
            return false;
    return true;
}

static void gradient_ready(void *listener, Parameter *parameter)
{
    Ddp *ddp = listener;
    readiness_mark(&ddp->readiness, parameter);
    while (ddp->last && ddp->launched < ddp->shards.count && is_full(ddp, &ddp->shards.buckets[ddp->launched]))
        launch_next(ddp);
}

/* At most one bucket waits to be sent while the next one is filled. */
static void gradient_needed(void *listener, Parameter *parameter)
{
    Ddp *ddp = listener;
    while (ddp->launched - ddp->finished > 1)
        finish_next(ddp);
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
    ddp->sums = alloc_or_fault((size_t)ddp->shards.count * sizeof *ddp->sums);
    for (int b = 0; b < ddp->shards.count; b++)
        ddp->sums[b] = device_alloc(ddp->shards.buckets[b].shard_elements * sizeof(float));
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
    for (int b = 0; b < ddp->shards.count; b++)
        device_free(ddp->sums[b]);
    free(ddp->sums);
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
    readiness_begin(&ddp->readiness, ddp->parameters);
    ddp->launched = ddp->finished = 0;
    if (!ddp->options.find_unused_parameters)
        return;
    bool *used = alloc_or_fault((size_t)ddp->parameters->count * sizeof *used);
    tape_mark_used(ddp->tape, loss, used);
    for (int i = 0; i < ddp->parameters->count; i++)
        if (ddp->parameters->items[i]->tensor.requires_grad && !used[i])
            gradient_ready(ddp, ddp->parameters->items[i]);
    free(used);
}

void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    readiness_check_complete(&ddp->readiness, ddp->parameters);
    weights_end_micro_batch(&ddp->weights, ddp->last);
    while (ddp->finished < ddp->launched)
        finish_next(ddp);
    for (int b = 0; b < ddp->shards.count && ddp->last; b++)
        device_scale(ddp->shards.buckets[b].gradient_shard, gradient_scale,
                     (int64_t)ddp->shards.buckets[b].shard_elements);
    if (ddp->options.find_unused_parameters && ddp->last)
        readiness_agree_on_use(ddp->pg, ddp->parameters);
}
