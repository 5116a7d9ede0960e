/* ops.c: each operation's forward pass and, right below it, its backward pass. */
#include "autograd/ops.h"

#include <string.h>

#include "autograd/rounding.h"
#include "base/check.h"
#include "device/device.h"

static bool any_requires_grad(const Tensor *a, const Tensor *b, const Tensor *c)
{
    return a->requires_grad || (b != NULL && b->requires_grad) || (c != NULL && c->requires_grad);
}

static Tensor *same_shape(Tape *tape, const Tensor *x, bool requires_grad)
{
    return tape_tensor(tape, x->ndim, x->shape, requires_grad);
}

/* Returns x's float32 data. Faults if x has another dtype, which only op_linear() can read. */
static const float *floats_of(const Tensor *x, const char *operation)
{
    CHECK(x->dtype == DTYPE_F32, "%s reads float32, not %s, which only linear reads", operation, dtype_name(x->dtype));
    return x->data;
}

/* ---- linear: out = x weight^T + bias ----
 * saved[0]: x as an operand (rounding.h). Backward asks for the weight's operand again, because stage 5 may have moved
 * it. */

/* note: contribution
 * The kernel writes this use's contributions to the gradients of x, weight and bias, into the memory that
 * tape_gradient() returns. The memory of the weight's gradient belongs to the stage: from stage 2 on it is a slice of a
 * bucket. */
static void linear_backward(Tape *tape, Node *node)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    const void *dout = rounded_gradient(tape, node->output);
    const void *w_operand = NULL; /* only dx needs it */
    if (x->requires_grad) {
        tape_needs(tape, weight, NULL, NULL);
        w_operand = rounded_operand(tape, weight);
    }
    const Gradient dx = tape_gradient(tape, x), dweight = tape_gradient(tape, weight);
    const Gradient dbias = tape_gradient(tape, bias);
    device_linear_backward(dx, dweight, dbias, dout, node->saved[0], w_operand, tensor_rows(x), tensor_last(x),
                           weight->shape[0], tape->precision);
}

Tensor *op_linear(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias)
{
    int64_t n_in = tensor_last(x), n_out = weight->shape[0], shape[TENSOR_MAX_DIMS];
    CHECK(weight->ndim == 2 && weight->shape[1] == n_in, "linear: the input has %lld columns, the weight takes %lld",
          (long long)n_in, (long long)weight->shape[1]);
    CHECK(bias == NULL || tensor_count(bias) == n_out, "linear: the bias must have %lld elements", (long long)n_out);
    for (int i = 0; i < x->ndim; i++)
        shape[i] = i + 1 < x->ndim ? x->shape[i] : n_out;
    Tensor *out = tape_tensor(tape, x->ndim, shape, any_requires_grad(x, weight, bias));
    tape_needs(tape, x, weight, bias);
    const void *x_operand = rounded_operand(tape, x), *w_operand = rounded_operand(tape, weight);
    device_linear_forward(out->data, x_operand, w_operand, bias != NULL ? bias->data : NULL, tensor_rows(x), n_in,
                          n_out, tape->precision);
    Node *node = tape_record(tape, "linear", linear_backward, out, x, weight, bias);
    if (node != NULL)
        node->saved[0] = x_operand;
    return out;
}

/* ---- relu: out = max(x, 0) ---- */

static void relu_backward(Tape *tape, Node *node)
{
    Tensor *x = node->inputs[0];
    device_relu_backward(tape_gradient(tape, x), x->data, node->output->grad, tensor_count(x));
}

Tensor *op_relu(Tape *tape, Tensor *x)
{
    Tensor *out = same_shape(tape, x, x->requires_grad);
    device_relu_forward(out->data, floats_of(x, "relu"), tensor_count(x));
    tape_record(tape, "relu", relu_backward, out, x, NULL, NULL);
    return out;
}

/* ---- gelu: out = gelu(x) ---- */

static void gelu_backward(Tape *tape, Node *node)
{
    Tensor *x = node->inputs[0];
    device_gelu_backward(tape_gradient(tape, x), x->data, node->output->grad, tensor_count(x));
}

Tensor *op_gelu(Tape *tape, Tensor *x)
{
    Tensor *out = same_shape(tape, x, x->requires_grad);
    device_gelu_forward(out->data, floats_of(x, "gelu"), tensor_count(x));
    tape_record(tape, "gelu", gelu_backward, out, x, NULL, NULL);
    return out;
}

/* ---- add: out = a + b ---- */

/* note: moved-gradient
 * forward: out = a + b, so da = dout and db = dout. All operations that read out are later on the tape, so their
 * backward functions have run, and this is the last read of dout. So if it is a's first contribution, a takes over
 * dout's memory instead of copying it, unless a outlives that memory. */
