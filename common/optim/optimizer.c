/* optimizer.c: clipping, SGD and AdamW: their state, and one update per parameter; dynamic loss scaling. */
#include "optim/optimizer.h"

#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "device/device.h"

/* ---- slices and state ---- */

static Slice slice_of(const Optimizer *optimizer, int i)
{
    const Tensor *tensor = &optimizer->parameters->items[i]->tensor;
    if (optimizer->partition != NULL)
        return optimizer->partition->slices[i];
    return (Slice){.count = tensor_count(tensor), .weight = tensor->data, .grad = tensor->grad};
}

static int states_per_weight(const OptimizerOptions *options)
{
    return options->kind == OPTIMIZER_ADAMW ? 2 : options->momentum > 0 ? 1 : 0;
}

void optimizer_create(Optimizer *optimizer, const OptimizerOptions *options, ParameterList *parameters)
{
    size_t count = (size_t)parameters->count;
    *optimizer = (Optimizer){.options = *options, .parameters = parameters};
    optimizer->state1 = alloc_or_fault(count * sizeof *optimizer->state1);
    optimizer->state2 = alloc_or_fault(count * sizeof *optimizer->state2);
    optimizer->steps = alloc_or_fault(count * sizeof *optimizer->steps);
    optimizer->updated = alloc_or_fault(count * sizeof *optimizer->updated);
    optimizer->first_square = alloc_or_fault((count + 1) * sizeof *optimizer->first_square);
    for (size_t i = 0; i < count; i++)
        optimizer->first_square[i + 1] =
            optimizer->first_square[i] + squares_blocks(tensor_count(&parameters->items[i]->tensor));
    optimizer->squares = device_alloc((size_t)optimizer->first_square[count] * sizeof *optimizer->squares);
    optimizer->factor = device_alloc(sizeof *optimizer->factor);
}

void optimizer_allocate_state(Optimizer *optimizer)
{
    for (int i = 0; i < optimizer->parameters->count && !optimizer->has_state; i++) {
        const size_t bytes = (size_t)slice_of(optimizer, i).count * sizeof(float);
        optimizer->state1[i] = states_per_weight(&optimizer->options) >= 1 ? device_alloc(bytes) : NULL;
        optimizer->state2[i] = states_per_weight(&optimizer->options) == 2 ? device_alloc(bytes) : NULL;
    }
    optimizer->has_state = true;
}

/* Replaces the state of a whole parameter by that of a slice. */
static void keep_slice(float **state, const Slice *slice)
{
    float *whole = *state;
    if (whole == NULL)
        return;
    *state = device_alloc((size_t)slice->count * sizeof(float));
    device_copy(*state, whole + slice->begin, (size_t)slice->count * sizeof(float));
    device_free(whole);
}

void optimizer_set_partition(Optimizer *optimizer, const Partition *partition)
{
    CHECK(optimizer->partition == NULL, "the optimizer has a partition already");
    optimizer->partition = partition;
    for (int i = 0; i < optimizer->parameters->count && partition != NULL; i++) {
        keep_slice(&optimizer->state1[i], &partition->slices[i]);
        keep_slice(&optimizer->state2[i], &partition->slices[i]);
    }
}

float **optimizer_gather_state(const Optimizer *optimizer, float **states, bool keeps)
{
    const Partition *partition = optimizer->partition;
    if (partition == NULL)
        return states;
    float **whole = alloc_or_fault((size_t)optimizer->parameters->count * sizeof *whole);
    for (int i = 0; i < optimizer->parameters->count; i++) {
        if (states[i] == NULL)
            continue;
        whole[i] = device_alloc((size_t)tensor_count(&optimizer->parameters->items[i]->tensor) * sizeof(float));
        partition->gather(partition->owner, i, states[i], whole[i]);
        if (keeps)
            continue;
        device_free(whole[i]); /* one at a time: a rank that does not save needs no room for all */
        whole[i] = NULL;
    }
    return whole;
}

void optimizer_free_gathered(const Optimizer *optimizer, float **whole)
{
    if (optimizer->partition == NULL)
        return; /* they are the optimizer's own */
    for (int i = 0; i < optimizer->parameters->count; i++)
        device_free(whole[i]);
    free(whole);
}

size_t optimizer_state_bytes(const Optimizer *optimizer)
{
    size_t elements = 0;
    for (int i = 0; i < optimizer->parameters->count; i++)
        elements += (size_t)slice_of(optimizer, i).count;
    return elements * sizeof(float) * (size_t)states_per_weight(&optimizer->options);
}

