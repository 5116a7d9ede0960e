/* ops.h: the operations that a model is built from. Each computes its result at once and records its backward function.
 *
 * Shapes: B batch, T time (context), C channels (width), V vocabulary. "rows" is the product of all leading dimensions.
 * Results belong to the tape. Inputs of wrong shapes are faults. A batch of zero rows is allowed everywhere: it
 * contributes nothing, and all events are raised as usual.
 */
#ifndef LOCKSTEP_AUTOGRAD_OPS_H
#define LOCKSTEP_AUTOGRAD_OPS_H

#include "autograd/tape.h"

/* x (rows, in) -> (rows, out) = x weight^T + bias. weight (out, in) as in torch.nn.Linear; bias (out) or NULL.
 * Under tape->precision bf16 or f16, both operands are rounded first: rounding.h. */
Tensor *op_linear(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias);

Tensor *op_relu(Tape *tape, Tensor *x);             /* max(x, 0) */
Tensor *op_gelu(Tape *tape, Tensor *x);             /* GPT-2's tanh form (Hendrycks and Gimpel, 2016) */
Tensor *op_add(Tape *tape, Tensor *a, Tensor *b);   /* same shapes: the residual connection */

/* x (samples, ...) -> the same shape: drops elements by tape->dropout (device.h), and divides the others by
 * 1 - probability. Returns x itself if nothing is to be dropped, or if the tape does not record (evaluation).
 * Source: Srivastava et al., 2014. */
Tensor *op_dropout(Tape *tape, Tensor *x);

/* x (rows, C) -> (rows, C): normalizes each row, with eps 1e-5 and the biased variance, as torch.nn.LayerNorm.
 * weight (C), bias (C). Source: Ba et al., 2016. */
Tensor *op_layernorm(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias);

/* tokens (B, T) int32 -> (B, T, C) = token_table[token] + position_table[t]. token_table (V, C),
 * position_table (at least T, C). Tokens must be in [0, V) (the data set guarantees it) and stay valid until backward
 * has run. */
Tensor *op_embedding(Tape *tape, const int32_t *tokens, int64_t B, int64_t T, Tensor *token_table,
                     Tensor *position_table);

/* qkv (B, T, 3C) -> (B, T, C): causal self-attention with `heads` heads of width C / heads. Each row holds query, key
 * and value side by side, as in GPT-2. Under tape->precision bf16 or f16, the operands of its products are rounded, and
 * so is the result: only op_linear() can read it. Source: Vaswani et al., 2017. */
Tensor *op_attention(Tape *tape, Tensor *qkv, int heads);

/* logits (rows, V), targets (rows) int32 in [0, V) -> one element: the SUM over rows of -log softmax[target].
 * A sum, not a mean: ddp.c divides once, by the global number of samples. targets must stay valid until backward. */
Tensor *op_cross_entropy(Tape *tape, Tensor *logits, const int32_t *targets);

/* prediction (rows, out), target (rows, out) float -> one element: the SUM over rows of the mean over `out` of the
 * squared difference. Divided by rows it is torch.nn.MSELoss. target must stay valid until backward. */
Tensor *op_mse(Tape *tape, Tensor *prediction, const float *target);

#endif
