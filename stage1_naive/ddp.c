/* Stage 1: naive data parallel training.
 *
 * Every rank has the whole model and its own part of the batch. Two things keep the copies equal:
 *   - before the first step, rank 0's weights are copied to all ranks (broadcast);
 *   - after every backward pass, each parameter's gradient is summed over all ranks (all-reduce) and divided by
 *     the size of the global batch (in samples, or tokens for a GPT). Equal weights, equal gradients: equal weights.
 * What is wrong with it: one collective per parameter pays the network's latency again and again, and all of it
 * comes after backward, while the processor stands still. Stages 2 and 3 mend this.
 */
#include "ddp.h"

#include <stdlib.h>

#include "base/check.h"
#include "ddp/replicas.h"
#include "device/device.h"

const int ddp_stage_number = 1;
const char *const ddp_stage_name = "naive";

struct Ddp {
    ProcessGroup *pg;          /* not owned */
    ParameterList *parameters; /* not owned */
    void *gradients;           /* every parameter's gradient, one after the other; owned */
};

/* note: stage1-create
 * All ranks have the same model, and from here on rank 0's weights. Each gradient gets a place that is its own, zeroed
 * (and visible to the other ranks of a host, if --allreduce shm is to add up there). */
Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    (void)tape; /* this stage does not listen to gradient-ready events */
    (void)options;
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    ddp->pg = pg;
    ddp->parameters = parameters;
    replicas_check_same_model(pg, parameters);
    replicas_broadcast(pg, parameters);
    ddp->gradients = pg_alloc_shared(pg, parameters_gradient_bytes(parameters));
    parameters_place_gradients(parameters, ddp->gradients);
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    pg_free_shared(ddp->pg, ddp->gradients);
    free(ddp);
}

int ddp_bucket_count(const Ddp *ddp)
{
    int trained = 0;
    for (int i = 0; i < ddp->parameters->count; i++)
        trained += ddp->parameters->items[i]->tensor.requires_grad;
    return trained;
}

void ddp_before_forward(Ddp *ddp, bool last_micro_batch)
{
    (void)ddp;
    (void)last_micro_batch; /* always true here: --accumulate begins with stage 3 */
}

void ddp_before_backward(Ddp *ddp, Tensor *loss)
{
    (void)ddp;
    (void)loss;
}

/* note: stage1-all-reduce
 * One blocking all-reduce for each parameter, in the order of registration, which is the same on all ranks. */
void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    /* Before any all-reduce, as a rank that stopped half-way would leave the others waiting. NULL: this stage listens
     * to no events, so has_gradient tells. */
    replicas_check_gradients(ddp->parameters, NULL);
    for (int i = 0; i < ddp->parameters->count; i++) {
        Parameter *parameter = ddp->parameters->items[i];
        if (!parameter->tensor.requires_grad)
            continue; /* frozen: it has no gradient */
        float *gradient = parameter->tensor.grad;
        int64_t count = tensor_count(&parameter->tensor);
        pg_all_reduce(ddp->pg, gradient, gradient, (size_t)count, DTYPE_F32, REDUCE_SUM, parameter->name);
        device_scale(gradient, gradient_scale, count); /* the sum becomes the mean over the global batch */
    }
}
