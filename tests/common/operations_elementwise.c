/* operations_elementwise.c: rows of the table: operations on single numbers. */
#include "autograd/ops.h"
#include "base/rng.h"
#include "operation_check.h"

static int64_t n_of(const Case *c)
{
    return c->dim[0];
}

static double exactly(const Case *c)
{
    return 0;
}

static void describe_unary(Case *c)
{
    add_array(c, "x", ARRAY_INPUT, n_of(c), -1, -1);
    add_array(c, "out", ARRAY_OUTPUT, n_of(c), -1, -1);
}

static void describe_binary(Case *c)
{
    add_array(c, "a", ARRAY_INPUT, n_of(c), -1, -1);
    add_array(c, "b", ARRAY_INPUT, n_of(c), -1, -1);
    add_array(c, "out", ARRAY_OUTPUT, n_of(c), -1, -1);
}

/* ---- add: out = a + b ---- */

static void add_forward(const Case *c, void **a)
{
    device_add(a[2], a[0], a[1], n_of(c));
}

static void add_backward(const Case *c, void **a, const Gradient *d, const float *dout)
{
    for (int k = 0; k < 2; k++)
        if (d[k].values != NULL)
            device_contribute(d[k], dout, n_of(c));
}

static Tensor *add_record(const Case *c, Tape *tape, Tensor **tensor, void **a)
{
    return op_add(tape, tensor[0], tensor[1]);
}

static void add_reference(const Case *c, double **a)
{
    for (int64_t i = 0; i < n_of(c); i++)
        a[2][i] = a[0][i] + a[1][i];
}

/* ---- a contribution as it is: the backward pass of a copy ---- */

static void copy_forward(const Case *c, void **a)
{
    device_copy(a[1], a[0], (size_t)n_of(c) * sizeof(float));
}

static void contribute(const Case *c, void **a, const Gradient *d, const float *dout)
{
    if (d[0].values != NULL)
        device_contribute(d[0], dout, n_of(c));
}

static void copy_reference(const Case *c, double **a)
{
    memcpy(a[1], a[0], (size_t)n_of(c) * sizeof(double));
}

/* ---- relu ---- */

static void describe_relu(Case *c)
{
    describe_unary(c);
    for (int64_t i = 0; i < n_of(c); i++) /* it has no derivative at 0: keep away from it */
        c->array[0].start[i] += c->array[0].start[i] > 0 ? 1e-3f : -1e-3f;
}

static void relu_forward(const Case *c, void **a)
{
    device_relu_forward(a[1], a[0], n_of(c));
}

static void relu_backward(const Case *c, void **a, const Gradient *d, const float *dout)
{
    if (d[0].values != NULL)
        device_relu_backward(d[0], a[0], dout, n_of(c));
}

static Tensor *relu_record(const Case *c, Tape *tape, Tensor **tensor, void **a)
{
    return op_relu(tape, tensor[0]);
}

static void relu_reference(const Case *c, double **a)
{
    for (int64_t i = 0; i < n_of(c); i++)
        a[1][i] = a[0][i] < 0 ? 0 : a[0][i];
}

/* At 0 and -0 ReLU passes no gradient, as in PyTorch: dead units do not change. */
static void zero_reference(const Case *c, double **a)
{
    memset(a[1], 0, (size_t)n_of(c) * sizeof(double));
}

/* ---- gelu, in the tanh form ---- */

static void gelu_forward(const Case *c, void **a)
{
    device_gelu_forward(a[1], a[0], n_of(c));
}

static void gelu_backward(const Case *c, void **a, const Gradient *d, const float *dout)
{
    if (d[0].values != NULL)
        device_gelu_backward(d[0], a[0], dout, n_of(c));
}

static Tensor *gelu_record(const Case *c, Tape *tape, Tensor **tensor, void **a)
{
    return op_gelu(tape, tensor[0]);
}

static void gelu_reference(const Case *c, double **a)
{
    for (int64_t i = 0; i < n_of(c); i++) {
        const double x = a[0][i];
        a[1][i] = 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    }
}

