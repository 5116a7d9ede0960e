/* tensor.c: shapes and their description. */
#include "autograd/tensor.h"

#include <stdio.h>

#include "base/check.h"

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
    int used = snprintf(text, size, "%s [", dtype_name(tensor->dtype));
    for (int i = 0; i < tensor->ndim && used >= 0 && (size_t)used < size; i++)
        used += snprintf(text + used, size - (size_t)used, "%s%lld", i ? ", " : "", (long long)tensor->shape[i]);
    if (used >= 0 && (size_t)used < size)
        snprintf(text + used, size - (size_t)used, "]");
}
