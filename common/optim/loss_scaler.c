/* loss_scaler.c: dynamic loss scaling. */
#include "optim/loss_scaler.h"

#include "device/device.h"

LossScaler loss_scaler_start(bool enabled, float initial_scale)
{
    return (LossScaler){.enabled = enabled, .scale = enabled ? initial_scale : 1};
}

static bool gradients_are_finite(const ParameterList *parameters)
{
    for (int i = 0; i < parameters->count; i++) {
        const Parameter *parameter = parameters->items[i];
        if (parameter->has_gradient && !device_all_finite(parameter->tensor.grad, tensor_count(&parameter->tensor)))
            return false;
    }
    return true;
}

/* note: overflow */
bool loss_scaler_check(LossScaler *scaler, const ParameterList *parameters)
{
    if (!scaler->enabled)
        return true;
    if (!gradients_are_finite(parameters)) {
        scaler->scale /= 2;
        scaler->good_steps = 0;
        scaler->skipped++;
        return false;
    }
    if (++scaler->good_steps == LOSS_SCALER_GROWTH_INTERVAL) {
        scaler->scale *= 2;
        scaler->good_steps = 0;
    }
    return true;
}
