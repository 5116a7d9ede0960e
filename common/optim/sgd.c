/* sgd.c: stochastic gradient descent with momentum and weight decay, torch.optim.SGD's formulas:
 *
 *   g = grad + weight_decay * weight
 *   buffer = g on the first step, momentum * buffer + g afterwards
 *   weight = weight - lr * buffer            (without momentum: weight - lr * g)
 */
#include "device/device.h"
#include "optim/optimizer.h"

void sgd_update(Optimizer *optimizer, int i, float lr)
{
    const OptimizerOptions *options = &optimizer->options;
    Tensor *tensor = &optimizer->parameters->items[i]->tensor;
    device_sgd(tensor->data, tensor->grad, optimizer->state1[i], lr, options->momentum, options->weight_decay,
               optimizer->steps[i] == 1, tensor_count(tensor));
}