void optimizer_free(Optimizer *optimizer)
{
    for (int i = 0; i < optimizer->parameters->count; i++) {
        device_free(optimizer->state1[i]);
        device_free(optimizer->state2[i]);
    }
    free(optimizer->state1);
    free(optimizer->state2);
    free(optimizer->steps);
    free(optimizer->updated);
    free(optimizer->first_square);
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
    const Partition *partition = optimizer->partition;
    const int64_t squares = optimizer->first_square[parameters->count];
    device_zero(optimizer->squares, (size_t)squares * sizeof *optimizer->squares);
    for (int i = 0; i < parameters->count; i++) {
        const Slice slice = slice_of(optimizer, i);
        if (parameters->items[i]->has_gradient)
            device_sum_of_squares(optimizer->squares + optimizer->first_square[i] + slice.begin / SQUARES_BLOCK,
                                  slice.grad, slice.count);
    }
    if (partition != NULL) /* one process has computed each block's sum; on all others it is 0 */
        partition->add_up(partition->owner, optimizer->squares, (size_t)squares);
    device_clip_factor(optimizer->factor, optimizer->squares, squares, max_norm);
    if (isinf(max_norm))
        return; /* the factor is 1 or NaN: nothing to scale */
    for (int i = 0; i < parameters->count; i++) {
        const Slice slice = slice_of(optimizer, i);
        if (parameters->items[i]->has_gradient)
            device_scale_by(slice.grad, optimizer->factor, slice.count);
    }
}

/* The device's arguments for the update of parameter i. */
static DeviceUpdate device_update(const Optimizer *optimizer, int i)
{
    const Slice slice = slice_of(optimizer, i);
    return (DeviceUpdate){.weight = slice.weight, .grad = slice.grad, .factor = optimizer->factor, .n = slice.count};
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

/* note: optimizer-step
 * The last step of a gradient: it updates its weight, by the same amount on every rank (in stage 5, on the rank that
 * owns the slice). A parameter that no rank used keeps its weight and its state. */
void optimizer_step(Optimizer *optimizer, float lr)
{
    optimizer_allocate_state(optimizer);
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
    const int64_t squares = optimizer->first_square[count];
    const Parameter *not_finite = NULL;
    double *square = alloc_or_fault((size_t)squares * sizeof *square), sum = 0;
    device_to_host(square, optimizer->squares, (size_t)squares * sizeof *square);
    for (int i = 0; i < count; i++)
        for (int64_t k = optimizer->first_square[i]; k < optimizer->first_square[i + 1]; k++) {
            sum += square[k];
            if (not_finite == NULL && !isfinite(square[k]))
                not_finite = optimizer->parameters->items[i];
        }
    optimizer->norm = sqrt(sum);
    for (int i = 0; i < count && not_finite != NULL; i++)
        optimizer->steps[i] -= optimizer->updated[i]; /* the device skipped the step */
    free(square);
    return not_finite;
}

/* ---- the loss scale ---- */

LossScaler loss_scaler_start(bool enabled, float initial_scale, bool skip_not_finite)
{
    return (LossScaler){.enabled = enabled, .skip_not_finite = enabled || skip_not_finite,
                        .scale = enabled ? initial_scale : 1};
}

/* note: overflow
 * Halves the scale after an overflow, and doubles it after LOSS_SCALER_GROWTH_INTERVAL good steps. The gradients are
 * already synchronised, so all ranks change the scale alike without a message. */
bool loss_scaler_update(LossScaler *scaler, const Parameter *not_finite)
{
    scaler->not_finite = not_finite;
    if (not_finite != NULL) {
        if (scaler->enabled)
            scaler->scale /= 2;
        CHECK(scaler->scale >= LOSS_SCALER_MIN, "the gradient of %s still overflows at a loss scale of %g: training "
              "itself diverges (is --lr too large?)", not_finite->name, (double)scaler->scale);
        scaler->good_steps = 0;
        scaler->skipped++;
        return false;
    }
    if (scaler->enabled && ++scaler->good_steps == LOSS_SCALER_GROWTH_INTERVAL) {
        scaler->scale = fminf(2 * scaler->scale, LOSS_SCALER_MAX);
        scaler->good_steps = 0;
    }
    return true;
}
