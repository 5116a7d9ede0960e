/* Stage 4: no_sync, and 16 bits on the wire.
 *
 * New over stage 3: with gradient accumulation, only the last micro-batch is synchronised. Before it, gradients
 * accumulate on each rank (PyTorch's no_sync), so that K micro-batches cost the communication of one.
 * Buckets can be sent as bf16 or fp16: half the bytes, but rounded. (Mixed precision: autograd/ops.c, optimizer.c.)
 * What is wrong with it: every rank holds the optimizer's state of all parameters. Stage 5 divides it.
 */
#include "ddp.h"

#include <stdlib.h>

#include "base/check.h"
#include "ddp/buckets.h"
#include "ddp/readiness.h"
#include "ddp/replicas.h"
#include "device/device.h"

const int ddp_stage_number = 4;
const char *const ddp_stage_name = "accumulation";

struct Ddp {
    ProcessGroup *pg;          /* not owned */
    ParameterList *parameters; /* not owned */
    Tape *tape;                /* not owned */
    DdpOptions options;
    Buckets buckets;     /* every parameter's gradient; owned */
    Readiness readiness; /* of this backward pass */
    int next_bucket;     /* the first bucket whose all-reduce has not started in this backward pass */
    bool synchronize;    /* false: no_sync, this backward pass only accumulates */
    bool rebuild_due;    /* the next forward pass starts with buckets in the order of readiness */
};

static void gradient_ready(void *listener, Parameter *parameter);

/* Makes the buckets in the order given. If gradients are sent in 16 bits, each bucket gets a buffer for the copy. */
static void create_buckets(Ddp *ddp, const int *order)
{
    buckets_create(&ddp->buckets, ddp->pg, ddp->parameters, order, ddp->options.first_bucket_cap_bytes,
                   ddp->options.bucket_cap_bytes);
    if (ddp->options.grad_dtype != DTYPE_F32)
        buckets_add_halves(&ddp->buckets);
}

/* note: stage4-create
 * As in stage 3. */
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
    readiness_create(&ddp->readiness, parameters);
    tape->on_gradient_ready = gradient_ready;
    tape->listener = ddp;
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    ddp->tape->on_gradient_ready = NULL;
    readiness_free(&ddp->readiness);
    buckets_free(&ddp->buckets);
    free(ddp);
}

int ddp_bucket_count(const Ddp *ddp)
{
    return ddp->buckets.count;
}

/* The reverse of registration is only a guess of the order in which gradients become ready. After the first step the
 * order is known. Ranks may have seen different orders, so all ranks take rank 0's. No gradient is lost here: the
 * optimizer has used them all, and they are zero. */
static void rebuild_buckets(Ddp *ddp)
{
    buckets_free(&ddp->buckets);
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

/* Launches the bucket's all-reduce, in grad_dtype. */
static void launch(Ddp *ddp, Bucket *bucket)
{
    void *sent = bucket->data;
    if (ddp->options.grad_dtype != DTYPE_F32) {
        sent = bucket->half;
        device_to_half(sent, bucket->data, ddp->options.grad_dtype, (int64_t)bucket->elements);
    }
    bucket->work = pg_all_reduce_async(ddp->pg, sent, sent, bucket->elements, ddp->options.grad_dtype, REDUCE_SUM,
                                       bucket->name);
}

/* Launches every bucket that has no pending gradient, if all buckets before it are launched (why: stage 3). */
static void launch_ready_buckets(Ddp *ddp)
{
    while (ddp->next_bucket < ddp->buckets.count && ddp->buckets.items[ddp->next_bucket].pending == 0)
        launch(ddp, &ddp->buckets.items[ddp->next_bucket++]);
}

/* The gradient-ready event. The tape calls it during backward; mark_unused_parameters() calls it before backward. */
static void gradient_ready(void *listener, Parameter *parameter)
{
    Ddp *ddp = listener;
    readiness_mark(&ddp->readiness, parameter);
    if (!ddp->synchronize)
        return;
    ddp->buckets.items[ddp->buckets.of_parameter[parameter->index]].pending--;
    launch_ready_buckets(ddp);
}

/* A parameter that this forward pass did not use raises no event, and its bucket would stay pending for ever. The tape
 * shows before backward which parameters are unused. They are ready now: their gradients are zero, or hold the sum of
 * the step's earlier micro-batches, which must be all-reduced, too. */
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
    readiness_check_complete(&ddp->readiness, ddp->parameters);
    if (!ddp->synchronize)
        return;
    for (int b = 0; b < ddp->buckets.count; b++) {
        Bucket *bucket = &ddp->buckets.items[b];
        work_wait(bucket->work);
        bucket->work = NULL;
        if (ddp->options.grad_dtype != DTYPE_F32)
            device_from_half(bucket->data, bucket->half, ddp->options.grad_dtype, (int64_t)bucket->elements);
        device_scale(bucket->data, gradient_scale, (int64_t)bucket->elements);
    }
    if (ddp->options.find_unused_parameters)
        readiness_agree_on_use(ddp->pg, ddp->parameters);
    if (ddp->options.rebuild_buckets) {
        readiness_agree_on_order(&ddp->readiness, ddp->pg);
        ddp->rebuild_due = true;
    }
}
