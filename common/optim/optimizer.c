/* optimizer.c: what SGD and AdamW share: their state, and one update per parameter. */
#include "optim/optimizer.h"

#include <math.h>
#include <stdlib.h>

#include "base/check.h"

static float *zeroed_state(const Parameter *parameter)
{
    return device_alloc((size_t)tensor_count(&parameter->tensor) * sizeof(float));
}

void optimizer_create(Optimizer *optimizer, const OptimizerOptions *options, ParameterList *parameters)
{
    size_t count = (size_t)parameters->count;
    *optimizer = (Optimizer){.options = *options, .parameters = parameters};
    optimizer->state1 = alloc_or_fault(count * sizeof *optimizer->state1);
    optimizer->state2 = alloc_or_fault(count * sizeof *optimizer->state2);
    optimizer->steps = alloc_or_fault(count * sizeof *optimizer->steps);
    optimizer->updated = alloc_or_fault(count * sizeof *optimizer->updated);
    optimizer->squares = device_alloc(count * sizeof *optimizer->squares);
    optimizer->factor = device_alloc(sizeof *optimizer->factor);
    device_fill(optimizer->factor, 1, 1);
    for (size_t i = 0; i < count; i++) {
        if (options->kind == OPTIMIZER_ADAMW || options->momentum > 0)
            optimizer->state1[i] = zeroed_state(parameters->items[i]);
        if (options->kind == OPTIMIZER_ADAMW)
            optimizer->state2[i] = zeroed_state(parameters->items[i]);
    }
}

void optimizer_step(Optimizer *optimizer, float lr)
{
    for (int i = 0; i < optimizer->parameters->count; i++) {
        Parameter *parameter = optimizer->parameters->items[i];
        optimizer->updated[i] = parameter->tensor.requires_grad && parameter->has_gradient;
        if (!optimizer->updated[i])
            continue;
        optimizer->steps[i]++;
        if (optimizer->options.kind == OPTIMIZER_SGD)
            sgd_update(optimizer, i, lr);
        else
            adamw_update(optimizer, i, lr);
        parameter_changed(parameter);
    }
}

const Parameter *optimizer_end_step(Optimizer *optimizer)
{
    const int count = optimizer->parameters->count;
    const Parameter *not_finite = NULL;
    double *squares = alloc_or_fault((size_t)count * sizeof *squares), sum = 0;
    device_to_host(squares, optimizer->squares, (size_t)count * sizeof *squares);
    for (int i = 0; i < count; i++) {
        sum += squares[i];
        if (not_finite == NULL && !isfinite(squares[i]))
            not_finite = optimizer->parameters->items[i];
    }
    optimizer->norm = sqrt(sum);
    for (int i = 0; i < count && not_finite != NULL; i++)
        optimizer->steps[i] -= optimizer->updated[i]; /* the step was left out on the device */
    free(squares);
    return not_finite;
}

DeviceUpdate optimizer_device_update(const Optimizer *optimizer, int i)
{
    const Parameter *parameter = optimizer->parameters->items[i];
    return (DeviceUpdate){.weight = parameter->tensor.data,
                          .grad = parameter->tensor.grad,
                          .factor = optimizer->factor,
                          .n = tensor_count(&parameter->tensor)};
}

void optimizer_free(Optimizer *optimizer)
{
    for (int i = 0; i < optimizer->parameters->count; i++) {
        if (optimizer->state1[i] != NULL)
            device_free(optimizer->state1[i]);
        if (optimizer->state2[i] != NULL)
            device_free(optimizer->state2[i]);
    }
    free(optimizer->state1);
    free(optimizer->state2);
    free(optimizer->steps);
    free(optimizer->updated);
    device_free(optimizer->squares);
    device_free(optimizer->factor);
    *optimizer = (Optimizer){0};
}
