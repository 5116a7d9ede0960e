/* Stage 4: no_sync, and 16 bits on the wire.
 *
 * New over stage 3: a step may have K micro-batches. Their gradients accumulate on each rank, and only the last one is
 * synchronised (PyTorch's no_sync), so that K micro-batches cost the communication of one.
 * A codec encodes what is sent, for example as bf16: half the bytes, but rounded (ddp/codec.h). Mixed precision itself
 * is in autograd/ops.c and optim/optimizer.c.
 * What is wrong with it: every rank holds the optimizer's state of all parameters. Stage 5 divides it.
 */
#include "ddp.h"

#include <stdlib.h>

#include "base/check.h"
#include "ddp/replicas.h"
#include "device/device.h"
#include "stage2_bucketed/buckets.h"
#include "stage3_overlap/readiness.h"

const int ddp_stage_number = 4;
const char *const ddp_stage_name = "accumulation";

struct Ddp {
    ProcessGroup *pg;          /* not owned */
    ParameterList *parameters; /* not owned */
    Tape *tape;                /* not owned */
    DdpOptions options;
    Buckets buckets;     /* every trained parameter's gradient; owned */
    char *encoded;       /* all buckets' Bucket.encoded; owned, or NULL */
    Readiness readiness; /* of this backward pass */
    int next_bucket;     /* the first bucket that is not launched yet in this backward pass */
    bool synchronize;    /* false: no_sync, this backward pass only accumulates */
    bool rebuild_due;    /* the next forward pass starts with buckets in the order of readiness */
};

static void gradient_ready(void *self, Parameter *parameter);

/* Bytes of the buffer in which the codec encodes a bucket; rounded up, so that the next buffer is aligned. */
static size_t encoded_bytes(const Ddp *ddp, const Bucket *bucket)
{
    const GradientCodec *codec = ddp->options.codec;
    return (codec->buffer_bytes(codec, bucket->elements, pg_world_size(ddp->pg)) + 15) / 16 * 16;
}

/* note: stage4-create
 * Makes the buckets in the order given. Each one gets a buffer for its encoded gradients, if the codec needs one. */
static void create_buckets(Ddp *ddp, const int *order)
{
    size_t bytes = 0;
    buckets_create(&ddp->buckets, ddp->pg, ddp->parameters, order, ddp->options.first_bucket_cap_bytes,
                   ddp->options.bucket_cap_bytes);
    for (int b = 0; b < ddp->buckets.count; b++)
        bytes += encoded_bytes(ddp, &ddp->buckets.items[b]);
    if (bytes == 0)
        return;
    char *buffer = ddp->encoded = pg_alloc_shared(ddp->pg, bytes);
    for (int b = 0; b < ddp->buckets.count; b++) {
        ddp->buckets.items[b].encoded = buffer;
        buffer += encoded_bytes(ddp, &ddp->buckets.items[b]);
    }
}

static void free_buckets(Ddp *ddp)
{
    buckets_free(&ddp->buckets);
    pg_free_shared(ddp->pg, ddp->encoded);
    ddp->encoded = NULL;
}

/* As in stage 3. */
Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    ddp->pg = pg;
    ddp->parameters = parameters;
    ddp->tape = tape;
    ddp->options = *options;
    replicas_check_same_model(pg, parameters);
    replicas_broadcast(pg, parameters);
    create_buckets(ddp, NULL);
    readiness_create(&ddp->readiness, parameters, options->static_graph);
    tape_listen(tape, (TapeListener){.self = ddp, .gradient_ready = gradient_ready});
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    tape_listen(ddp->tape, (TapeListener){0});
    readiness_free(&ddp->readiness);
    free_buckets(ddp);
    free(ddp);
}

/* The reverse of registration is only a guess of the order in which gradients become ready. After the first step the
 * order is known. Ranks may have seen different orders, so all ranks take rank 0's. No gradient is lost here: they
 * are zero after the step. */
static void rebuild_buckets(Ddp *ddp)
{
    free_buckets(ddp);
    create_buckets(ddp, ddp->readiness.order);
    ddp->rebuild_due = false;
    ddp->options.rebuild_buckets = false; /* once is enough */
}

/* note: no-sync
 * The decision is made before forward, because gradient_ready() needs it when it launches buckets during backward.
 * (PyTorch decides there, too: forward reads require_backward_grad_sync, so no_sync() must enclose forward.) */
void ddp_before_forward(Ddp *ddp, bool last_micro_batch)
{
    if (ddp->rebuild_due)
        rebuild_buckets(ddp);
    ddp->synchronize = last_micro_batch;
}

/* Launches the bucket's all-reduce. The codec encodes the gradients. */
static void launch(Ddp *ddp, Bucket *bucket)
{
    const GradientCodec *codec = ddp->options.codec;
    bucket->work = codec->start_all_reduce(codec, ddp->pg, bucket->data, bucket->encoded, bucket->elements,
                                           bucket->name);
}

/* Launches every bucket that has no pending gradient, if all buckets before it are launched (why: stage 3). */
static void launch_ready_buckets(Ddp *ddp)
{
    while (ddp->next_bucket < ddp->buckets.count && ddp->buckets.items[ddp->next_bucket].pending == 0)
        launch(ddp, &ddp->buckets.items[ddp->next_bucket++]);
}

/* Handles the gradient-ready event. Called by the tape during backward, and by mark_unused_parameters() before it. */
static void gradient_ready(void *self, Parameter *parameter)
{
    Ddp *ddp = self;
    readiness_mark(&ddp->readiness, parameter);
    if (!ddp->synchronize)
        return;
    ddp->buckets.items[ddp->buckets.of_parameter[parameter->index]].pending--;
    launch_ready_buckets(ddp);
}

/* A parameter that the loss does not depend on raises no event, and its bucket would stay pending for ever. The tape
 * shows before backward which parameters are unused. They are ready now: their gradients are zero, or hold the sum of
 * the step's earlier micro-batches, which must be all-reduced, too. */
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
    for (int b = 0; b < ddp->buckets.count; b++)
        ddp->buckets.items[b].pending = ddp->buckets.items[b].count;
    if (ddp->options.find_unused_parameters)
        mark_unused_parameters(ddp, loss);
}

/* note: stage4-wait
 * A micro-batch that does not synchronise leaves this rank's own sum, unscaled. The next micro-batch adds to it. */
void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    const GradientCodec *codec = ddp->options.codec;
    readiness_check_complete(&ddp->readiness, ddp->parameters);
    if (!ddp->synchronize)
        return;
    for (int b = 0; b < ddp->buckets.count; b++) {
        Bucket *bucket = &ddp->buckets.items[b];
        work_wait(bucket->work);
        bucket->work = NULL;
        codec->finish_all_reduce(codec, ddp->pg, bucket->data, bucket->encoded, bucket->elements);
        device_scale(bucket->data, gradient_scale, (int64_t)bucket->elements);
    }
    if (ddp->options.find_unused_parameters)
        readiness_agree_on_use(&ddp->readiness, ddp->pg, ddp->parameters);
    if (ddp->options.rebuild_buckets) {
        readiness_agree_on_order(&ddp->readiness, ddp->pg);
        ddp->rebuild_due = true;
    }
}
