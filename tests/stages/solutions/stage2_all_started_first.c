/* A correct stage 2 with another design: all buckets are started, from the last one to the first, and then waited for.
 * They are scaled only when all sums are there, parameter by parameter, so that the gaps between them do not matter. */
#include "ddp.h"

#include <stdlib.h>

#include "base/check.h"
#include "ddp/buckets.h"
#include "ddp/replicas.h"
#include "device/device.h"

const int ddp_stage_number = 2;
const char *const ddp_stage_name = "bucketed";

struct Ddp {
    ProcessGroup *pg;
    ParameterList *parameters;
    Buckets buckets;
};

Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    (void)tape;
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    ddp->pg = pg;
    ddp->parameters = parameters;
    replicas_check_same_model(pg, parameters);
    buckets_create(&ddp->buckets, pg, parameters, NULL, options->first_bucket_cap_bytes, options->bucket_cap_bytes);
    replicas_broadcast(pg, parameters);
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    buckets_free(&ddp->buckets);
    free(ddp);
}

int ddp_bucket_count(const Ddp *ddp)
{
    return ddp->buckets.count;
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

void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    replicas_check_gradients(ddp->parameters, NULL);
    for (int b = ddp->buckets.count - 1; b >= 0; b--) {
        Bucket *bucket = &ddp->buckets.items[b];
        bucket->work = pg_all_reduce_async(ddp->pg, bucket->data, bucket->data, bucket->elements, DTYPE_F32,
                                           REDUCE_SUM, bucket->name);
    }
    for (int b = 0; b < ddp->buckets.count; b++) {
        work_wait(ddp->buckets.items[b].work);
        ddp->buckets.items[b].work = NULL;
    }
    for (int i = ddp->parameters->count - 1; i >= 0; i--) {
        Tensor *tensor = &ddp->parameters->items[i]->tensor;
        if (tensor->requires_grad)
            device_scale(tensor->grad, gradient_scale, tensor_count(tensor));
    }
}
