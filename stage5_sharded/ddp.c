/* Stage 5: no rank holds everything (ZeRO: Rajbhandari et al., 2020; PyTorch calls level 3 "fully sharded").
 *
 * New over stage 4: each bucket is cut into one shard per rank, and each rank updates its own shard only.
 *   level 1 (--zero 1): a bucket's gradients are reduce-scattered: rank r receives the sum of shard r alone. It keeps the
 *                       optimizer's state for this shard, and updates it. Then the weights are all-gathered.
 *   level 2 (--zero 2): whole gradients live only until they are reduce-scattered.
 *   level 3 (--zero 3): whole weights live only while an operation needs them. They are gathered in forward, and again in
 *                       backward.
 * The gathers run behind the next forward pass. An all-reduce is a reduce-scatter and an all-gather, one after the other,
 * so levels 1 and 2 send what stage 4 sends. Level 3 gathers twice, so it sends half as much again.
 * What is wrong with it: activations are whole on every rank, and so is each layer's work. Dividing these is another
 * kind of parallelism.
 */
#include "ddp.h"

#include <stdlib.h>

#include "base/check.h"
#include "ddp/readiness.h"
#include "ddp/replicas.h"
#include "ddp/shards.h"
#include "device/device.h"

const int ddp_stage_number = 5;
const char *const ddp_stage_name = "sharded";

#define MOST_IN_FLIGHT 2 /* reduce-scatters from level 2 on: each holds a bucket's whole gradients */

struct Ddp {
    ProcessGroup *pg;          /* not owned */
    ParameterList *parameters; /* not owned */
    Tape *tape;                /* not owned */
    DdpOptions options;
    Shards shards;       /* buckets, and this rank's shard of each; owned */
    Readiness readiness; /* of this backward pass */
    int next_bucket;     /* the first bucket whose reduce-scatter has not started in this backward pass */
    int next_finished;   /* the first bucket whose reduce-scatter has not been waited for */
    bool synchronize;    /* false: no_sync, this backward pass only accumulates */
    bool all_gathered;   /* ddp_gather_weights() was called: nothing needs to be gathered or dropped */
    /* Level 3: the buckets in the order in which a micro-batch gathers them. The first micro-batch writes the list. */
    int *schedule; /* owned */
    int scheduled, schedule_room;
    bool schedule_known;
    int next_gather; /* in the schedule */
};

static void gradient_ready(void *listener, Parameter *parameter);
static void gradient_needed(void *listener, Parameter *parameter);
static void parameters_needed(void *listener, Parameter *const *parameters, int count);

/* note: stage5-create
 * The start is the same as in stages 1 to 4. Then the weights move into buckets, and the stage listens to three events. */
Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    const ShardCaps caps = {.per_layer = options->bucket_per_layer, .first_cap = options->first_bucket_cap_bytes,
                            .cap = options->bucket_cap_bytes};
    ddp->pg = pg;
    ddp->parameters = parameters;
    ddp->tape = tape;
    ddp->options = *options;
    replicas_check_same_model(pg, parameters);
    replicas_broadcast(pg, parameters);
    shards_create(&ddp->shards, pg, parameters, caps, options->zero);
    readiness_create(&ddp->readiness, parameters);
    tape->on_gradient_ready = gradient_ready;
    tape->on_gradient_needed = gradient_needed;
    tape->on_parameters_needed = parameters_needed;
    tape->listener = ddp;
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    ddp_gather_weights(ddp); /* they return to the model */
    ddp->tape->on_gradient_ready = NULL;
    ddp->tape->on_gradient_needed = NULL;
    ddp->tape->on_parameters_needed = NULL;
    readiness_free(&ddp->readiness);
    shards_free(&ddp->shards);
    free(ddp->schedule);
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

/* NULL: the parameter is frozen. Every rank always holds it. */
static ShardedBucket *bucket_of(Ddp *ddp, const Parameter *parameter)
{
    const int number = ddp->shards.of_parameter[parameter->index];
    return number < 0 ? NULL : &ddp->shards.buckets[number];
}

/* ---- weights: gathered before they are used ---- */

static bool is_gathered(const ShardedBucket *bucket)
{
    return bucket->weights != NULL && bucket->gather == NULL;
}

static void start_gather(Ddp *ddp, ShardedBucket *bucket)
{
    shards_place_weights(&ddp->shards, bucket);
    bucket->gather = pg_all_gather_async(ddp->pg, bucket->weight_shard, bucket->weights, bucket->shard_elements,
                                         DTYPE_F32, bucket->weights_name);
}

static void finish_gather(ShardedBucket *bucket)
{
    if (bucket->gather == NULL)
        return;
    work_wait(bucket->gather);
    bucket->gather = NULL;
    for (int i = 0; i < bucket->count; i++)
        parameter_changed(bucket->parameters[i]);
}

/* note: gather-schedule
 * Level 3: starts the next gather of the micro-batch, which is that of bucket `number`. All ranks run the same operations
 * in the same order, so they gather in the same order, too. */
