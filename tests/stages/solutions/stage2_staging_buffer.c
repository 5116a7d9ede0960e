/* A correct stage 2 with another design: gradients lie in the order of registration, and a bucket is only a row of
 * parameters. They are copied to one buffer side by side, without gaps, summed there, scaled, and copied back. */
#include "ddp.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "ddp/bucket_plan.h"
#include "ddp/replicas.h"
#include "device/device.h"

const int ddp_stage_number = 2;
const char *const ddp_stage_name = "bucketed";

struct Ddp {
    ProcessGroup *pg;
    ParameterList *parameters;
    void *gradients;
    Parameter **trained; /* in the order of the buckets */
    int *bucket_of;      /* by place in `trained` */
    int trained_count, buckets;
    float *staging; /* large enough for all gradients */
};

static void plan(Ddp *ddp, const DdpOptions *options)
{
    const size_t room = (size_t)ddp->parameters->count;
    size_t *sizes = alloc_or_fault(room * sizeof *sizes);
    ddp->trained = alloc_or_fault(room * sizeof *ddp->trained);
    ddp->bucket_of = alloc_or_fault(room * sizeof *ddp->bucket_of);
    for (int i = ddp->parameters->count - 1; i >= 0; i--) {
        Parameter *parameter = ddp->parameters->items[i];
        if (!parameter->tensor.requires_grad)
            continue;
        sizes[ddp->trained_count] = (size_t)tensor_count(&parameter->tensor) * sizeof(float);
        ddp->trained[ddp->trained_count++] = parameter;
    }
    ddp->buckets = buckets_plan(sizes, ddp->trained_count, options->first_bucket_cap_bytes, options->bucket_cap_bytes,
                                ddp->bucket_of);
    free(sizes);
}

Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    (void)tape;
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    ddp->pg = pg;
    ddp->parameters = parameters;
    replicas_check_same_model(pg, parameters);
    replicas_broadcast(pg, parameters);
    plan(ddp, options);
    ddp->gradients = parameters_allocate_gradients(parameters);
    ddp->staging = pg_alloc_shared(pg, parameters_gradient_bytes(parameters));
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    pg_free_shared(ddp->pg, ddp->staging);
    parameters_free_gradients(ddp->parameters, ddp->gradients);
    free(ddp->trained);
    free(ddp->bucket_of);
    free(ddp);
}

int ddp_bucket_count(const Ddp *ddp)
{
    return ddp->buckets;
}

void ddp_before_forward(Ddp *ddp, bool last_micro_batch)
{
    (void)ddp;
    (void)last_micro_batch;
}

void ddp_before_backward(Ddp *ddp, Tensor *loss)
{
    (void)ddp;
    (void)loss;
}

/* Copies the gradients of `count` parameters into the buffer, or out of it; returns the number of elements. */
static size_t copy(Ddp *ddp, Parameter *const *parameters, int count, bool in)
{
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        float *gradient = parameters[i]->tensor.grad;
        const size_t elements = (size_t)tensor_count(&parameters[i]->tensor);
        device_copy(in ? ddp->staging + at : gradient, in ? gradient : ddp->staging + at, elements * sizeof(float));
        at += elements;
    }
    return at;
}

void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    replicas_check_gradients(ddp->parameters, NULL);
    for (int first = 0, count; first < ddp->trained_count; first += count) {
        char name[24];
        for (count = 1; first + count < ddp->trained_count; count++)
            if (ddp->bucket_of[first + count] != ddp->bucket_of[first])
                break;
        snprintf(name, sizeof name, "bucket %d", ddp->bucket_of[first]);
        const size_t elements = copy(ddp, ddp->trained + first, count, true);
        pg_all_reduce(ddp->pg, ddp->staging, ddp->staging, elements, DTYPE_F32, REDUCE_SUM, name);
        device_scale(ddp->staging, gradient_scale, (int64_t)elements);
        copy(ddp, ddp->trained + first, count, false);
    }
}
