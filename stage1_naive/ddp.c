/* Stage 1: naive data parallel training.
 *
 * Every rank has the whole model and its own part of the batch. Two things keep the models equal:
 *   - before the first step, rank 0's weights are copied to all ranks (broadcast);
 *   - after every backward pass, each trained parameter's gradient is summed over all ranks (all-reduce) and divided by
 *     the size of the global batch (in samples, or in tokens for a GPT). So all ranks make the same update.
 * What is wrong with it: each parameter's all-reduce pays the network's latency, and all of them come after
 * backward, while the processor only waits. Stage 2 solves the first problem, stage 3 the second.
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
    void *gradients;           /* every trained parameter's gradient, one after the other; owned */
};

/* note: stage1-create
 * Checks that all ranks have the same model, and copies rank 0's weights to all. This rank's gradients lie in one
 * zeroed block of memory. If the ranks of a host add in shared memory, they can read and write each other's block. */
Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    (void)tape; /* this stage does not listen to gradient-ready events */
    (void)options;
    Ddp *ddp = alloc_or_fault(sizeof *ddp); /* zeroed */
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

/* note: stage1-all-reduce
 * One blocking all-reduce for each trained parameter, in the order of registration, which is the same on all ranks. */
void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    /* Check before the first all-reduce, so that no rank sends an incomplete set of gradients. NULL: later
     * stages pass a list of what is ready; here the check reads each parameter's has_gradient, which the tape sets. */
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
