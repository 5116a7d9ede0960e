/* rounding.c: rounded copies of the operands of matrix products, and how long they are kept. */
#include "autograd/rounding.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

static const void *rounded(Tape *tape, const float *values, int64_t count)
{
    void *copy = arena_alloc(tape_arena(tape), device_rounded_bytes(tape->precision, count));
    device_store_rounded(copy, values, tape->precision, count);
    return copy;
}

static size_t kept_bytes(const Parameter *parameter)
{
    return device_rounded_bytes(parameter->rounded.dtype, tensor_count(&parameter->tensor));
}

static bool is_up_to_date(const Parameter *parameter)
{
    return parameter->rounded.values != NULL && parameter->rounded.version == parameter->version;
}

void parameter_drop_copy(Parameter *parameter)
{
    device_free(parameter->rounded.values);
    parameter->rounded.values = NULL;
}

DType parameter_read_as(const Parameter *parameter)
{
    return parameter->reads == parameter->product_reads ? parameter->rounded.dtype : DTYPE_F32;
}

void parameter_forget_reads(Parameter *parameter)
{
    parameter->reads = 0;
    parameter->product_reads = 0;
}

static const void *rounded_weight(Parameter *parameter, DType precision)
{
    RoundedCopy *copy = &parameter->rounded;
    parameter->product_reads++;
    if (copy->dtype != precision)
        parameter_drop_copy(parameter);
    if (is_up_to_date(parameter))
        return copy->values;
    if (copy->values == NULL) {
        copy->dtype = precision;
        copy->values = device_alloc(kept_bytes(parameter));
    }
    device_store_rounded(copy->values, parameter->tensor.data, precision, tensor_count(&parameter->tensor));
    copy->version = parameter->version;
    return copy->values;
}

const void *rounded_operand(Tape *tape, const Tensor *x)
{
    if (x->dtype == tape->precision)
        return x->data;
    CHECK(x->dtype == DTYPE_F32, "linear reads float32 or the tape's precision, not %s", dtype_name(x->dtype));
    if (x->parameter != NULL)
        return rounded_weight(x->parameter, tape->precision);
    return rounded(tape, x->data, tensor_count(x));
}

const void *rounded_gradient(Tape *tape, Tensor *out)
{
    if (out->grad_dtype == tape->precision)
        return out->grad;
    if (device_rounded_bytes(tape->precision, 1) != sizeof(float))
        return rounded(tape, out->grad, tensor_count(out));
    device_store_rounded(out->grad, out->grad, tape->precision, tensor_count(out)); /* emulated: still a float */
    return out->grad;
}

static bool copy_matches(const Parameter *parameter)
{
    const size_t bytes = kept_bytes(parameter);
    void *fresh = device_alloc(bytes), *kept_on_host = alloc_or_fault(bytes), *fresh_on_host = alloc_or_fault(bytes);
    device_store_rounded(fresh, parameter->tensor.data, parameter->rounded.dtype, tensor_count(&parameter->tensor));
    device_to_host(fresh_on_host, fresh, bytes);
    device_to_host(kept_on_host, parameter->rounded.values, bytes);
    const bool equal = memcmp(fresh_on_host, kept_on_host, bytes) == 0;
    device_free(fresh);
    free(fresh_on_host);
    free(kept_on_host);
    return equal;
}

const Parameter *parameters_find_stale(const ParameterList *list)
{
    for (int i = 0; i < list->count; i++)
        if (is_up_to_date(list->items[i]) && !copy_matches(list->items[i]))
            return list->items[i];
    return NULL;
}

size_t parameters_operand_bytes(const ParameterList *list)
{
    size_t bytes = 0;
    for (int i = 0; i < list->count; i++)
        if (list->items[i]->rounded.values != NULL)
            bytes += kept_bytes(list->items[i]);
    return bytes;
}
