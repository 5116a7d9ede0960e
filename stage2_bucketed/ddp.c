/* Stage 2: gradient buckets.
 *
 * New over stage 1: gradients lie side by side in buckets, and each bucket is sent by one all-reduce. An all-reduce
 * pays the network's latency once, however many gradients it carries. So a few large ones are faster than many small
 * ones. A parameter's gradient IS a slice of its bucket: backward writes it there, the optimizer reads it there.
 * The buckets are made in buckets.c.
 * What is wrong with it: communication still waits for the end of backward, although the first bucket is ready
 * long before. Stage 3 solves this.
 */
#include "ddp.h"

#include <stdlib.h>

#include "base/check.h"
#include "ddp/replicas.h"
#include "device/device.h"
#include "stage2_bucketed/buckets.h"

const int ddp_stage_number = 2;
const char *const ddp_stage_name = "bucketed";

struct Ddp {
    ProcessGroup *pg;          /* not owned */
    ParameterList *parameters; /* not owned */
    Buckets buckets;           /* every trained parameter's gradient; owned */
};

/* note: stage2-create
 * As in stage 1, but the gradients lie in buckets. buckets_create() gets NULL as the order: the reverse of
 * registration. */
Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    (void)tape; /* this stage does not listen to gradient-ready events */
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    ddp->pg = pg;
    ddp->parameters = parameters;
    replicas_check_same_model(pg, parameters);
    replicas_broadcast(pg, parameters);
    buckets_create(&ddp->buckets, pg, parameters, NULL, options->first_bucket_cap_bytes, options->bucket_cap_bytes);
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    buckets_free(&ddp->buckets);
    free(ddp);
}

void ddp_before_forward(Ddp *ddp, bool last_micro_batch)
{
    (void)ddp;
    (void)last_micro_batch; /* always true: --accumulate begins with stage 4 */
}

void ddp_before_backward(Ddp *ddp, Tensor *loss)
{
    (void)ddp;
    (void)loss;
}

/* note: stage2-all-reduce
 * One blocking all-reduce for each bucket. The gradients lie in the buckets, so nothing is copied. */
void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    replicas_check_gradients(ddp->parameters, NULL); /* NULL, because this stage does not listen to events */
    for (int b = 0; b < ddp->buckets.count; b++) {
        Bucket *bucket = &ddp->buckets.items[b];
        pg_all_reduce(ddp->pg, bucket->data, bucket->data, bucket->elements, DTYPE_F32, REDUCE_SUM, bucket->name);
        device_scale(bucket->data, gradient_scale, (int64_t)bucket->elements);
    }
}
