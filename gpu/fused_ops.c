/* fused_ops.c: two operations in one. Shapes are checked as in the plain operations. */
#include "gpu/fused_ops.h"

#include <string.h>

#include "autograd/rounding.h"
#include "base/check.h"
#include "gpu/device_fused.h"

static bool need_gradient(const Tensor *a, const Tensor *b, const Tensor *c)
{
    return a->requires_grad || b->requires_grad || c->requires_grad;
}

static const float *floats_of(const Tensor *x, const char *operation)
{
    CHECK(x->dtype == DTYPE_F32, "%s reads float32, not %s", operation, dtype_name(x->dtype));
    return x->data;
}

/* ---- linear and gelu: out = gelu(x weight^T + bias) ----
 * saved[0]: x as an operand, saved[1]: what the device's forward kernel keeps. */

static void linear_gelu_backward(Tape *tape, Node *node)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2], *out = node->output;
    tape_needs(tape, weight, bias, NULL);
    const void *w_operand = rounded_operand(tape, weight);
    void *dlinear = arena_alloc(&tape->arena, device_rounded_bytes(tape->precision, tensor_count(out)));
    device_linear_gelu_backward(dlinear, out->grad, node->saved[1], bias->data, tensor_rows(out), tensor_last(out),
                                tape->precision);
    const Gradient dx = tape_gradient(tape, x), dweight = tape_gradient(tape, weight);
    const Gradient dbias = tape_gradient(tape, bias);
    device_linear_backward(dx, dweight, dbias, dlinear, node->saved[0], w_operand, tensor_rows(x), tensor_last(x),
                           weight->shape[0], tape->precision);
}

Tensor *op_linear_gelu(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias)
{
    int64_t n_in = tensor_last(x), n_out = weight->shape[0], shape[TENSOR_MAX_DIMS];
    CHECK(weight->ndim == 2 && weight->shape[1] == n_in && tensor_count(bias) == n_out,
          "linear-gelu: x has %lld columns, weight and bias do not fit", (long long)n_in);
    memcpy(shape, x->shape, sizeof shape);
    shape[x->ndim - 1] = n_out;
    Tensor *out = tape_rounded_tensor(tape, x->ndim, shape, need_gradient(x, weight, bias));
    float *saved = tape_floats(tape, tensor_count(out));
    tape_needs(tape, x, weight, bias);
    const void *x_operand = rounded_operand(tape, x), *w_operand = rounded_operand(tape, weight);
    device_linear_gelu_forward(out->data, saved, x_operand, w_operand, bias->data, tensor_rows(x), n_in, n_out,
                               tape->precision);
    Node *node = tape_record(tape, "linear-gelu", linear_gelu_backward, out, x, weight, bias);
    if (node != NULL) {
        node->saved[0] = x_operand;
        node->saved[1] = saved;
    }
    return out;
}

/* ---- add and layernorm: one kernel, but recorded on the tape as two operations ---- */

Tensor *op_add_layernorm(Tape *tape, Tensor *a, Tensor *b, Tensor *weight, Tensor *bias, Tensor **sum)
{
    int64_t rows = tensor_rows(a), n = tensor_last(a);
    CHECK(tensor_rows(b) == rows && tensor_last(b) == n && tensor_count(weight) == n && tensor_count(bias) == n,
          "add-layernorm: the shapes do not fit rows of %lld", (long long)n);
    *sum = tape_tensor(tape, a->ndim, a->shape, a->requires_grad || b->requires_grad);
    Tensor *out = tape_rounded_tensor(tape, a->ndim, a->shape, need_gradient(*sum, weight, bias));
    float *mean = tape_floats(tape, rows), *rstd = tape_floats(tape, rows);
    tape_needs(tape, weight, bias, NULL);
    device_add_layernorm_forward(out->data, (*sum)->data, mean, rstd, floats_of(a, "add"), floats_of(b, "add"),
                                 weight->data, bias->data, rows, n, tape->precision);
    tape_record(tape, "add", add_backward, *sum, a, b, NULL);
    Node *node = tape_record(tape, "layernorm", layernorm_backward, out, *sum, weight, bias);
    if (node != NULL) {
        node->saved[0] = mean;
        node->saved[1] = rstd;
    }
    return out;
}
