/* A correct stage 1 with another design: the sums are written to a second block, out of place. Then they are scaled
 * there, and copied to the gradients, which lie in a block where no other rank can see them. */
#include "ddp.h"

#include <stdlib.h>

#include "base/check.h"
#include "ddp/replicas.h"
#include "device/device.h"

const int ddp_stage_number = 1;
const char *const ddp_stage_name = "naive";

struct Ddp {
    ProcessGroup *pg;
    ParameterList *parameters;
    void *gradients;
    float *sums;  /* in the same places as the gradients */
    size_t bytes; /* of each */
};

Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    (void)tape;
    (void)options;
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    ddp->pg = pg;
    ddp->parameters = parameters;
    ddp->bytes = parameters_gradient_bytes(parameters);
    ddp->gradients = device_alloc(ddp->bytes);
    ddp->sums = pg_alloc_shared(pg, ddp->bytes);
    parameters_place_gradients(parameters, ddp->gradients);
    replicas_check_same_model(pg, parameters);
    replicas_broadcast(pg, parameters);
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    pg_free_shared(ddp->pg, ddp->sums);
    device_free(ddp->gradients);
    free(ddp);
}

int ddp_bucket_count(const Ddp *ddp)
{
    int count = 0;
    for (int i = 0; i < ddp->parameters->count; i++)
        if (ddp->parameters->items[i]->tensor.grad != NULL)
            count++;
    return count;
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
    float *sum = ddp->sums;
    for (int i = 0; i < ddp->parameters->count; i++) {
        const Parameter *parameter = ddp->parameters->items[i];
        if (!parameter->tensor.requires_grad)
            continue;
        pg_all_reduce(ddp->pg, parameter->tensor.grad, sum, (size_t)tensor_count(&parameter->tensor), DTYPE_F32,
                      REDUCE_SUM, parameter->name);
        sum += parameter_gradient_bytes(parameter) / sizeof *sum;
    }
    device_scale(ddp->sums, gradient_scale, (int64_t)(ddp->bytes / sizeof *ddp->sums));
    device_copy(ddp->gradients, ddp->sums, ddp->bytes);
}