static void add_backward(Tape *tape, Node *node)
{
    Tensor *a = node->inputs[0], *b = node->inputs[1], *out = node->output;
    if (b->requires_grad)
        device_contribute(tape_gradient(tape, b), out->grad, tensor_count(out));
    if (a->requires_grad && a->grad == NULL && a->parameter == NULL && (a->in_block || !out->grad_in_block)) {
        a->grad = out->grad;
        a->grad_in_block = out->grad_in_block;
    } else if (a->requires_grad)
        device_contribute(tape_gradient(tape, a), out->grad, tensor_count(out));
}

static void check_same_shape(const Tensor *a, const Tensor *b)
{
    char shape_a[80], shape_b[80];
    tensor_describe(a, shape_a, sizeof shape_a);
    tensor_describe(b, shape_b, sizeof shape_b);
    CHECK(strcmp(shape_a, shape_b) == 0, "add: %s and %s differ", shape_a, shape_b);
}

Tensor *op_add(Tape *tape, Tensor *a, Tensor *b)
{
    check_same_shape(a, b);
    Tensor *out = same_shape(tape, a, any_requires_grad(a, b, NULL));
    device_add(out->data, floats_of(a, "add"), floats_of(b, "add"), tensor_count(a));
    tape_record(tape, "add", add_backward, out, a, b, NULL);
    return out;
}

/* ---- dropout: out = x * mask / (1 - probability); backward recomputes the mask ---- */

static void drop(Gradient to, const float *x, const Tape *tape, uint32_t layer, const Tensor *shape)
{
    DropoutMask mask = tape->dropout;
    mask.layer = layer;
    const int64_t samples = shape->shape[0];
    device_dropout(to, x, &mask, samples, samples > 0 ? tensor_count(shape) / samples : 0);
}

static void dropout_backward(Tape *tape, Node *node)
{
    drop(tape_gradient(tape, node->inputs[0]), node->output->grad, tape, node->layer, node->output);
}

Tensor *op_dropout(Tape *tape, Tensor *x)
{
    if (!tape->recording || tape->dropout.probability <= 0)
        return x;
    CHECK(tape->dropout.places != NULL, "dropout: tape->dropout.places is NULL: set it before forward");
    Tensor *out = same_shape(tape, x, x->requires_grad);
    drop((Gradient){.values = out->data}, floats_of(x, "dropout"), tape, tape->dropout.layer, x);
    Node *node = tape_record(tape, "dropout", dropout_backward, out, x, NULL, NULL);
    if (node != NULL)
        node->layer = tape->dropout.layer;
    tape->dropout.layer++;
    return out;
}

/* ---- layernorm: out = (x - mean) * rstd * weight + bias, per row ----
 * saved[0]: mean (rows), saved[1]: rstd (rows). */

static void layernorm_backward(Tape *tape, Node *node)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    tape_needs(tape, weight, NULL, NULL);
    const Gradient dx = tape_gradient(tape, x), dweight = tape_gradient(tape, weight);
    const Gradient dbias = tape_gradient(tape, bias);
    device_layernorm_backward(dx, dweight, dbias, node->output->grad, x->data, node->saved[0], node->saved[1],
                              weight->data, tensor_rows(x), tensor_last(x));
}

Tensor *op_layernorm(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias)
{
    int64_t rows = tensor_rows(x), n = tensor_last(x);
    CHECK(tensor_count(weight) == n && tensor_count(bias) == n, "layernorm: weight and bias must have %lld elements",
          (long long)n);
    Tensor *out = same_shape(tape, x, any_requires_grad(x, weight, bias));
    float *mean = tape_floats(tape, rows), *rstd = tape_floats(tape, rows);
    tape_needs(tape, x, weight, bias);
    device_layernorm_forward(out->data, mean, rstd, floats_of(x, "layernorm"), weight->data, bias->data, rows, n);
    Node *node = tape_record(tape, "layernorm", layernorm_backward, out, x, weight, bias);
    if (node != NULL) {
        node->saved[0] = mean;
        node->saved[1] = rstd;
    }
    return out;
}

/* ---- embedding: out[b][t] = token_table[tokens[b][t]] + position_table[t] ---- */

/* Rows of tokens that do not occur get no contribution. So if the table is not a parameter, its gradient is zeroed
 * here. */
static float *table_gradient(Tape *tape, Tensor *table)
{
    const Gradient gradient = tape_gradient(tape, table);
    if (gradient.values != NULL && !gradient.add)
        device_zero(gradient.values, (size_t)tensor_count(table) * sizeof(float));
    return gradient.values;
}

static void embedding_backward(Tape *tape, Node *node)
{
    const Tensor *out = node->output;
    float *dtokens = table_gradient(tape, node->inputs[0]), *dpositions = table_gradient(tape, node->inputs[1]);
    device_embedding_backward(dtokens, dpositions, out->grad, node->indices, out->shape[0], out->shape[1],
                              out->shape[2]);
}

