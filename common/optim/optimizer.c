/* optimizer.c: clipping, SGD and AdamW: their state, and one update per parameter; dynamic loss scaling. */
#include "optim/optimizer.h"

#include <math.h>
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

/* ---- a step: norm and clipping, update, end ---- */

/* note: gradient-norm
 * One pass over each gradient answers two questions: what the global norm is, and whether a number is infinite or NaN,
 * because then the sum of squares is not finite either. The answers stay on the device, where the step's kernels read
 * them: on a GPU, this function only queues work. The host reads them at the end of the step, in
 * optimizer_end_step(). */
void clip_grad_norm(Optimizer *optimizer, double max_norm)
{
    const ParameterList *parameters = optimizer->parameters;
    device_zero(optimizer->squares, (size_t)parameters->count * sizeof *optimizer->squares);
    for (int i = 0; i < parameters->count; i++)
        if (parameters->items[i]->has_gradient)
            device_sum_of_squares(&optimizer->squares[i], parameters->items[i]->tensor.grad,
                                  tensor_count(&parameters->items[i]->tensor));
    device_clip_factor(optimizer->factor, optimizer->squares, parameters->count, max_norm);
    if (isinf(max_norm))
        return; /* the factor is 1 or NaN: nothing to scale */
    for (int i = 0; i < parameters->count; i++)
        if (parameters->items[i]->has_gradient)
            device_scale_by(parameters->items[i]->tensor.grad, optimizer->factor,
                            tensor_count(&parameters->items[i]->tensor));
}

/* The device's arguments for the update of parameter i. */
static DeviceUpdate device_update(const Optimizer *optimizer, int i)
{
    const Parameter *parameter = optimizer->parameters->items[i];
    return (DeviceUpdate){.weight = parameter->tensor.data,
                          .grad = parameter->tensor.grad,
                          .factor = optimizer->factor,
                          .n = tensor_count(&parameter->tensor)};
}

/* Stochastic gradient descent with momentum and weight decay, by torch.optim.SGD's formulas:
 *
 *   g = grad + weight_decay * weight
 *   buffer = g on the first step, momentum * buffer + g afterwards
 *   weight = weight - lr * buffer            (without momentum: weight - lr * g)
 */
static void sgd_update(Optimizer *optimizer, int i, float lr)
{
    const OptimizerOptions *options = &optimizer->options;
    DeviceUpdate update = device_update(optimizer, i);
    device_sgd(&update, optimizer->state1[i], lr, options->momentum, options->weight_decay, optimizer->steps[i] == 1);
}

/* Adam with decoupled weight decay (Loshchilov and Hutter, 2019), by torch.optim.AdamW's formulas:
 *
 *   weight = weight - lr * weight_decay * weight
 *   m = beta1 * m + (1 - beta1) * grad
 *   v = beta2 * v + (1 - beta2) * grad^2
 *   weight = weight - lr * (m / correction1) / (sqrt(v / correction2) + eps),  correction = 1 - beta^steps
 *
 * As usual for GPT-2, only matrices decay: biases and layernorms do not. */
static void adamw_update(Optimizer *optimizer, int i, float lr)
{
    const OptimizerOptions *options = &optimizer->options;
    DeviceUpdate update = device_update(optimizer, i);
    double steps = (double)optimizer->steps[i];
    float correction1 = (float)(1 - pow(options->beta1, steps));
    float correction2 = (float)(1 - pow(options->beta2, steps));
    float weight_decay = optimizer->parameters->items[i]->tensor.ndim >= 2 ? options->weight_decay : 0;
    device_adamw(&update, optimizer->state1[i], optimizer->state2[i], lr, options->beta1, options->beta2, options->eps,
                 weight_decay, correction1, correction2);
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
        optimizer->steps[i] -= optimizer->updated[i]; /* the device skipped the step */
    free(squares);
    return not_finite;
}

/* ---- the loss scale ---- */

LossScaler loss_scaler_start(bool enabled, float initial_scale, bool skip_not_finite)
{
    return (LossScaler){.enabled = enabled, .skip_not_finite = enabled || skip_not_finite,
                        .scale = enabled ? initial_scale : 1};
}

/* note: overflow */
bool loss_scaler_update(LossScaler *scaler, const Parameter *not_finite)
{
    scaler->not_finite = not_finite;
    if (not_finite != NULL) {
        if (scaler->enabled)
            scaler->scale /= 2;
        CHECK(scaler->scale >= LOSS_SCALER_LEAST, "the gradient of %s still overflows at a loss scale of %g: training "
              "itself diverges (is --lr too large?)", not_finite->name, (double)scaler->scale);
        scaler->good_steps = 0;
        scaler->skipped++;
        return false;
    }
    if (scaler->enabled && ++scaler->good_steps == LOSS_SCALER_GROWTH_INTERVAL) {
        scaler->scale *= 2;
        scaler->good_steps = 0;
    }
    return true;
}
