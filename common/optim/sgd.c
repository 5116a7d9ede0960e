/* sgd.c: stochastic gradient descent with momentum and weight decay, torch.optim.SGD's formulas:
 *
 *   g = grad + weight_decay * weight
 *   buffer = g on the first step, momentum * buffer + g afterwards
 *   weight = weight - lr * buffer            (without momentum: weight - lr * g)
 */
#include "optim/optimizer.h"

void sgd_update(Optimizer *optimizer, int i, float lr)
{
    const OptimizerOptions *options = &optimizer->options;
    DeviceUpdate update = optimizer_device_update(optimizer, i);
    device_sgd(&update, optimizer->state1[i], lr, options->momentum, options->weight_decay, optimizer->steps[i] == 1);
}