Tensor *op_embedding(Tape *tape, const int32_t *tokens, int64_t B, int64_t T, Tensor *token_table,
                     Tensor *position_table)
{
    int64_t C = tensor_last(token_table);
    CHECK(tensor_last(position_table) == C, "embedding: the two tables have %lld and %lld columns", (long long)C,
          (long long)tensor_last(position_table));
    CHECK(T <= position_table->shape[0], "embedding: %lld positions, but the table has only %lld", (long long)T,
          (long long)position_table->shape[0]);
    Tensor *out = tape_tensor(tape, 3, (int64_t[]){B, T, C}, any_requires_grad(token_table, position_table, NULL));
    tape_needs(tape, token_table, position_table, NULL);
    device_embedding_forward(out->data, tokens, token_table->data, position_table->data, B, T, C);
    Node *node = tape_record(tape, "embedding", embedding_backward, out, token_table, position_table, NULL);
    if (node != NULL)
        node->indices = tokens;
    return out;
}

/* ---- causal self-attention: out = softmax(q k^T / sqrt(head width)) v ----
 * saved[0]: what the device's forward kernel keeps (CPU: the probabilities). */

static void attention_backward(Tape *tape, Node *node)
{
    Tensor *qkv = node->inputs[0];
    int64_t B = qkv->shape[0], T = qkv->shape[1], C = qkv->shape[2] / 3;
    float *scratch = tape_floats(tape, device_attention_scratch(B, T, C, node->heads));
    const Gradient dqkv = tape_gradient(tape, qkv);
    device_attention_backward(dqkv, scratch, node->output->grad, qkv->data, node->output->data, node->saved[0], B, T, C,
                              node->heads, tape->precision);
}

Tensor *op_attention(Tape *tape, Tensor *qkv, int heads)
{
    CHECK(qkv->ndim == 3 && qkv->shape[2] % (3 * heads) == 0,
          "attention: rows of %lld numbers are not query, key and value of %d heads", (long long)tensor_last(qkv),
          heads);
    int64_t B = qkv->shape[0], T = qkv->shape[1], C = qkv->shape[2] / 3;
    Tensor *out = tape_rounded_tensor(tape, 3, (int64_t[]){B, T, C}, qkv->requires_grad);
    float *saved = tape_floats(tape, device_attention_saved(B, T, C, heads));
    device_attention_forward(out->data, saved, floats_of(qkv, "attention"), B, T, C, heads, tape->precision);
    Node *node = tape_record(tape, "attention", attention_backward, out, qkv, NULL, NULL);
    if (node != NULL) {
        node->saved[0] = saved;
        node->heads = heads;
    }
    return out;
}

/* ---- cross-entropy: loss = sum over rows of -log softmax(logits)[target]; a masked row (target -1) adds 0 ----
 * saved[0]: each row's largest logit, saved[1]: its sum of exp(logit - largest). */

static void cross_entropy_backward(Tape *tape, Node *node)
{
    Tensor *logits = node->inputs[0];
    const Gradient dlogits = tape_gradient(tape, logits);
    device_cross_entropy_backward(dlogits, node->output->grad, logits->data, node->saved[0], node->saved[1],
                                  node->indices, tensor_rows(logits), tensor_last(logits));
}

/* note: sum-not-mean
 * The loss is a sum over rows. A mean would divide by this rank's number of rows, and a mean of such means is not the
 * mean over the global batch if ranks have unequal shares. */
Tensor *op_cross_entropy(Tape *tape, Tensor *logits, const int32_t *targets)
{
    Tensor *loss = tape_tensor(tape, 1, (int64_t[]){1}, logits->requires_grad);
    int64_t rows = tensor_rows(logits);
    float *row_max = tape_floats(tape, rows), *row_sum = tape_floats(tape, rows);
    device_cross_entropy_forward(loss->data, row_max, row_sum, floats_of(logits, "cross-entropy"), targets, rows,
                                 tensor_last(logits));
    Node *node = tape_record(tape, "cross-entropy", cross_entropy_backward, loss, logits, NULL, NULL);
    if (node != NULL) {
        node->saved[0] = row_max;
        node->saved[1] = row_sum;
        node->indices = targets;
    }
    return loss;
}

/* ---- mean squared error, summed over rows: saved[0] is the target (not owned) ---- */

static void mse_backward(Tape *tape, Node *node)
{
    Tensor *prediction = node->inputs[0];
    device_mse_backward(tape_gradient(tape, prediction), node->output->grad, prediction->data, node->saved[0],
                        tensor_rows(prediction), tensor_last(prediction));
}

Tensor *op_mse(Tape *tape, Tensor *prediction, const float *target)
{
    Tensor *loss = tape_tensor(tape, 1, (int64_t[]){1}, prediction->requires_grad);
    device_mse_forward(loss->data, floats_of(prediction, "mse"), target, tensor_rows(prediction),
                       tensor_last(prediction));
    Node *node = tape_record(tape, "mse", mse_backward, loss, prediction, NULL, NULL);
    if (node != NULL)
        node->saved[0] = target;
    return loss;
}
