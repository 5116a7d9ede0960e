/* device_fused.h: kernels that do the work of two with fewer passes over memory, and whose results are rounded as they
 * are stored (device_store_rounded()). gpu/fused_ops.c calls them. notes/cuda.md counts what they save. */
#ifndef LOCKSTEP_GPU_DEVICE_FUSED_H
#define LOCKSTEP_GPU_DEVICE_FUSED_H

#include "device/device.h"

/* ---- linear and gelu in one: out = gelu(x weight^T + bias), rounded; x and weight as for device_linear_forward() ----
 * saved (rows, n_out): what forward keeps for backward; whether the bias is in it is the device's choice. Backward sets
 * dlinear, rounded, to the gradient of what gelu is applied to: it is device_linear_backward()'s dout. */
void device_linear_gelu_forward(void *out, float *saved, const void *x, const void *weight, const float *bias,
                                int64_t rows, int64_t n_in, int64_t n_out, DType precision);
void device_linear_gelu_backward(void *dlinear, const float *dout, const float *saved, const float *bias, int64_t rows,
                                 int64_t n_out, DType precision);

/* The residual connection and the layernorm after it in one: sum = a + b, out = layernorm(sum), rounded. */
void device_add_layernorm_forward(void *out, float *sum, float *mean, float *rstd, const float *a, const float *b,
                                  const float *weight, const float *bias, int64_t rows, int64_t n, DType precision);

#endif
