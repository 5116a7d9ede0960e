/* loss_scaler.h: dynamic loss scaling for fp16.
 *
 * Gradients below 6e-8 become 0 in fp16. So the loss is multiplied by a large scale before backward, which multiplies
 * all gradients by it, and afterwards the float32 gradients are divided by the scale. If a gradient overflows, the step
 * is skipped and the scale is halved; after many good steps the scale is doubled.
 * Source: Micikevicius et al., 2018. Halving and doubling are as in torch.cuda.amp.GradScaler, which doubles after 2000
 * good steps and starts at 65536. Here losses are sums, not means, so gradients are larger: the initial scale is
 * --loss-scale, see train/cli/options_flags.c.
 */
#ifndef LOCKSTEP_OPTIM_LOSS_SCALER_H
#define LOCKSTEP_OPTIM_LOSS_SCALER_H

#include "autograd/parameter.h"

#define LOSS_SCALER_GROWTH_INTERVAL 200 /* good steps until the scale is doubled */
#define LOSS_SCALER_LEAST 0x1p-24f      /* an overflow below this scale is not caused by the scale */

typedef struct LossScaler {
    bool enabled;    /* false: the scale stays 1 */
    bool skip_not_finite; /* true: skip a step whose gradients are not finite; false: the caller must stop there */
    float scale;
    long good_steps; /* since the scale last changed */
    long skipped;    /* steps skipped because of an overflow */
    const Parameter *not_finite; /* whose gradient made the last step skip; NULL: the step was taken */
} LossScaler;

/* enabled implies skip_not_finite. */
LossScaler loss_scaler_start(bool enabled, float initial_scale, bool skip_not_finite);

/* Adjusts the scale. not_finite: the result of optimizer_end_step(), which reads unscaled, SYNCHRONISED gradients: all
 * ranks see the same infinities, so all decide alike. Returns true if the step was taken. If it was not and
 * skip_not_finite is false, stop training. A scale below LOSS_SCALER_LEAST is a fault. (PyTorch's scale would fall to
 * 0, and every later step would be skipped.) */
bool loss_scaler_update(LossScaler *scaler, const Parameter *not_finite);

#endif
