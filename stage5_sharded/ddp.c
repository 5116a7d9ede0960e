/* Stage 5: no rank holds everything (ZeRO; level 3 is PyTorch's "fully sharded").
 *
 * New over stage 4: each bucket is cut into one shard per rank, and a rank updates its own shards only.
 *   --zero 1  A bucket's gradients are reduce-scattered: rank r receives the sum of shard r alone. The rank keeps the
 *             optimizer's state of this shard, and updates its weights. Then the new weights are all-gathered.
 *   --zero 2  Whole gradients exist only from their first contribution to their reduce-scatter.
 *   --zero 3  Whole weights exist only while an operation needs them, in forward and again in backward (weights.c).
 * The gathers run during the next forward pass. An all-reduce is a reduce-scatter, and then an all-gather. Therefore
 * levels 1 and 2 send what stage 4 sends. Level 3 gathers twice, and so sends half as much again.
 * --shard-ranks R: shards.pg is a group of R ranks, and others hold copies; it is all ranks by default.
 * What is wrong with it: each rank still computes every layer of its samples by itself.
 * Source: Rajbhandari et al., 2020 (ZeRO).
 */
#include "ddp.h"

#include <stdlib.h>

#include "base/check.h"
#include "ddp/replicas.h"
#include "device/device.h"
#include "stage3_overlap/readiness.h"
#include "stage5_sharded/sharded.h"
#include "stage5_sharded/shards.h"
#include "stage5_sharded/weights.h"

const int ddp_stage_number = 5;
const char *const ddp_stage_name = "sharded";

#define MAX_IN_FLIGHT 2 /* from level 2 on: so many buckets may wait for their reduce-scatter with whole gradients */

struct Ddp {
    ProcessGroup *pg;          /* not owned */
    ParameterList *parameters; /* not owned */
    Tape *tape;                /* not owned */
    DdpOptions options;
    int level;           /* of sharding: 1, 2 or 3 */
    Shards shards;       /* buckets, and this rank's shard of each; owned */
    Weights weights;     /* their gathers; owned */
    Readiness readiness; /* of this backward pass */
    int next_bucket;     /* the first bucket that is not launched yet in this backward pass */
    int next_finished;   /* the first bucket whose reduce-scatter has not been waited for */
    bool synchronize;    /* false: no_sync, this backward pass only accumulates */
};

static void gradient_ready(void *self, Parameter *parameter);
static void gradient_needed(void *self, Parameter *parameter);
static void parameters_needed(void *self, Parameter *const *parameters, int count);

/* note: stage5-create
 * The ranks start as in all stages. Then the weights move into the buckets, and the stage listens to three events. */
Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    ddp->pg = pg;
    ddp->parameters = parameters;
    ddp->tape = tape;
    ddp->options = *options;
    ddp->level = options->sharding->level;
    replicas_check_same_model(pg, parameters);
    replicas_broadcast(pg, parameters);
    shards_create(&ddp->shards, pg, parameters, options);
    weights_create(&ddp->weights, &ddp->shards);
    readiness_create(&ddp->readiness, parameters, options->static_graph);
    tape_listen(tape, (TapeListener){.self = ddp, .gradient_ready = gradient_ready, .gradient_needed = gradient_needed,
                                     .parameters_needed = parameters_needed});
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    ddp_gather_weights(ddp); /* they go back to the model */
    tape_listen(ddp->tape, (TapeListener){0});
    readiness_free(&ddp->readiness);
    weights_free(&ddp->weights);
    shards_free(&ddp->shards);
    free(ddp);
}

/* ---- the update: each rank its own slices ---- */

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

/* ---- events ---- */

static void parameters_needed(void *self, Parameter *const *parameters, int count)
{
    Ddp *ddp = self;
    weights_need(&ddp->weights, parameters, count);
}

/* Starts the bucket's reduce-scatter. The codec encodes the gradients. Until finish(), do not touch the gradients,
 * their encoding, or this rank's shard of them. */
static void launch(Ddp *ddp, ShardedBucket *bucket)
{
    const GradientCodec *codec = ddp->options.codec;
    shards_place_gradients(&ddp->shards, bucket); /* there are none if all its parameters are unused */
    ProcessGroup *pg = ddp->shards.pg;
    const size_t bytes = codec->buffer_bytes(codec, bucket->elements, pg_world_size(pg));
    bucket->encoded = bytes > 0 ? device_alloc(bytes) : NULL;
    bucket->reduce_scatter = codec->start_reduce_scatter(codec, pg, bucket->gradients, bucket->encoded,
                                                         bucket->gradient_shard, bucket->shard_elements,
                                                         bucket->gradients_name);
}

