/* ops.h: the operations that a model is built from. Each computes its result at once and records how to go back.
 *
 * Shapes: B batch, T time (context), C channels (width), V vocabulary. "rows" stands for any leading
 * dimensions taken together. Results belong to the tape. Shapes that do not fit are faults.
 * A batch of zero rows is allowed everywhere: it contributes nothing, and all events are raised as usual.
 *
 * Under tape->precision bf16 or f16, results marked "an operand" are rounded to it, and stored as matrix products read
 * them (tape_operand()): only op_linear() and op_linear_gelu() take them, any other operation faults. All other results
 * are float32.
 */
#ifndef LOCKSTEP_AUTOGRAD_OPS_H
#define LOCKSTEP_AUTOGRAD_OPS_H

#include "autograd/tape.h"

/* x (rows, in) -> (rows, out) = x weight^T + bias. weight (out, in) as in torch.nn.Linear; bias (out) or NULL.
 * Under tape->precision bf16 or f16, x, weight and the incoming gradient are rounded to it before they are
 * multiplied; products are summed in float32. */
Tensor *op_linear(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias);

/* op_gelu(op_linear(...)) with fewer passes over memory; to the bit the same on the CPU, but an operand. bias is not
 * NULL. */
Tensor *op_linear_gelu(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias);

Tensor *op_relu(Tape *tape, Tensor *x);             /* max(x, 0) */
Tensor *op_gelu(Tape *tape, Tensor *x);             /* GPT-2's tanh form (Hendrycks and Gimpel, 2016) */
Tensor *op_add(Tape *tape, Tensor *a, Tensor *b);   /* same shapes: the residual connection */

/* Over the last dimension, eps 1e-5, biased variance, as torch.nn.LayerNorm. weight (C), bias (C). An operand. */
Tensor *op_layernorm(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias);
/* op_layernorm() of *sum = op_add(a, b), in one pass over memory. The bits are the same; *sum is float32. */
Tensor *op_add_layernorm(Tape *tape, Tensor *a, Tensor *b, Tensor *weight, Tensor *bias, Tensor **sum);

/* tokens (B, T) int32 -> (B, T, C) = token_table[token] + position_table[t]. token_table (V, C),
 * position_table (at least T, C). Tokens must be in [0, V): the data set guarantees it. */
Tensor *op_embedding(Tape *tape, const int32_t *tokens, int64_t B, int64_t T, Tensor *token_table,
                     Tensor *position_table);

/* qkv (B, T, 3C) -> (B, T, C): causal self-attention with `heads` heads of width C / heads; query, key and value
 * lie side by side in each row, as GPT-2 has them. An operand. */
Tensor *op_attention(Tape *tape, Tensor *qkv, int heads);

/* logits (rows, V), targets (rows) int32 in [0, V) -> one element: the SUM over rows of -log softmax[target].
 * A sum, not a mean: the division by the global number of samples happens once, in ddp.c. */
Tensor *op_cross_entropy(Tape *tape, Tensor *logits, const int32_t *targets);

/* prediction (rows, out), target (rows, out) float -> one element: the SUM over rows of the mean over `out` of the
 * squared difference. Divided by rows it is torch.nn.MSELoss. */
Tensor *op_mse(Tape *tape, Tensor *prediction, const float *target);

#endif
