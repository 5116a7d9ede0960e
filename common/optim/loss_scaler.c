/* loss_scaler.c: dynamic loss scaling. */
#include "optim/loss_scaler.h"

#include "base/check.h"
#include "device/device.h"

LossScaler loss_scaler_start(bool enabled, float initial_scale, bool skip_not_finite)
{
    return (LossScaler){.enabled = enabled, .skip_not_finite = enabled || skip_not_finite,
                        .scale = enabled ? initial_scale : 1};
}

/* The first parameter with an infinity or NaN in its gradient, or NULL. */
static const Parameter *find_not_finite(const ParameterList *parameters)
{
    for (int i = 0; i < parameters->count; i++) {
        const Parameter *parameter = parameters->items[i];
        if (parameter->has_gradient && !device_all_finite(parameter->tensor.grad, tensor_count(&parameter->tensor)))
            return parameter;
    }
    return NULL;
}

/* note: overflow */
bool loss_scaler_check(LossScaler *scaler, const ParameterList *parameters)
{
    const Parameter *bad = find_not_finite(parameters);
    if (bad != NULL) {
        CHECK(scaler->skip_not_finite, "the gradient of %s is not finite, after the all-reduce and so on all ranks; a lower "
              "--lr or --clip-grad-norm may help, and --on-nan skip leaves such steps out", bad->name);
        if (scaler->enabled)
            scaler->scale /= 2;
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
