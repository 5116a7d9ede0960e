/* device_fused.h: two kernels in one, with fewer passes over memory. Their results are rounded when they are stored
 * (device_store_rounded()). gpu/fused_ops.c calls them. notes/cuda.md counts what they save. */
#ifndef LOCKSTEP_GPU_DEVICE_FUSED_H
#define LOCKSTEP_GPU_DEVICE_FUSED_H

#include "device/device.h"

/* ---- linear and gelu in one: out = gelu(x weight^T + bias), rounded; x and weight as for device_linear_forward() ----
 * saved (rows, n_out): forward keeps gelu's input there, with or without the bias. Backward sets dlinear to the rounded
 * gradient of gelu's input: pass it to device_linear_backward() as dout. */
void device_linear_gelu_forward(void *out, float *saved, const void *x, const void *weight, const float *bias,
                                int64_t rows, int64_t n_in, int64_t n_out, DType precision);
void device_linear_gelu_backward(void *dlinear, const float *dout, const float *saved, const float *bias, int64_t rows,
                                 int64_t n_out, DType precision);

/* The residual connection and the layernorm after it in one: sum = a + b (rows, n), out = layernorm(sum), rounded. */
void device_add_layernorm_forward(void *out, float *sum, float *mean, float *rstd, const float *a, const float *b,
                                  const float *weight, const float *bias, int64_t rows, int64_t n, DType precision);

#endif