/* Waits for the bucket's reduce-scatter. From here on, only this rank's shard of the gradients is valid. */
static void finish(Ddp *ddp, ShardedBucket *bucket)
{
    const GradientCodec *codec = ddp->options.codec;
    work_wait(bucket->reduce_scatter);
    bucket->reduce_scatter = NULL;
    codec->finish_reduce_scatter(codec, ddp->shards.pg, bucket->gradient_shard, bucket->encoded,
                                 bucket->shard_elements);
    device_free(bucket->encoded);
    bucket->encoded = NULL;
    if (ddp->level >= 2)
        shards_drop_gradients(&ddp->shards, bucket);
}

/* Finishes the reduce-scatters that are done, in launch order, and waits until at most `max` are left. */
static void finish_launched(Ddp *ddp, int max)
{
    while (ddp->next_finished < ddp->next_bucket) {
        ShardedBucket *bucket = &ddp->shards.buckets[ddp->next_finished];
        if (ddp->next_bucket - ddp->next_finished <= max && !work_test(bucket->reduce_scatter))
            return;
        finish(ddp, bucket);
        ddp->next_finished++;
    }
}

/* note: gradient-needed
 * The gradient-needed event (level 1 gets none, because its gradients always have memory). If backward is faster than
 * the link, it waits here. Otherwise the buckets that wait to be sent would soon hold all gradients again. */
static void gradient_needed(void *self, Parameter *parameter)
{
    Ddp *ddp = self;
    finish_launched(ddp, MAX_IN_FLIGHT);
    shards_place_gradients(&ddp->shards, shards_bucket(&ddp->shards, parameter));
}

/* Launches every bucket that has no pending gradient, if all buckets before it are launched (why: stage 3). */
static void launch_ready_buckets(Ddp *ddp)
{
    while (ddp->next_bucket < ddp->shards.count && ddp->shards.buckets[ddp->next_bucket].pending == 0)
        launch(ddp, &ddp->shards.buckets[ddp->next_bucket++]);
}

/* Handles the gradient-ready event. Called by the tape during backward, and by mark_unused_parameters() before it. */
static void gradient_ready(void *self, Parameter *parameter)
{
    Ddp *ddp = self;
    readiness_mark(&ddp->readiness, parameter);
    if (!ddp->synchronize)
        return;
    shards_bucket(&ddp->shards, parameter)->pending--;
    launch_ready_buckets(ddp);
}

/* ---- a micro-batch ---- */

void ddp_before_forward(Ddp *ddp, bool last_micro_batch)
{
    weights_begin_micro_batch(&ddp->weights);
    ddp->synchronize = last_micro_batch;
}

/* As in stage 4. */
static void mark_unused_parameters(Ddp *ddp, const Tensor *loss)
{
    readiness_find_unused(&ddp->readiness, ddp->parameters, ddp->tape, loss);
    for (int i = 0; i < ddp->readiness.unused_count; i++)
        gradient_ready(ddp, ddp->readiness.unused[i]);
}

void ddp_before_backward(Ddp *ddp, Tensor *loss)
{
    readiness_begin(&ddp->readiness, ddp->parameters);
    ddp->next_bucket = 0;
    ddp->next_finished = 0;
    for (int b = 0; b < ddp->shards.count; b++)
        ddp->shards.buckets[b].pending = ddp->shards.buckets[b].count;
    if (ddp->options.find_unused_parameters)
        mark_unused_parameters(ddp, loss);
}

/* note: stage5-wait
 * A micro-batch that does not synchronise leaves this rank's own sum in whole gradients at every level: the next
 * micro-batch adds to it. (So with --accumulate, levels 2 and 3 save gradients only in the last one.) */
void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    const bool update_follows = ddp->synchronize;
    readiness_check_complete(&ddp->readiness, ddp->parameters);
    weights_end_micro_batch(&ddp->weights, update_follows);
    if (!update_follows)
        return;
    finish_launched(ddp, 0);
    for (int b = 0; b < ddp->shards.count; b++)
        device_scale(ddp->shards.buckets[b].gradient_shard, gradient_scale,
                     (int64_t)ddp->shards.buckets[b].shard_elements);
    if (ddp->options.find_unused_parameters)
        readiness_agree_on_use(&ddp->readiness, ddp->pg, ddp->parameters);
}

bool ddp_sharded_memory(const Ddp *ddp, ShardedMemory *memory)
{
    *memory = ddp->shards.memory;
    return true;
}
