/* A correct stage 5 with another design: the buckets are a list of work, each with its own 16-bit copy. One pointer
 * into the list says what is launched next, and one what is waited for next; no_sync has nothing to launch. */
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

typedef struct Item Item;
struct Item {
    ShardedBucket *bucket;
    uint16_t *copy; /* what is sent in 16 bits, and behind it what is received; or NULL */
    int missing;
    Item *next;
};

struct Ddp {
    ProcessGroup *pg;
    ParameterList *parameters;
    Tape *tape;
    DdpOptions options;
    Shards shards;
    Weights weights;
    Readiness readiness;
    Item *items, *to_launch, *to_collect;
    int under_way;
    bool last;
};

static void launch(Ddp *ddp, Item *item)
{
    ShardedBucket *bucket = item->bucket;
    shards_place_gradients(&ddp->shards, bucket);
    const void *send = bucket->gradients;
    void *receive = bucket->gradient_shard;
    if (ddp->options.grad_dtype != DTYPE_F32) {
        send = item->copy = device_alloc((bucket->elements + bucket->shard_elements) * sizeof *item->copy);
        receive = item->copy + bucket->elements;
        device_to_half(item->copy, bucket->gradients, ddp->options.grad_dtype, (int64_t)bucket->elements);
    }
    bucket->reduce_scatter = pg_reduce_scatter_async(ddp->pg, send, receive, bucket->shard_elements,
                                                     ddp->options.grad_dtype, REDUCE_SUM, bucket->gradients_name);
    ddp->under_way++;
}

static void collect(Ddp *ddp, Item *item)
{
    ShardedBucket *bucket = item->bucket;
    work_wait(bucket->reduce_scatter);
    bucket->reduce_scatter = NULL;
    if (item->copy != NULL)
        device_from_half(bucket->gradient_shard, item->copy + bucket->elements, ddp->options.grad_dtype,
                         (int64_t)bucket->shard_elements);
    device_free(item->copy);
    item->copy = NULL;
    if (ddp->options.zero > 1)
        shards_drop_gradients(&ddp->shards, bucket);
    ddp->to_collect = item->next;
    ddp->under_way--;
}

static void gradient_ready(void *listener, Parameter *parameter)
{
    Ddp *ddp = listener;
    readiness_mark(&ddp->readiness, parameter);
    ddp->items[ddp->shards.of_parameter[parameter->index]].missing--;
    for (; ddp->to_launch != NULL && ddp->to_launch->missing == 0; ddp->to_launch = ddp->to_launch->next)
        launch(ddp, ddp->to_launch);
}

static void gradient_needed(void *listener, Parameter *parameter)
{
    Ddp *ddp = listener;
    while (ddp->under_way > 2 || (ddp->under_way > 0 && work_test(ddp->to_collect->bucket->reduce_scatter)))
        collect(ddp, ddp->to_collect);
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
    ddp->items = alloc_or_fault((size_t)ddp->shards.count * sizeof *ddp->items);
    for (int b = 0; b < ddp->shards.count; b++)
        ddp->items[b] = (Item){.bucket = &ddp->shards.buckets[b],
                               .next = b + 1 < ddp->shards.count ? &ddp->items[b + 1] : NULL};
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
    free(ddp->items);
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
    for (int b = 0; b < ddp->shards.count; b++)
        ddp->items[b].missing = ddp->shards.buckets[b].count;
    ddp->to_collect = ddp->to_launch = ddp->last ? ddp->items : NULL;
    bool *used = alloc_or_fault((size_t)ddp->parameters->count * sizeof *used);
    tape_mark_used(ddp->tape, loss, used);
    for (int i = 0; i < ddp->parameters->count && ddp->options.find_unused_parameters; i++)
        if (ddp->parameters->items[i]->tensor.requires_grad && !used[i])
            gradient_ready(ddp, ddp->parameters->items[i]);
    free(used);
}

void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    readiness_check_complete(&ddp->readiness, ddp->parameters);
    weights_end_micro_batch(&ddp->weights, ddp->last);
    for (int b = 0; b < ddp->shards.count && ddp->last; b++) {
        if (ddp->to_collect == &ddp->items[b])
            collect(ddp, ddp->to_collect);
        device_scale(ddp->shards.buckets[b].gradient_shard, gradient_scale,
                     (int64_t)ddp->shards.buckets[b].shard_elements);
    }
    if (ddp->options.find_unused_parameters && ddp->last)
        readiness_agree_on_use(ddp->pg, ddp->parameters);
}
