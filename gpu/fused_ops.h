/* fused_ops.h: operations that do the work of two with fewer passes over memory. To the bit they are what the two give
 * where the kernels add in the same order (tests/common/test_fusions.c). Their results are rounded to tape->precision,
 * because linear layers read them; no other operation can. */
#ifndef LOCKSTEP_GPU_FUSED_OPS_H
#define LOCKSTEP_GPU_FUSED_OPS_H

#include "autograd/ops.h"

/* op_gelu(op_linear(...)); bias is not NULL. */
Tensor *op_linear_gelu(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias);
/* op_layernorm() of *sum = op_add(a, b); *sum is float32. */
Tensor *op_add_layernorm(Tape *tape, Tensor *a, Tensor *b, Tensor *weight, Tensor *bias, Tensor **sum);

#endif
