/* dtype_values.h: buffers of any dtype, element by element, for tests. */
#ifndef LOCKSTEP_TESTS_DTYPE_VALUES_H
#define LOCKSTEP_TESTS_DTYPE_VALUES_H

#include "base/dtype.h"

/* Element i of a buffer on the host. What is stored is rounded to the dtype. */
void store_value(void *buffer, DType dtype, size_t i, double value);
double load_value(const void *buffer, DType dtype, size_t i);

/* Half a unit in the last place, relative to the value; 0 for integers. */
double unit_roundoff(DType dtype);

#endif
