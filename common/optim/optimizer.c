/* optimizer.c: what SGD and AdamW share: their state, and one update per parameter. */
#include "optim/optimizer.h"

#include <stdlib.h>

#include "base/check.h"
#include "device/device.h"

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
        const Parameter *parameter = optimizer->parameters->items[i];
        if (!parameter->tensor.requires_grad || !parameter->has_gradient)
            continue;
        optimizer->steps[i]++;
        if (optimizer->options.kind == OPTIMIZER_SGD)
            sgd_update(optimizer, i, lr);
        else
            adamw_update(optimizer, i, lr);
    }
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
    *optimizer = (Optimizer){0};
}