static void gather_next(Ddp *ddp, int number)
{
    if (!ddp->schedule_known) {
        if (ddp->scheduled == ddp->schedule_room) {
            ddp->schedule_room = 2 * ddp->schedule_room + ddp->shards.count;
            ddp->schedule = realloc(ddp->schedule, (size_t)ddp->schedule_room * sizeof *ddp->schedule);
            CHECK(ddp->schedule != NULL, "out of memory for the order of gathers");
        }
        ddp->schedule[ddp->scheduled++] = number;
    }
    CHECK(ddp->next_gather < ddp->scheduled && ddp->schedule[ddp->next_gather] == number,
          "%s are needed out of turn: at --zero 3, every micro-batch must use the weights in the same order",
          ddp->shards.buckets[number].weights_name);
    ddp->next_gather++;
    start_gather(ddp, &ddp->shards.buckets[number]);
}

/* Level 3: starts the gather after the current one, so that it runs behind the computation. */
static void prefetch(Ddp *ddp)
{
    if (!ddp->schedule_known || ddp->next_gather == ddp->scheduled)
        return;
    const int next = ddp->schedule[ddp->next_gather];
    if (ddp->shards.buckets[next].weights == NULL)
        gather_next(ddp, next);
}

/* Level 3: drops all whole weights except those that the operation needs, and those that are on their way. */
static void drop_weights(Ddp *ddp, Parameter *const *needed, int count)
{
    for (int b = 0; b < ddp->shards.count; b++) {
        ShardedBucket *bucket = &ddp->shards.buckets[b];
        bool keep = !is_gathered(bucket);
        for (int i = 0; i < count; i++)
            keep = keep || bucket_of(ddp, needed[i]) == bucket;
        if (!keep)
            shards_drop_weights(&ddp->shards, bucket);
    }
}

/* note: parameters-needed
 * The parameters-needed event: an operation reads these weights next, in forward or backward. If they are not there,
 * this is a new layer: the last one's weights are dropped, these are waited for, and the next layer's are started. */
static void parameters_needed(void *listener, Parameter *const *parameters, int count)
{
    Ddp *ddp = listener;
    bool there = true;
    for (int i = 0; i < count; i++)
        there = there && (bucket_of(ddp, parameters[i]) == NULL || is_gathered(bucket_of(ddp, parameters[i])));
    if (there)
        return;
    if (ddp->options.zero == 3)
        drop_weights(ddp, parameters, count);
    for (int i = 0; i < count; i++) {
        ShardedBucket *bucket = bucket_of(ddp, parameters[i]);
        if (bucket == NULL)
            continue;
        if (bucket->weights == NULL)
            gather_next(ddp, ddp->shards.of_parameter[parameters[i]->index]);
        finish_gather(bucket);
    }
    if (ddp->options.zero == 3)
        prefetch(ddp);
}

void ddp_gather_weights(Ddp *ddp)
{
    for (int b = 0; b < ddp->shards.count; b++)
        if (ddp->shards.buckets[b].weights == NULL)
            start_gather(ddp, &ddp->shards.buckets[b]);
    for (int b = 0; b < ddp->shards.count; b++)
        finish_gather(&ddp->shards.buckets[b]);
    ddp->all_gathered = true;
}

/* Level 3: the micro-batch is over: what is left of its weights is dropped, so that every one begins alike. */
static void end_micro_batch(Ddp *ddp)
{
    drop_weights(ddp, NULL, 0);
    ddp->next_gather = 0;
}

/* note: stage5-update
 * Levels 1 and 2 gather all weights now, in the order in which forward needs them, which is the reverse of the buckets'
 * order. Forward begins meanwhile, and waits for each bucket when it needs it. Level 3 gathers the first layer's. */
void ddp_after_update(Ddp *ddp)
{
    if (ddp->options.zero == 3) {
        end_micro_batch(ddp); /* what is still gathered is the weights of before the update */
        prefetch(ddp);
    }
    for (int b = ddp->shards.count - 1; b >= 0 && ddp->options.zero < 3; b--)
        start_gather(ddp, &ddp->shards.buckets[b]);
}

/* ---- gradients: reduce-scattered when they are ready ---- */

/* Starts the bucket's reduce-scatter, in grad_dtype. */
static void launch(Ddp *ddp, ShardedBucket *bucket)
{
    shards_place_gradients(&ddp->shards, bucket); /* there are none if all its parameters are unused */
    void *sent = bucket->gradients, *sum = bucket->gradient_shard;
    if (ddp->options.grad_dtype != DTYPE_F32) {
        sent = bucket->half = device_alloc(bucket->elements * sizeof(uint16_t));
        sum = (uint16_t *)sent + (size_t)pg_rank(ddp->pg) * bucket->shard_elements;
        device_to_half(sent, bucket->gradients, ddp->options.grad_dtype, (int64_t)bucket->elements);
    }
    bucket->reduce_scatter = pg_reduce_scatter_async(ddp->pg, sent, sum, bucket->shard_elements,
                                                     ddp->options.grad_dtype, REDUCE_SUM, bucket->gradients_name);
}

