/* A correct stage 1 with another design: all all-reduces are started, from the last parameter to the first, and only
 * then waited for. The gradients lie in plain device memory; each is scaled as soon as its sum is there. */
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
    Work **works; /* by parameter index; NULL: frozen */
};

Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    (void)tape;
    (void)options;
    replicas_check_same_model(pg, parameters);
    replicas_broadcast(pg, parameters);
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    *ddp = (Ddp){.pg = pg, .parameters = parameters, .gradients = parameters_allocate_gradients(parameters),
                 .works = alloc_or_fault((size_t)parameters->count * sizeof(Work *))};
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    parameters_free_gradients(ddp->parameters, ddp->gradients);
    free(ddp->works);
    free(ddp);
}

int ddp_bucket_count(const Ddp *ddp)
{
    int count = ddp->parameters->count;
    for (int i = 0; i < ddp->parameters->count; i++)
        if (!ddp->parameters->items[i]->tensor.requires_grad)
            count--;
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
    for (int i = ddp->parameters->count - 1; i >= 0; i--) {
        const Parameter *parameter = ddp->parameters->items[i];
        float *gradient = parameter->tensor.grad;
        if (parameter->tensor.requires_grad)
            ddp->works[i] = pg_all_reduce_async(ddp->pg, gradient, gradient, (size_t)tensor_count(&parameter->tensor),
                                                DTYPE_F32, REDUCE_SUM, parameter->name);
    }
    for (int i = 0; i < ddp->parameters->count; i++) {
        Tensor *tensor = &ddp->parameters->items[i]->tensor;
        if (ddp->works[i] == NULL)
            continue;
        work_wait(ddp->works[i]);
        ddp->works[i] = NULL;
        device_scale(tensor->grad, gradient_scale, tensor_count(tensor));
    }
}
