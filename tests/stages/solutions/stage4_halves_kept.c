/* A correct stage 4 with another design: the memory for 16-bit copies is made once, and stays when buckets are rebuilt.
 * no_sync is a number, not a flag: how many buckets this backward pass is still to launch. */
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
    ProcessGroup *pg;
    ParameterList *parameters;
    Tape *tape;
    DdpOptions options;
    Buckets buckets;
    Readiness readiness;
    uint16_t *halves; /* in the places of buckets.block; NULL: 32 bits are sent */
    int to_launch;    /* counts down to 0; 0 in a micro-batch that only accumulates */
    enum { FIRST_BUCKETS, ORDER_KNOWN, REBUILT } state;
};

static void make_buckets(Ddp *ddp, const int *order)
{
    buckets_create(&ddp->buckets, ddp->pg, ddp->parameters, order, ddp->options.first_bucket_cap_bytes,
                   ddp->options.bucket_cap_bytes);
    for (int b = 0; b < ddp->buckets.count && ddp->halves != NULL; b++)
        ddp->buckets.items[b].half = ddp->halves + (ddp->buckets.items[b].data - ddp->buckets.block);
}

static void launch_first(Ddp *ddp)
{
    Bucket *bucket = &ddp->buckets.items[ddp->buckets.count - ddp->to_launch--];
    const DType dtype = ddp->options.grad_dtype;
    void *values = bucket->half != NULL ? bucket->half : bucket->data;
    if (bucket->half != NULL)
        device_to_half(bucket->half, bucket->data, dtype, (int64_t)bucket->elements);
    bucket->work = pg_all_reduce_async(ddp->pg, values, values, bucket->elements, dtype, REDUCE_SUM, bucket->name);
}

static void gradient_ready(void *listener, Parameter *parameter)
{
    Ddp *ddp = listener;
    readiness_mark(&ddp->readiness, parameter);
    ddp->buckets.items[ddp->buckets.of_parameter[parameter->index]].pending--;
    while (ddp->to_launch > 0 && ddp->buckets.items[ddp->buckets.count - ddp->to_launch].pending == 0)
        launch_first(ddp);
}

Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    ddp->pg = pg;
    ddp->parameters = parameters;
    ddp->tape = tape;
    ddp->options = *options;
    replicas_check_same_model(pg, parameters);
    replicas_broadcast(pg, parameters);
    if (options->grad_dtype != DTYPE_F32)
        ddp->halves = device_alloc(parameters_gradient_bytes(parameters) / sizeof(float) * sizeof *ddp->halves);
    make_buckets(ddp, NULL);
    readiness_create(&ddp->readiness, parameters);
    tape->on_gradient_ready = gradient_ready;
    tape->listener = ddp;
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    ddp->tape->on_gradient_ready = NULL;
    buckets_free(&ddp->buckets);
    device_free(ddp->halves);
    readiness_free(&ddp->readiness);
    free(ddp);
}

int ddp_bucket_count(const Ddp *ddp)
{
    return ddp->buckets.count;
}

void ddp_before_forward(Ddp *ddp, bool last_micro_batch)
{
    if (ddp->state == ORDER_KNOWN) {
        buckets_free(&ddp->buckets);
        make_buckets(ddp, ddp->readiness.order);
        ddp->state = REBUILT;
    }
    ddp->to_launch = last_micro_batch ? ddp->buckets.count : 0;
}

void ddp_before_backward(Ddp *ddp, Tensor *loss)
{
    readiness_begin(&ddp->readiness, ddp->parameters);
    for (int b = 0; b < ddp->buckets.count; b++)
        ddp->buckets.items[b].pending = ddp->buckets.items[b].count;
    if (!ddp->options.find_unused_parameters)
        return;
    bool *used = alloc_or_fault((size_t)ddp->parameters->count * sizeof *used);
    tape_mark_used(ddp->tape, loss, used);
    for (int i = ddp->parameters->count - 1; i >= 0; i--)
        if (!used[i] && ddp->parameters->items[i]->tensor.requires_grad)
            gradient_ready(ddp, ddp->parameters->items[i]);
    free(used);
}

void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    bool synchronised = false;
    readiness_check_complete(&ddp->readiness, ddp->parameters);
    for (int b = 0; b < ddp->buckets.count; b++) {
        Bucket *bucket = &ddp->buckets.items[b];
        if (bucket->work == NULL)
            continue;
        synchronised = true;
        work_wait(bucket->work);
        bucket->work = NULL;
        if (bucket->half != NULL)
            device_from_half(bucket->data, bucket->half, ddp->options.grad_dtype, (int64_t)bucket->elements);
        device_scale(bucket->data, gradient_scale, (int64_t)bucket->elements);
    }
    if (synchronised && ddp->options.rebuild_buckets && ddp->state == FIRST_BUCKETS) {
        readiness_agree_on_order(&ddp->readiness, ddp->pg);
        ddp->state = ORDER_KNOWN;
    }
    if (synchronised && ddp->options.find_unused_parameters)
        readiness_agree_on_use(ddp->pg, ddp->parameters);
}
