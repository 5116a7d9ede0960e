/* A correct stage 1 with another design: a list of the trained parameters is made once, and each of them has its own
 * block of shared memory for its gradient. The weights come in one broadcast of a packed copy. */
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
    Parameter **trained;
    int trained_count;
};

static void broadcast_packed(ProcessGroup *pg, ParameterList *parameters)
{
    const size_t count = (size_t)parameters_total(parameters);
    float *values = alloc_or_fault(count * sizeof *values);
    parameters_to_host(parameters, values);
    pg_broadcast(pg, values, count, DTYPE_F32, 0, "all weights");
    parameters_from_host(parameters, values);
    parameters_changed(parameters);
    free(values);
}

Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    (void)tape;
    (void)options;
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    ddp->pg = pg;
    ddp->parameters = parameters;
    ddp->trained = alloc_or_fault((size_t)parameters->count * sizeof *ddp->trained);
    replicas_check_same_model(pg, parameters);
    broadcast_packed(pg, parameters);
    for (int i = 0; i < parameters->count; i++) {
        Parameter *parameter = parameters->items[i];
        if (!parameter->tensor.requires_grad)
            continue;
        parameter->tensor.grad = pg_alloc_shared(pg, parameter_gradient_bytes(parameter));
        ddp->trained[ddp->trained_count++] = parameter;
    }
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    while (ddp->trained_count > 0) {
        Tensor *tensor = &ddp->trained[--ddp->trained_count]->tensor;
        pg_free_shared(ddp->pg, tensor->grad);
        tensor->grad = NULL;
    }
    free(ddp->trained);
    free(ddp);
}

int ddp_bucket_count(const Ddp *ddp)
{
    return ddp->trained_count;
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
    for (int t = 0; t < ddp->trained_count; t++) {
        Tensor *tensor = &ddp->trained[t]->tensor;
        pg_all_reduce(ddp->pg, tensor->grad, tensor->grad, (size_t)tensor_count(tensor), DTYPE_F32, REDUCE_SUM,
                      ddp->trained[t]->name);
    }
    for (int t = 0; t < ddp->trained_count; t++)
        device_scale(ddp->trained[t]->tensor.grad, gradient_scale, tensor_count(&ddp->trained[t]->tensor));
}
