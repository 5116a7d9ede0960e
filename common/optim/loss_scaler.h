/* loss_scaler.h: dynamic loss scaling for fp16.
 *
 * Small gradients vanish in fp16 (below 6e-8). Multiplying the loss by a large number before backward moves all
 * gradients up by that factor; dividing the float32 gradients by it afterwards takes it out again. If something
 * overflows on the way, the step is skipped and the factor halved; after many good steps it is doubled.
 * Source: Micikevicius et al., 2018. Halving and doubling are torch.cuda.amp.GradScaler's; but it doubles after 2000
 * good steps, and starts at 65536. Here losses are sums, not means, so gradients are larger to begin with: the first
 * scale is --loss-scale, see train/options_flags.c.
 */
#ifndef LOCKSTEP_OPTIM_LOSS_SCALER_H
#define LOCKSTEP_OPTIM_LOSS_SCALER_H

#include "autograd/parameter.h"

#define LOSS_SCALER_GROWTH_INTERVAL 200 /* good steps until the scale is doubled */
#define LOSS_SCALER_LEAST 0x1p-24f      /* what overflows below that overflows by itself */

typedef struct LossScaler {
    bool enabled;    /* false: the scale stays 1 */
    bool skip_not_finite; /* leave out a step whose gradients are not finite, and go on; false: stop there */
    float scale;
    long good_steps; /* since the scale last changed */
    long skipped;    /* steps left out because of an overflow */
    const Parameter *not_finite; /* why the last step was left out; NULL: it was taken */
} LossScaler;

/* skip_not_finite is implied by enabled. */
LossScaler loss_scaler_start(bool enabled, float initial_scale, bool skip_not_finite);

/* Adjusts the scale. not_finite: what optimizer_end_step() has found. It looks at unscaled, SYNCHRONISED gradients: an
 * infinity on one rank has become one on all, so all ranks decide alike. Returns whether the step was taken. Where
 * skip_not_finite is false and it was not, the caller stops. A scale below LOSS_SCALER_LEAST is a fault. (PyTorch's goes
 * on to 0, and no step is ever taken again.) */
bool loss_scaler_update(LossScaler *scaler, const Parameter *not_finite);

#endif
