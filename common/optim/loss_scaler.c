/* loss_scaler.c: dynamic loss scaling. */
#include "optim/loss_scaler.h"

#include "base/check.h"

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
