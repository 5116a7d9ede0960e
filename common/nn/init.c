/* init.c: initial values of parameters. */
#include <stdlib.h>

#include "base/check.h"
#include "device/device.h"
#include "nn/layers.h"

/* Copies the values (host) into the parameter, and frees them. */
static void store(Parameter *parameter, float *values)
{
    device_from_host(parameter->tensor.data, values, (size_t)tensor_count(&parameter->tensor) * sizeof *values);
    free(values);
}

static float *room(const Parameter *parameter)
{
    return alloc_or_fault((size_t)tensor_count(&parameter->tensor) * sizeof(float));
}

void init_uniform(Parameter *parameter, Rng *rng, float limit)
{
    float *values = room(parameter);
    for (int64_t i = 0; i < tensor_count(&parameter->tensor); i++)
        values[i] = (2 * rng_uniform(rng) - 1) * limit;
    store(parameter, values);
}

void init_normal(Parameter *parameter, Rng *rng, float deviation)
{
    float *values = room(parameter);
    for (int64_t i = 0; i < tensor_count(&parameter->tensor); i++)
        values[i] = deviation * rng_normal(rng);
    store(parameter, values);
}

void init_constant(Parameter *parameter, float value)
{
    float *values = room(parameter);
    for (int64_t i = 0; i < tensor_count(&parameter->tensor); i++)
        values[i] = value;
    store(parameter, values);
}
