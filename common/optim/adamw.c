/* adamw.c: Adam with decoupled weight decay (Loshchilov and Hutter, 2019), torch.optim.AdamW's formulas:
 *
 *   weight = weight - lr * weight_decay * weight
 *   m = beta1 * m + (1 - beta1) * grad
 *   v = beta2 * v + (1 - beta2) * grad^2
 *   weight = weight - lr * (m / correction1) / (sqrt(v / correction2) + eps),  correction = 1 - beta^steps
 *
 * As GPT-2's trainings do, only matrices decay: biases and layernorms are left alone.
 */
#include <math.h>

#include "optim/optimizer.h"

void adamw_update(Optimizer *optimizer, int i, float lr)
{
    const OptimizerOptions *options = &optimizer->options;
    DeviceUpdate update = optimizer_device_update(optimizer, i);
    double steps = (double)optimizer->steps[i];
    float correction1 = (float)(1 - pow(options->beta1, steps));
    float correction2 = (float)(1 - pow(options->beta2, steps));
    float weight_decay = optimizer->parameters->items[i]->tensor.ndim >= 2 ? options->weight_decay : 0;
    device_adamw(&update, optimizer->state1[i], optimizer->state2[i], lr, options->beta1, options->beta2, options->eps,
                 weight_decay, correction1, correction2);
}
