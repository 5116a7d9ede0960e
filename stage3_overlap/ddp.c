/* Stage 3: communication during the backward pass.
 *
 * New over stage 2: the stage listens to gradient-ready events. As soon as all gradients of a bucket are ready, the
 * bucket's all-reduce is launched. The communication thread carries it out while backward goes on with the
 * earlier layers. Training waits only before the optimizer's step, for the all-reduces that are not done yet.
 * Two rules keep this correct: all ranks launch the buckets in the same order, whatever the order in which gradients
 * become ready; and between a gradient's event and the return of work_wait(), only the all-reduce reads or writes it.
 * What is wrong with it: a batch that is too large for the memory cannot be split into micro-batches. See stage 4.
 */
#include "ddp.h"

#include <stdlib.h>

#include "base/check.h"
#include "ddp/replicas.h"
#include "device/device.h"
#include "stage2_bucketed/buckets.h"
#include "stage3_overlap/readiness.h"

const int ddp_stage_number = 3;
const char *const ddp_stage_name = "overlap";

struct Ddp {
    ProcessGroup *pg;          /* not owned */
    ParameterList *parameters; /* not owned */
    Tape *tape;                /* not owned */
    DdpOptions options;
    Buckets buckets;     /* every trained parameter's gradient; owned */
    Readiness readiness; /* of this backward pass */
    int next_bucket;     /* the first bucket that is not launched yet in this backward pass */
    bool rebuild_due;    /* the next forward pass starts with buckets in the order of readiness */
};

static void gradient_ready(void *self, Parameter *parameter);

/* note: stage3-create
 * As in stage 2. Then the stage listens: from now on the tape calls gradient_ready() during backward. */
Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    ddp->pg = pg;
    ddp->parameters = parameters;
    ddp->tape = tape;
    ddp->options = *options;
    replicas_check_same_model(pg, parameters);
    replicas_broadcast(pg, parameters);
    buckets_create(&ddp->buckets, pg, parameters, NULL, options->first_bucket_cap_bytes, options->bucket_cap_bytes);
    readiness_create(&ddp->readiness, parameters, options->static_graph);
    tape_listen(tape, (TapeListener){.self = ddp, .gradient_ready = gradient_ready});
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    tape_listen(ddp->tape, (TapeListener){0});
    readiness_free(&ddp->readiness);
    buckets_free(&ddp->buckets);
    free(ddp);
}

/* note: rebuild-buckets
 * The reverse of registration is only a guess of the order in which gradients become ready. After the first step the
 * order is known. Ranks may have seen different orders, so all ranks take rank 0's. No gradient is lost here: they
 * are zero after the step. */
static void rebuild_buckets(Ddp *ddp)
{
    buckets_free(&ddp->buckets);
    buckets_create(&ddp->buckets, ddp->pg, ddp->parameters, ddp->readiness.order,
                   ddp->options.first_bucket_cap_bytes, ddp->options.bucket_cap_bytes);
    ddp->rebuild_due = false;
    ddp->options.rebuild_buckets = false; /* once is enough */
}

void ddp_before_forward(Ddp *ddp, bool last_micro_batch)
{
    (void)last_micro_batch; /* always true: --accumulate begins with stage 4 */
    if (ddp->rebuild_due)
        rebuild_buckets(ddp);
}

/* note: launch-order
 * Launches every bucket that has no pending gradient, if all buckets before it are launched. Without the rule "all
 * buckets before it", ranks could launch different collectives first, because their gradients may become ready in
 * different orders. The ranks would wait for each other for ever, or add gradients of different layers. */
static void launch_ready_buckets(Ddp *ddp)
{
    while (ddp->next_bucket < ddp->buckets.count && ddp->buckets.items[ddp->next_bucket].pending == 0) {
        Bucket *bucket = &ddp->buckets.items[ddp->next_bucket++];
        bucket->work = pg_all_reduce_async(ddp->pg, bucket->data, bucket->data, bucket->elements, DTYPE_F32, REDUCE_SUM,
                                           bucket->name);
    }
}

/* note: stage3-event
 * Handles the gradient-ready event. Called by the tape during backward, and by mark_unused_parameters() before it. */
static void gradient_ready(void *self, Parameter *parameter)
{
    Ddp *ddp = self;
    readiness_mark(&ddp->readiness, parameter);
    ddp->buckets.items[ddp->buckets.of_parameter[parameter->index]].pending--;
    launch_ready_buckets(ddp);
}

/* note: unused-parameters
 * A parameter that the loss does not depend on raises no event, and its bucket would stay pending for ever. The tape
 * shows before backward which parameters are unused. They are ready now, and their gradients are zero. */
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

/* note: stage3-wait
 * The optimizer needs every sum, so training waits here for all buckets, in launch order. The check comes first: if a
 * gradient is missing, its bucket was never launched, and work_wait() must not get the NULL in bucket->work. Then small
 * blocking collectives follow, if the options ask for them: the ranks agree on which parameters were used, and, only
 * once, on the order of readiness. */
void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    readiness_check_complete(&ddp->readiness, ddp->parameters);
    for (int b = 0; b < ddp->buckets.count; b++) {
        Bucket *bucket = &ddp->buckets.items[b];
        work_wait(bucket->work);
        bucket->work = NULL;
        device_scale(bucket->data, gradient_scale, (int64_t)bucket->elements);
    }
    if (ddp->options.find_unused_parameters)
        readiness_agree_on_use(&ddp->readiness, ddp->pg, ddp->parameters);
    if (ddp->options.rebuild_buckets) {
        readiness_agree_on_order(&ddp->readiness, ddp->pg);
        ddp->rebuild_due = true;
    }
}
