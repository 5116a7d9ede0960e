/* clip.c: gradients clipped by their common norm. */
#include <math.h>

#include "device/device.h"
#include "optim/optimizer.h"

double clip_grad_norm(ParameterList *parameters, double max_norm)
{
    double sum = 0;
    for (int i = 0; i < parameters->count; i++)
        if (parameters->items[i]->has_gradient)
            sum += device_sum_of_squares(parameters->items[i]->tensor.grad,
                                         tensor_count(&parameters->items[i]->tensor));
    double norm = sqrt(sum);
    double factor = max_norm / (norm + 1e-6); /* the 1e-6 is PyTorch's */
    if (factor < 1)
        for (int i = 0; i < parameters->count; i++)
            if (parameters->items[i]->has_gradient)
                device_scale(parameters->items[i]->tensor.grad, (float)factor,
                             tensor_count(&parameters->items[i]->tensor));
    return norm;
}
