/* A correct stage 3, written independently of ours: every micro-batch is synchronised, and every sum, also that of the
 * last one, is written to memory outside its bucket, then copied back and scaled. */
#include "ddp.h"

#include <stdlib.h>

#include "base/check.h"
#include "ddp/buckets.h"
#include "ddp/readiness.h"
#include "ddp/replicas.h"
#include "device/device.h"

const int ddp_stage_number = 3;
const char *const ddp_stage_name = "overlap";

struct Ddp {
    ProcessGroup *pg;
    ParameterList *parameters;
    Tape *tape;
    DdpOptions options;
    Buckets buckets;
    float **sums; /* by bucket, of the bucket's size */
    Readiness readiness;
    int started;
    bool is_last;
    bool rebuild_next, was_rebuilt;
};

static void make_buckets(Ddp *ddp, const int *order)
{
    const DdpOptions *caps = &ddp->options;
    buckets_create(&ddp->buckets, ddp->pg, ddp->parameters, order, caps->first_bucket_cap_bytes,
                   caps->bucket_cap_bytes);
    ddp->sums = alloc_or_fault((size_t)ddp->buckets.count * sizeof *ddp->sums);
    for (int b = 0; b < ddp->buckets.count; b++)
        ddp->sums[b] = device_alloc(ddp->buckets.items[b].elements * sizeof(float));
}

static void drop_buckets(Ddp *ddp)
{
    for (int b = 0; b < ddp->buckets.count; b++)
        device_free(ddp->sums[b]);
    free(ddp->sums);
    buckets_free(&ddp->buckets);
}

static void on_ready(void *listener, Parameter *parameter)
{
    Ddp *ddp = listener;
    readiness_mark(&ddp->readiness, parameter);
    ddp->buckets.items[ddp->buckets.of_parameter[parameter->index]].pending--;
    for (; ddp->started < ddp->buckets.count; ddp->started++) {
        Bucket *bucket = &ddp->buckets.items[ddp->started];
        if (bucket->pending > 0)
            break;
        bucket->work = pg_all_reduce_async(ddp->pg, bucket->data, ddp->sums[ddp->started], bucket->elements, DTYPE_F32,
                                           REDUCE_SUM, bucket->name);
    }
}

Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    *ddp = (Ddp){.pg = pg, .parameters = parameters, .tape = tape, .options = *options};
    replicas_check_same_model(pg, parameters);
    replicas_broadcast(pg, parameters);
    make_buckets(ddp, NULL);
    readiness_create(&ddp->readiness, parameters);
    tape->listener = ddp;
    tape->on_gradient_ready = on_ready;
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    ddp->tape->on_gradient_ready = NULL;
    ddp->tape->listener = NULL;
    drop_buckets(ddp);
    readiness_free(&ddp->readiness);
    free(ddp);
}

int ddp_bucket_count(const Ddp *ddp)
{
    return ddp->buckets.count;
}

void ddp_before_forward(Ddp *ddp, bool last_micro_batch)
{
    ddp->is_last = last_micro_batch;
    if (!ddp->rebuild_next)
        return;
    drop_buckets(ddp);
    make_buckets(ddp, ddp->readiness.order);
    ddp->rebuild_next = false;
    ddp->was_rebuilt = true;
}

void ddp_before_backward(Ddp *ddp, Tensor *loss)
{
    ddp->started = 0;
    readiness_begin(&ddp->readiness, ddp->parameters);
    for (int b = 0; b < ddp->buckets.count; b++)
        ddp->buckets.items[b].pending = ddp->buckets.items[b].count;
    if (!ddp->options.find_unused_parameters)
        return;
    bool *used = alloc_or_fault((size_t)ddp->parameters->count * sizeof *used);
    tape_mark_used(ddp->tape, loss, used);
    for (int i = ddp->parameters->count - 1; i >= 0; i--) {
        Parameter *parameter = ddp->parameters->items[i];
        if (parameter->tensor.requires_grad && !used[i])
            on_ready(ddp, parameter);
    }
    free(used);
}

void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    readiness_check_complete(&ddp->readiness, ddp->parameters);
    for (int b = ddp->buckets.count - 1; b >= 0; b--) /* wait for the last one first: then all are done */
        work_wait(ddp->buckets.items[b].work);
    if (!ddp->is_last)
        return;
    for (int b = 0; b < ddp->buckets.count; b++) {
        Bucket *bucket = &ddp->buckets.items[b];
        device_copy(bucket->data, ddp->sums[b], bucket->elements * sizeof(float));
        device_scale(bucket->data, gradient_scale, (int64_t)bucket->elements);
    }
    if (ddp->options.rebuild_buckets && !ddp->was_rebuilt) {
        readiness_agree_on_order(&ddp->readiness, ddp->pg);
        ddp->rebuild_next = true;
    }
    if (ddp->options.find_unused_parameters)
        readiness_agree_on_use(ddp->pg, ddp->parameters);
}