static double gelu_roundings(const Case *c)
{
    return 16;
}

/* ---- in place: x += y, x *= factor (a constant, or one number on the device), x = value ---- */

static void describe_in_place(Case *c)
{
    add_array(c, "y", ARRAY_FIXED, n_of(c) + 1, -1, -1);
    add_array(c, "x", ARRAY_IN_PLACE, n_of(c), -1, -1);
    c->out = 1;
}

static void accumulate_forward(const Case *c, void **a)
{
    device_accumulate(a[1], a[0], n_of(c));
}

static void accumulate_reference(const Case *c, double **a)
{
    for (int64_t i = 0; i < n_of(c); i++)
        a[1][i] = (double)((float)a[1][i] + (float)a[0][i]);
}

static void scale_forward(const Case *c, void **a)
{
    device_scale(a[1], 0.7f, n_of(c));
}

static void scale_reference(const Case *c, double **a)
{
    for (int64_t i = 0; i < n_of(c); i++)
        a[1][i] = (double)((float)a[1][i] * 0.7f);
}

static void scale_by_forward(const Case *c, void **a)
{
    device_scale_by(a[1], a[0], n_of(c));
}

static void scale_by_reference(const Case *c, double **a)
{
    for (int64_t i = 0; i < n_of(c); i++)
        a[1][i] = (double)((float)a[1][i] * (float)a[0][0]);
}

static void fill_forward(const Case *c, void **a)
{
    device_fill(a[1], 0.7f, n_of(c));
}

static void fill_reference(const Case *c, double **a)
{
    for (int64_t i = 0; i < n_of(c); i++)
        a[1][i] = (double)0.7f;
}

/* ---- round: to the nearest number of the precision (all hard numbers: test_device_half.c) ---- */

static void describe_round(Case *c)
{
    add_array(c, "x", ARRAY_FIXED, n_of(c), -1, -1);
    add_array(c, "out", ARRAY_OUTPUT, n_of(c), -1, -1);
}

static void round_forward(const Case *c, void **a)
{
    device_round(a[1], a[0], c->precision, n_of(c));
}

static void round_reference(const Case *c, double **a)
{
    for (int64_t i = 0; i < n_of(c); i++)
        a[1][i] = nearest_in(c->precision, a[0][i]);
}

/* ---- dropout (samples, elements): element i of a sample has number i % 4 of block i / 4 ---- */

static const int64_t some_places[] = {3, 0, 1000000000, 4, 5, 6, 7, 8};
static const DropoutMask some_mask = {.probability = 0.3f, .seed = 0x123456789abcdef0, .step = 70000,
                                      .places = some_places};

static void describe_dropout(Case *c)
{
    add_array(c, "x", ARRAY_INPUT, c->dim[0], c->dim[1], -1);
    add_array(c, "out", ARRAY_OUTPUT, c->dim[0], c->dim[1], -1);
}

static void dropout_forward(const Case *c, void **a)
{
    device_dropout((Gradient){.values = a[1]}, a[0], &some_mask, c->dim[0], c->dim[1]);
}

static void dropout_backward(const Case *c, void **a, const Gradient *d, const float *dout)
{
    if (d[0].values != NULL)
        device_dropout(d[0], dout, &some_mask, c->dim[0], c->dim[1]);
}

static Tensor *dropout_record(const Case *c, Tape *tape, Tensor **tensor, void **a)
{
    tape->dropout = some_mask; /* the tape's count of layers starts again: a second use has the same mask */
    return op_dropout(tape, tensor[0]);
}

static void dropout_reference(const Case *c, double **a)
{
    const int64_t elements = c->dim[1];
    for (int64_t i = 0; i < c->dim[0] * elements; i++) {
        uint32_t numbers[4];
        const uint32_t counter[4] = {(uint32_t)(i % elements / 4), 0, (uint32_t)some_places[i / elements], 70000};
        rng_philox(some_mask.seed, counter, numbers);
        const bool dropped = numbers[i % elements % 4] / 0x1p32 < (double)some_mask.probability;
        a[1][i] = dropped ? 0 * a[0][i] : a[0][i] / (1 - (double)some_mask.probability);
    }
}

