/* fused_ops.h: two operations in one, with fewer passes over memory. They give the same bits as the two if the kernels
 * add in the same order (tests/common/test_fusions.c). Results belong to the tape and are rounded to tape->precision:
 * only op_linear() can read them. Inputs of wrong shapes are faults. */
#ifndef LOCKSTEP_GPU_FUSED_OPS_H
#define LOCKSTEP_GPU_FUSED_OPS_H

#include "autograd/ops.h"

/* op_gelu(op_linear(x, weight, bias)), shapes as in ops.h; bias must not be NULL. */
Tensor *op_linear_gelu(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias);
/* *sum = op_add(a, b), in float32; returns op_layernorm(*sum, weight, bias). */
Tensor *op_add_layernorm(Tape *tape, Tensor *a, Tensor *b, Tensor *weight, Tensor *bias, Tensor **sum);

#endif
