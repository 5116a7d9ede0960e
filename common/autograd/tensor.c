/* tensor.c: shapes and their description; the list of a model's weights, and their initial values. */
#include "autograd/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "device/device.h"

/* ---- tensors ---- */

Tensor tensor_view(void *data, DType dtype, int ndim, const int64_t *shape)
{
    CHECK(ndim >= 1 && ndim <= TENSOR_MAX_DIMS, "a tensor has 1 to %d dimensions, not %d", TENSOR_MAX_DIMS, ndim);
    Tensor tensor = {.ndim = ndim, .dtype = dtype, .data = data};
    for (int i = 0; i < ndim; i++) {
        CHECK(shape[i] >= 0, "dimension %d of a tensor is negative: %lld", i, (long long)shape[i]);
        tensor.shape[i] = shape[i];
    }
    return tensor;
}

int64_t tensor_count(const Tensor *tensor)
{
    return tensor_rows(tensor) * tensor_last(tensor);
}

int64_t tensor_rows(const Tensor *tensor)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < tensor->ndim; i++)
        rows *= tensor->shape[i];
    return rows;
}

int64_t tensor_last(const Tensor *tensor)
{
    return tensor->shape[tensor->ndim - 1];
}

void tensor_describe(const Tensor *tensor, char *text, size_t size)
{
    char whole[120]; /* four numbers of 19 digits fit */
    int used = sprintf(whole, "%s [", dtype_name(tensor->dtype));
    for (int i = 0; i < tensor->ndim; i++)
        used += sprintf(whole + used, "%s%lld", i ? ", " : "", (long long)tensor->shape[i]);
    snprintf(text, size, "%s]", whole);
}

/* ---- parameters ---- */

Parameter *parameters_add(ParameterList *list, const char *name, int ndim, const int64_t *shape)
{
    if (list->count == list->capacity) {
        list->capacity = list->capacity ? 2 * list->capacity : 16;
        list->items = realloc(list->items, (size_t)list->capacity * sizeof *list->items);
        CHECK(list->items != NULL, "out of memory for the list of parameters");
    }
    Parameter *parameter = alloc_or_fault(sizeof *parameter);
    CHECK(strlen(name) < sizeof parameter->name, "the parameter name %s is too long", name);
    snprintf(parameter->name, sizeof parameter->name, "%s", name);
    parameter->index = list->count;
    parameter->layer = list->layers;
    parameter->tensor = tensor_view(NULL, DTYPE_F32, ndim, shape);
    parameter->tensor.data = device_alloc((size_t)tensor_count(&parameter->tensor) * sizeof(float));
    parameter->tensor.requires_grad = true;
    parameter->tensor.parameter = parameter;
    list->items[list->count++] = parameter;
    return parameter;
}

void parameter_make_buffer(Parameter *parameter)
{
    parameter->is_buffer = true;
    parameter->tensor.requires_grad = false;
}

void parameters_free(ParameterList *list)
{
    for (int i = 0; i < list->count; i++) {
        device_free(list->items[i]->tensor.data);
        device_free(list->items[i]->rounded.values);
        free(list->items[i]);
    }
    free(list->items);
    *list = (ParameterList){0};
}

int64_t parameters_total(const ParameterList *list)
{
    int64_t total = 0;
    for (int i = 0; i < list->count; i++)
        total += tensor_count(&list->items[i]->tensor);
    return total;
}

size_t parameter_gradient_bytes(const Parameter *parameter)
{
    size_t bytes = (size_t)tensor_count(&parameter->tensor) * sizeof(float);
    return (bytes + device_alignment() - 1) / device_alignment() * device_alignment();
}

void parameter_changed(Parameter *parameter)
{
    parameter->version++;
}

void parameters_changed(ParameterList *list)
{
    for (int i = 0; i < list->count; i++)
        parameter_changed(list->items[i]);
}

/* ---- gradients ---- */

size_t parameters_gradient_bytes(const ParameterList *list)
{
    size_t bytes = 0;
    for (int i = 0; i < list->count; i++)
        if (list->items[i]->tensor.requires_grad)
            bytes += parameter_gradient_bytes(list->items[i]);
    return bytes;
}

void parameters_place_gradients(ParameterList *list, void *block)
{
    unsigned char *next = block;
    for (int i = 0; i < list->count; i++) {
        if (!list->items[i]->tensor.requires_grad)
            continue;
        list->items[i]->tensor.grad = next;
        list->items[i]->gradient_room = parameter_gradient_bytes(list->items[i]);
        next += list->items[i]->gradient_room;
    }
}

void *parameters_allocate_gradients(ParameterList *list)
{
    void *block = device_alloc(parameters_gradient_bytes(list));
    parameters_place_gradients(list, block);
    return block;
}

void parameters_free_gradients(ParameterList *list, void *block)
{
    for (int i = 0; i < list->count; i++) {
        list->items[i]->tensor.grad = NULL;
        list->items[i]->gradient_room = 0;
        list->items[i]->has_gradient = false;
    }
    device_free(block);
}

void parameters_zero_gradients(ParameterList *list)
{
    for (int i = 0; i < list->count; i++) {
        Parameter *parameter = list->items[i];
        parameter->has_gradient = false;
        const size_t bytes = (size_t)tensor_count(&parameter->tensor) * sizeof(float);
        if (parameter->tensor.grad != NULL)
            device_zero(parameter->tensor.grad, parameter->gradient_room > 0 ? parameter->gradient_room : bytes);
    }
}

void parameters_to_host(const ParameterList *list, float *values)
{
    for (int i = 0; i < list->count; i++) {
        const Tensor *tensor = &list->items[i]->tensor;
        device_to_host(values, tensor->data, (size_t)tensor_count(tensor) * sizeof(float));
        values += tensor_count(tensor);
    }
}

void parameters_from_host(ParameterList *list, const float *values)
{
    for (int i = 0; i < list->count; i++) {
        const Tensor *tensor = &list->items[i]->tensor;
        device_from_host(tensor->data, values, (size_t)tensor_count(tensor) * sizeof(float));
        values += tensor_count(tensor);
    }
    parameters_changed(list);
}

uint64_t parameters_hash(const ParameterList *list)
{
    size_t count = (size_t)parameters_total(list);
    float *values = alloc_or_fault(count * sizeof *values);
    parameters_to_host(list, values);
    uint64_t hash = fnv1a(FNV1A_START, values, count * sizeof *values);
    free(values);
    return hash;
}

/* ---- initial values ---- */

/* Copies the values (host) into the parameter, and frees them. */
static void store(Parameter *parameter, float *values)
{
    device_from_host(parameter->tensor.data, values, (size_t)tensor_count(&parameter->tensor) * sizeof *values);
    free(values);
}

void init_uniform(Parameter *parameter, Rng *rng, float limit)
{
    float *values = alloc_or_fault((size_t)tensor_count(&parameter->tensor) * sizeof *values);
    for (int64_t i = 0; i < tensor_count(&parameter->tensor); i++)
        values[i] = (2 * rng_uniform(rng) - 1) * limit;
    store(parameter, values);
}

void init_normal(Parameter *parameter, Rng *rng, float deviation)
{
    float *values = alloc_or_fault((size_t)tensor_count(&parameter->tensor) * sizeof *values);
    for (int64_t i = 0; i < tensor_count(&parameter->tensor); i++)
        values[i] = deviation * rng_normal(rng);
    store(parameter, values);
}

void init_constant(Parameter *parameter, float value)
{
    device_fill(parameter->tensor.data, value, tensor_count(&parameter->tensor));
}
