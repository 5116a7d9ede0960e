/* dtype_values.c: buffers of any dtype, element by element. */
#include "dtype_values.h"

#include <float.h>
#include <math.h>

#include "base/dtype.h"

void store_value(void *buffer, DType dtype, size_t i, double value)
{
    float single = (float)value, sixteen[INT8_BLOCK];
    for (int k = 0; k < INT8_BLOCK; k++)
        sixteen[k] = single;
    switch (dtype) {
    case DTYPE_F32: ((float *)buffer)[i] = single; break;
    case DTYPE_F64: ((double *)buffer)[i] = value; break;
    case DTYPE_I32: ((int32_t *)buffer)[i] = (int32_t)value; break;
    case DTYPE_I64: ((int64_t *)buffer)[i] = (int64_t)value; break;
    case DTYPE_BF16:
    case DTYPE_F16: half_from_floats((uint16_t *)buffer + i, &single, dtype, 1); break;
    case DTYPE_INT8_BLOCK: int8_from_floats((Int8Block *)buffer + i, sixteen, INT8_BLOCK); break;
    }
}

double load_value(const void *buffer, DType dtype, size_t i)
{
    float single = 0, sixteen[INT8_BLOCK];
    switch (dtype) {
    case DTYPE_F32: return (double)((const float *)buffer)[i];
    case DTYPE_F64: return ((const double *)buffer)[i];
    case DTYPE_I32: return (double)((const int32_t *)buffer)[i];
    case DTYPE_I64: return (double)((const int64_t *)buffer)[i];
    case DTYPE_BF16:
    case DTYPE_F16: half_to_floats(&single, (const uint16_t *)buffer + i, dtype, 1); break;
    case DTYPE_INT8_BLOCK:
        int8_to_floats(sixteen, (const Int8Block *)buffer + i, INT8_BLOCK);
        single = sixteen[INT8_BLOCK - 1];
        break;
    }
    return (double)single;
}

double unit_roundoff(DType dtype)
{
    switch (dtype) {
    case DTYPE_F32: return FLT_EPSILON / 2;
    case DTYPE_F64: return DBL_EPSILON / 2;
    case DTYPE_BF16: return ldexp(1, -8);
    case DTYPE_F16: return ldexp(1, -11);
    case DTYPE_INT8_BLOCK: return FLT_EPSILON; /* where all numbers of a block are equal: the scale's, and the product's */
    case DTYPE_I32:
    case DTYPE_I64: break;
    }
    return 0;
}