/* ---- the rows ---- */

static const int64_t many[][CHECKED_DIMS] = {{70001}, {-1}};

const Operation elementwise_operations[] = {
    {.name = "add", .largest = {1025}, .shapes = many, .scale = 1, .element_wise = true, .keeps_nan = true,
     .describe = describe_binary, .forward = add_forward, .backward = add_backward, .record = add_record,
     .reference = add_reference, .hint = "both inputs get the whole gradient"},
    {.name = "contribute", .largest = {5003}, .shapes = many, .scale = 1, .element_wise = true, .has_precisions = true,
     .stores_16_bits = true, .describe = describe_unary, .forward = copy_forward, .backward = contribute,
     .reference = copy_reference, .hint = "the contribution is x"},
    {.name = "relu", .largest = {1025}, .shapes = many, .scale = 1, .element_wise = true, .keeps_nan = true,
     .describe = describe_relu, .forward = relu_forward, .backward = relu_backward, .record = relu_record,
     .reference = relu_reference, .hint = "the gradient passes where x > 0; max(x, 0) by fmaxf drops NaN"},
    {.name = "relu of zeros", .largest = {65}, .element_wise = true, .describe = describe_unary,
     .forward = relu_forward, .backward = relu_backward, .record = relu_record, .reference = zero_reference,
     .hint = "x > 0, not x >= 0"},
    {.name = "gelu", .largest = {1025}, .shapes = many, .scale = 1, .element_wise = true, .keeps_nan = true,
     .describe = describe_unary, .forward = gelu_forward, .backward = gelu_backward, .record = gelu_record,
     .reference = gelu_reference, .roundings = gelu_roundings,
     .hint = "GPT-2's GELU is the tanh form; its derivative has two terms"},
    {.name = "gelu of large numbers", .largest = {257}, .scale = 100, .element_wise = true, .describe = describe_unary,
     .forward = gelu_forward, .backward = gelu_backward, .reference = gelu_reference, .roundings = gelu_roundings,
     .hint = "for large numbers tanh is 1 or -1: an exp() that overflows turns it into NaN"},
    {.name = "accumulate", .largest = {1025}, .shapes = many, .scale = 1, .describe = describe_in_place,
     .forward = accumulate_forward, .reference = accumulate_reference, .roundings = exactly, .hint = "out += x"},
    {.name = "scale", .largest = {1025}, .shapes = many, .scale = 1, .describe = describe_in_place,
     .forward = scale_forward, .reference = scale_reference, .roundings = exactly, .hint = "x *= factor"},
    {.name = "scale by", .largest = {1025}, .shapes = many, .scale = 1, .describe = describe_in_place,
     .forward = scale_by_forward, .reference = scale_by_reference, .roundings = exactly,
     .hint = "x *= factor, which lies on the device"},
    {.name = "scale by 1", .largest = {257}, .offset = 1, .describe = describe_in_place, .forward = scale_by_forward,
     .reference = scale_by_reference, .roundings = exactly, .hint = "a factor of 1 changes nothing"},
    {.name = "fill", .largest = {1025}, .shapes = many, .scale = 1, .describe = describe_in_place,
     .forward = fill_forward, .reference = fill_reference, .roundings = exactly, .hint = "x = value"},
    {.name = "round", .largest = {1025}, .shapes = many, .scale = 1, .has_precisions = true, .keeps_nan = true,
     .describe = describe_round, .forward = round_forward, .reference = round_reference, .roundings = exactly,
     .hint = "to nearest, ties to even; under float32 nothing is rounded"},
    {.name = "dropout", .largest = {8, 129}, .scale = 1, .element_wise = true, .cpu_only = true, .keeps_nan = true,
     .describe = describe_dropout, .forward = dropout_forward, .backward = dropout_backward, .record = dropout_record,
     .reference = dropout_reference, .hint = "is the mask of backward the one of forward, and scaled by 1 / (1 - P)?"},
    {0},
};
