/* clip.c: gradients clipped by their common norm. */
#include <math.h>

#include "device/device.h"
#include "optim/optimizer.h"

/* note: gradient-norm
 * One look at each gradient answers two questions: how long all of them are together, and whether one of their numbers
 * is infinite or NaN, as then the sum of squares is, too. The answers stay on the device, and the kernels of the step
 * read them there: on a GPU, this function only queues work. The host reads them when the step is over, in
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
        return; /* the factor is 1, or NaN */
    for (int i = 0; i < parameters->count; i++)
        if (parameters->items[i]->has_gradient)
            device_scale_by(parameters->items[i]->tensor.grad, optimizer->factor,
                            tensor_count(&parameters->items[i]->tensor));
}
