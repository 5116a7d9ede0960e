/* A correct stage 3, written independently of ours: nothing is sent before the step's last micro-batch. It keeps no
 * counter: a bucket is full if all its parameters are ready. Events collect finished all-reduces without waiting. */
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
    Readiness readiness;
    Work **works; /* by bucket; NULL: not under way */
    int launched, collected;
    bool sync;
    enum { NOT_REBUILT, REBUILD_DUE, REBUILT } rebuild;
};

static void buckets_anew(Ddp *ddp, const int *order)
{
    buckets_create(&ddp->buckets, ddp->pg, ddp->parameters, order, ddp->options.first_bucket_cap_bytes,
                   ddp->options.bucket_cap_bytes);
    ddp->works = alloc_or_fault((size_t)ddp->buckets.count * sizeof *ddp->works);
}

static bool is_full(const Ddp *ddp, const Bucket *bucket)
{
    for (int i = 0; i < bucket->count; i++)
        if (!ddp->readiness.ready[bucket->parameters[i]->index])
            return false;
    return true;
}

static void collect_one(Ddp *ddp)
{
    work_wait(ddp->works[ddp->collected]);
    ddp->works[ddp->collected++] = NULL;
}

static void advance(Ddp *ddp)
{
    if (!ddp->sync)
        return;
    while (ddp->launched < ddp->buckets.count && is_full(ddp, &ddp->buckets.items[ddp->launched])) {
        Bucket *bucket = &ddp->buckets.items[ddp->launched];
        ddp->works[ddp->launched++] = pg_all_reduce_async(ddp->pg, bucket->data, bucket->data, bucket->elements,
                                                          DTYPE_F32, REDUCE_SUM, bucket->name);
    }
    while (ddp->collected < ddp->launched && work_test(ddp->works[ddp->collected]))
        collect_one(ddp);
}

static void heard(void *listener, Parameter *parameter)
{
    Ddp *ddp = listener;
    readiness_mark(&ddp->readiness, parameter);
    advance(ddp);
}

Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    replicas_check_same_model(pg, parameters);
    replicas_broadcast(pg, parameters);
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    ddp->pg = pg;
    ddp->parameters = parameters;
    ddp->tape = tape;
    ddp->options = *options;
    readiness_create(&ddp->readiness, parameters);
    buckets_anew(ddp, NULL);
    tape->on_gradient_ready = heard;
    tape->listener = ddp;
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    ddp->tape->on_gradient_ready = NULL;
    buckets_free(&ddp->buckets);
    readiness_free(&ddp->readiness);
    free(ddp->works);
    free(ddp);
}

int ddp_bucket_count(const Ddp *ddp)
{
    return ddp->buckets.count;
}

void ddp_before_forward(Ddp *ddp, bool last_micro_batch)
{
    ddp->sync = last_micro_batch;
    if (ddp->rebuild != REBUILD_DUE)
        return;
    free(ddp->works);
    buckets_free(&ddp->buckets);
    buckets_anew(ddp, ddp->readiness.order);
    ddp->rebuild = REBUILT;
}

void ddp_before_backward(Ddp *ddp, Tensor *loss)
{
    readiness_begin(&ddp->readiness, ddp->parameters);
    ddp->launched = ddp->collected = 0;
    if (ddp->options.find_unused_parameters) {
        bool *used = alloc_or_fault((size_t)ddp->parameters->count * sizeof *used);
        tape_mark_used(ddp->tape, loss, used);
        for (int i = 0; i < ddp->parameters->count; i++)
            if (!used[i] && ddp->parameters->items[i]->tensor.requires_grad)
                readiness_mark(&ddp->readiness, ddp->parameters->items[i]);
        free(used);
        advance(ddp);
    }
}

void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    readiness_check_complete(&ddp->readiness, ddp->parameters);
    if (!ddp->sync)
        return;
    while (ddp->collected < ddp->buckets.count)
        collect_one(ddp);
    for (int i = 0; i < ddp->parameters->count; i++) { /* parameter by parameter: the gaps do not matter */
        Tensor *tensor = &ddp->parameters->items[i]->tensor;
        if (tensor->requires_grad)
            device_scale(tensor->grad, gradient_scale, tensor_count(tensor));
    }
    if (ddp->options.find_unused_parameters)
        readiness_agree_on_use(ddp->pg, ddp->parameters);
    if (ddp->options.rebuild_buckets && ddp->rebuild == NOT_REBUILT) {
        readiness_agree_on_order(&ddp->readiness, ddp->pg);
        ddp->rebuild = REBUILD_DUE;
    }
}