/* From here on, the sum of this rank's shard is all that is left of the bucket's gradients (level 1: all that counts). */
static void finish(Ddp *ddp, ShardedBucket *bucket)
{
    work_wait(bucket->reduce_scatter);
    bucket->reduce_scatter = NULL;
    if (ddp->options.grad_dtype != DTYPE_F32) {
        device_from_half(bucket->gradient_shard,
                         (uint16_t *)bucket->half + (size_t)pg_rank(ddp->pg) * bucket->shard_elements,
                         ddp->options.grad_dtype, (int64_t)bucket->shard_elements);
        device_free(bucket->half);
        bucket->half = NULL;
    }
    if (ddp->options.zero >= 2)
        shards_drop_gradients(&ddp->shards, bucket);
}

/* Finishes the reduce-scatters that are done, in the order of their launch, and waits until at most `most` are left. */
static void finish_launched(Ddp *ddp, int most)
{
    while (ddp->next_finished < ddp->next_bucket) {
        ShardedBucket *bucket = &ddp->shards.buckets[ddp->next_finished];
        if (ddp->next_bucket - ddp->next_finished <= most && !work_test(bucket->reduce_scatter))
            return;
        finish(ddp, bucket);
        ddp->next_finished++;
    }
}

/* note: gradient-needed
 * The gradient-needed event, from level 2 on: the first contribution to the bucket's gradients comes next. If backward is
 * faster than the link, it must wait here, or whole gradients would pile up until all are in memory again. */
static void gradient_needed(void *listener, Parameter *parameter)
{
    Ddp *ddp = listener;
    finish_launched(ddp, MOST_IN_FLIGHT);
    shards_place_gradients(&ddp->shards, bucket_of(ddp, parameter));
}

/* Launches every bucket that has no pending gradient, if all buckets before it are launched (why: stage 3). */
static void launch_ready_buckets(Ddp *ddp)
{
    while (ddp->next_bucket < ddp->shards.count && ddp->shards.buckets[ddp->next_bucket].pending == 0)
        launch(ddp, &ddp->shards.buckets[ddp->next_bucket++]);
}

/* The gradient-ready event. The tape calls it during backward; mark_unused_parameters() calls it before backward. */
static void gradient_ready(void *listener, Parameter *parameter)
{
    Ddp *ddp = listener;
    readiness_mark(&ddp->readiness, parameter);
    if (!ddp->synchronize)
        return;
    bucket_of(ddp, parameter)->pending--;
    launch_ready_buckets(ddp);
}

/* ---- a micro-batch ---- */

void ddp_before_forward(Ddp *ddp, bool last_micro_batch)
{
    if (ddp->all_gathered && ddp->options.zero == 3) {
        end_micro_batch(ddp);
        prefetch(ddp);
    }
    ddp->all_gathered = false;
    ddp->synchronize = last_micro_batch;
}

/* As in stage 4. */
static void mark_unused_parameters(Ddp *ddp, const Tensor *loss)
{
    bool *used = alloc_or_fault((size_t)ddp->parameters->count * sizeof *used);
    tape_mark_used(ddp->tape, loss, used);
    for (int i = 0; i < ddp->parameters->count; i++)
        if (!used[i] && ddp->parameters->items[i]->tensor.requires_grad)
            gradient_ready(ddp, ddp->parameters->items[i]);
    free(used);
}

void ddp_before_backward(Ddp *ddp, Tensor *loss)
{
    readiness_begin(&ddp->readiness, ddp->parameters);
    ddp->next_bucket = ddp->next_finished = 0;
    for (int b = 0; b < ddp->shards.count; b++)
        ddp->shards.buckets[b].pending = ddp->shards.buckets[b].count;
    if (ddp->options.find_unused_parameters)
        mark_unused_parameters(ddp, loss);
}

/* note: stage5-wait
 * A micro-batch that does not synchronise leaves this rank's own sum in whole gradients, at every level: the next one
 * adds to it. */
void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    readiness_check_complete(&ddp->readiness, ddp->parameters);
    if (ddp->options.zero == 3)
        end_micro_batch(ddp);
    ddp->schedule_known = true;
    if (!ddp->synchronize) {
        if (ddp->options.zero == 3)
            prefetch(ddp); /* the weights are still the same */
        return;
    }
    finish_launched(ddp, 0);
    for (int b = 0; b < ddp->shards.count; b++)
        device_scale(ddp->shards.buckets[b].gradient_shard, gradient_scale,
                     (int64_t)ddp->shards.buckets[b].shard_elements);
    if (ddp->options.find_unused_parameters)
        readiness_agree_on_use(ddp->pg, ddp->parameters);
}

DdpMemory ddp_memory(const Ddp *ddp, const ParameterList *parameters)
{
    const Shards *shards = &ddp->shards;
    DdpMemory memory = {.most_gathered_weights = shards->most_gathered,
                        .most_whole_gradients = shards->most_whole_gradients};
    (void)parameters;
    for (int b = 0; b < shards->count; b++) {
        const ShardedBucket *bucket = &shards->buckets[b];
        memory.weights += sizeof(float) * (shards->zero == 3 ? bucket->shard_elements : bucket->elements);
        memory.gradients += sizeof(float) * (shards->zero >= 2 ? bucket->shard_elements : bucket->elements);
    }
    return memory;
}
