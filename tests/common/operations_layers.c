/* operations_layers.c: rows of the table: linear, norms, embedding. */
#include "autograd/batch_norm.h"
#include "autograd/ops.h"
#include "operation_check.h"

/* ---- linear: rows, n_in, n_out. x, weight and dout are rounded, and nothing else is: sums are float32 ---- */

static void describe_linear(Case *c)
{
    add_array(c, "x", ARRAY_ROUNDED, c->dim[0], c->dim[1], -1);
    add_array(c, "weight", ARRAY_ROUNDED, c->dim[2], c->dim[1], -1);
    if (c->operation->extra != NULL) /* with bias */
        add_array(c, "bias", ARRAY_INPUT, c->dim[2], -1, -1);
    add_array(c, "out", ARRAY_OUTPUT, c->dim[0], c->dim[2], -1);
}

static void linear_forward(const Case *c, void **a)
{
    void *x = operand_of(a[0], c->precision, c->array[0].count);
    void *weight = operand_of(a[1], c->precision, c->array[1].count);
    device_linear_forward(a[c->out], x, weight, c->operation->extra != NULL ? a[2] : NULL, c->dim[0], c->dim[1],
                          c->dim[2], c->precision);
    device_free(x);
    device_free(weight);
}

static void linear_backward(const Case *c, void **a, const Gradient *d, const float *dout)
{
    void *x = operand_of(a[0], c->precision, c->array[0].count);
    void *weight = operand_of(a[1], c->precision, c->array[1].count);
    void *operand = operand_of(dout, c->precision, c->array[c->out].count);
    device_linear_backward(d[0], d[1], c->operation->extra != NULL ? d[2] : (Gradient){0}, operand, x, weight,
                           c->dim[0], c->dim[1], c->dim[2], c->precision);
    device_free(x);
    device_free(weight);
    device_free(operand);
}

static Tensor *linear_record(const Case *c, Tape *tape, Tensor **tensor, void **a)
{
    return op_linear(tape, tensor[0], tensor[1], c->operation->extra != NULL ? tensor[2] : NULL);
}

static void linear_reference(const Case *c, double **a)
{
    const int64_t rows = c->dim[0], n_in = c->dim[1], n_out = c->dim[2];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < n_out; o++) {
            double sum = c->operation->extra != NULL ? a[2][o] : 0;
            for (int64_t i = 0; i < n_in; i++)
                sum += a[0][r * n_in + i] * a[1][o * n_in + i];
            a[c->out][r * n_out + o] = sum;
        }
}

/* The number of terms is no bound to speak of: most errors cancel. */
static double linear_roundings(const Case *c)
{
    const int64_t n = c->dim[0] > c->dim[1] ? c->dim[0] : c->dim[1];
    return 8 + 2 * sqrt((double)(n > c->dim[2] ? n : c->dim[2]));
}

/* ---- norms: out = (x - mean) / sqrt(variance + eps) * weight + bias, over `count` numbers, `step` apart ---- */

static void describe_norm(Case *c)
{
    add_array(c, "x", ARRAY_INPUT, c->dim[0], c->dim[1], -1);
    add_array(c, "weight", ARRAY_INPUT, c->dim[1], -1, -1);
    add_array(c, "bias", ARRAY_INPUT, c->dim[1], -1, -1);
    add_array(c, "out", ARRAY_OUTPUT, c->dim[0], c->dim[1], -1);
}

static void describe_layernorm(Case *c)
{
    describe_norm(c);
    add_array(c, "mean", ARRAY_OUTPUT, c->dim[0], -1, -1);
    add_array(c, "rstd", ARRAY_OUTPUT, c->dim[0], -1, -1);
}

static void layernorm_forward(const Case *c, void **a)
{
    device_layernorm_forward(a[3], a[4], a[5], a[0], a[1], a[2], c->dim[0], c->dim[1]);
}

static void layernorm_backward(const Case *c, void **a, const Gradient *d, const float *dout)
{
    device_layernorm_backward(d[0], d[1], d[2], dout, a[0], a[4], a[5], a[1], c->dim[0], c->dim[1]);
}

static Tensor *layernorm_record(const Case *c, Tape *tape, Tensor **tensor, void **a)
{
    return op_layernorm(tape, tensor[0], tensor[1], tensor[2]);
}

static void normalize(double *out, double *mean, double *rstd, const double *x, int64_t count, int64_t step)
{
    double variance = 0;
    *mean = 0;
    for (int64_t i = 0; i < count; i++)
        *mean += x[i * step] / (double)count;
    for (int64_t i = 0; i < count; i++)
        variance += (x[i * step] - *mean) * (x[i * step] - *mean) / (double)count;
    *rstd = 1 / sqrt(variance + (double)1e-5f);
    for (int64_t i = 0; i < count; i++)
        out[i * step] = (x[i * step] - *mean) * *rstd;
}

static void scale_and_shift(const Case *c, double **a)
{
    for (int64_t i = 0; i < c->dim[0] * c->dim[1]; i++)
        a[3][i] = a[3][i] * a[1][i % c->dim[1]] + a[2][i % c->dim[1]];
}

static void layernorm_reference(const Case *c, double **a)
{
    const int64_t n = c->dim[1];
    for (int64_t r = 0; r < c->dim[0]; r++)
        normalize(a[3] + r * n, a[4] + r, a[5] + r, a[0] + r * n, n, 1);
    scale_and_shift(c, a);
}

static double norm_roundings(const Case *c)
{
    const float scale = c->operation->scale, offset = c->operation->offset;
    return 20 + sqrt((double)(c->dim[0] + c->dim[1])) + (scale != 0 ? 4 * fabs((double)(offset / scale)) : 0);
}

static Tensor *batch_norm_record(const Case *c, Tape *tape, Tensor **tensor, void **a)
{
    static ParameterList parameters; /* the running statistics, which no result here depends on */
    parameters_free(&parameters);
    const BatchNorm norm = batch_norm_create(&parameters, "bn", c->dim[1]);
    return op_batch_norm(tape, tensor[0], tensor[1], tensor[2], &norm.running, NULL);
}

static void batch_norm_reference(const Case *c, double **a)
{
    double mean, rstd;
    for (int64_t column = 0; column < c->dim[1]; column++)
        normalize(a[3] + column, &mean, &rstd, a[0] + column, c->dim[0], c->dim[1]);
    scale_and_shift(c, a);
}

/* ---- embedding: B, T, C, V: out = token_table[token] + position_table[t] ---- */

static void describe_embedding(Case *c)
{
    const int64_t places = c->dim[0] * c->dim[1];
    add_array(c, "token_table", ARRAY_INPUT, c->dim[3], c->dim[2], -1);
    add_array(c, "position_table", ARRAY_INPUT, c->dim[1] + 2, c->dim[2], -1);
    float *tokens = add_array(c, "tokens", ARRAY_INDICES, places, -1, -1);
    if (places > 0)
        memcpy(tokens, indices_below((int32_t)c->dim[3], places), (size_t)places * sizeof(int32_t));
    add_array(c, "out", ARRAY_OUTPUT, c->dim[0], c->dim[1], c->dim[2]);
}

static void embedding_forward(const Case *c, void **a)
{
    device_embedding_forward(a[3], a[2], a[0], a[1], c->dim[0], c->dim[1], c->dim[2]);
}

/* The kernel adds only: most rows of a table get no contribution. */
static void embedding_backward(const Case *c, void **a, const Gradient *d, const float *dout)
{
    for (int k = 0; k < 2; k++)
        if (d[k].values != NULL && !d[k].add)
            device_zero(d[k].values, (size_t)c->array[k].count * sizeof(float));
    device_embedding_backward(d[0].values, d[1].values, dout, a[2], c->dim[0], c->dim[1], c->dim[2]);
}

static Tensor *embedding_record(const Case *c, Tape *tape, Tensor **tensor, void **a)
{
    return op_embedding(tape, a[2], c->dim[0], c->dim[1], tensor[0], tensor[1]);
}

static void embedding_reference(const Case *c, double **a)
{
    const int32_t *tokens = (const int32_t *)(const void *)c->array[2].start;
    const int64_t T = c->dim[1], C = c->dim[2];
    for (int64_t i = 0; i < c->dim[0] * T; i++)
        for (int64_t k = 0; k < C; k++)
            a[3][i * C + k] = a[0][tokens[i] * C + k] + a[1][i % T * C + k];
}

static double embedding_roundings(const Case *c)
{
    return 2 + 2 * sqrt((double)(c->dim[0] * c->dim[1]));
}

/* ---- one tensor is several inputs of one operation: its first contribution is set, the others are added ---- */

static void describe_square(Case *c)
{
    add_array(c, "x", ARRAY_INPUT, c->dim[0], c->dim[1], -1);
    add_array(c, "out", ARRAY_OUTPUT, c->dim[0], c->dim[0], -1);
}

static Tensor *square_record(const Case *c, Tape *tape, Tensor **tensor, void **a)
{
    return op_linear(tape, tensor[0], tensor[0], NULL);
}

static void square_reference(const Case *c, double **a)
{
    const int64_t rows = c->dim[0], n = c->dim[1];
    for (int64_t i = 0; i < rows * rows; i++) {
        a[1][i] = 0;
        for (int64_t k = 0; k < n; k++)
            a[1][i] += a[0][i / rows * n + k] * a[0][i % rows * n + k];
    }
}

static void describe_vector(Case *c)
{
    add_array(c, "x", ARRAY_INPUT, 1, c->dim[0], -1);
    add_array(c, "out", ARRAY_OUTPUT, 1, c->dim[0], -1);
}

static Tensor *own_layernorm_record(const Case *c, Tape *tape, Tensor **tensor, void **a)
{
    return op_layernorm(tape, tensor[0], tensor[0], tensor[0]);
}

static void own_layernorm_reference(const Case *c, double **a)
{
    double mean, rstd;
    normalize(a[1], &mean, &rstd, a[0], c->dim[0], 1);
    for (int64_t i = 0; i < c->dim[0]; i++)
        a[1][i] = a[1][i] * a[0][i] + a[0][i];
}

static double several_roundings(const Case *c)
{
    return 80;
}

/* ---- the rows ---- */

static const int64_t products[][CHECKED_DIMS] = {{129, 64, 65}, {257, 20, 1}, {33, 1, 257}, {300, 7, 40}, {-1}};
static const int64_t long_rows[][CHECKED_DIMS] = {{2, 4097}, {257, 31}, {5, 1000}, {1, 33}, {-1}};
static const int64_t texts[][CHECKED_DIMS] = {{4, 65, 20, 2}, {1, 257, 257, 300}, {40, 3, 33, 50}, {-1}};

const Operation layer_operations[] = {
    {.name = "linear", .largest = {65, 65, 65}, .shapes = products, .scale = 1, .has_precisions = true,
     .extra = &layer_operations, .describe = describe_linear, .forward = linear_forward, .backward = linear_backward,
     .record = linear_record, .reference = linear_reference, .roundings = linear_roundings,
     .hint = "is a matrix transposed? x, weight and dout are rounded, and nothing else is: sums are float32, not TF32"},
    {.name = "linear without bias", .largest = {33, 65, 33}, .scale = 1, .has_precisions = true,
     .describe = describe_linear, .forward = linear_forward, .backward = linear_backward, .record = linear_record,
     .reference = linear_reference, .roundings = linear_roundings, .hint = "is a matrix transposed?"},
    {.name = "layernorm", .largest = {65, 257}, .smallest = 5, .never_empty = 2, .shapes = long_rows, .scale = 1,
     .offset = 0.5f, .keeps_nan = true, .describe = describe_layernorm, .forward = layernorm_forward,
     .backward = layernorm_backward, .record = layernorm_record, .reference = layernorm_reference,
     .roundings = norm_roundings,
     .hint = "mean and variance depend on x, too; dweight and dbias are sums over all rows; eps is 1e-5"},
    {.name = "layernorm far from 0", .largest = {33, 257}, .smallest = 15, .never_empty = 2, .scale = 1,
     .offset = 1000, .describe = describe_layernorm, .forward = layernorm_forward, .backward = layernorm_backward,
     .reference = layernorm_reference, .roundings = norm_roundings,
     .hint = "take the variance from x - mean, never from the mean of x^2"},
    {.name = "layernorm of equal numbers", .largest = {33, 65}, .smallest = 5, .never_empty = 2, .offset = 3,
     .describe = describe_layernorm, .forward = layernorm_forward, .reference = layernorm_reference,
     .roundings = norm_roundings, .hint = "eps alone keeps 1 / sqrt(variance + eps) finite"},
    {.name = "batch norm", .largest = {65, 33}, .smallest = 5, .scale = 1, .cpu_only = true, .describe = describe_norm,
     .record = batch_norm_record, .reference = batch_norm_reference, .roundings = norm_roundings,
     .hint = "mean and variance are over a column, and depend on x, too"},
    {.name = "batch norm far from 0", .largest = {65, 33}, .smallest = 15, .scale = 1, .offset = 1000, .cpu_only = true,
     .describe = describe_norm, .record = batch_norm_record, .reference = batch_norm_reference,
     .roundings = norm_roundings, .hint = "take the variance from x - mean, never from the mean of x^2"},
    {.name = "embedding", .largest = {8, 33, 33, 65}, .never_empty = 8, .shapes = texts, .scale = 1,
     .describe = describe_embedding, .forward = embedding_forward, .backward = embedding_backward,
     .record = embedding_record, .reference = embedding_reference, .roundings = embedding_roundings,
     .hint = "a token that occurs many times gets the sum of all its gradients; one that does not keeps what it had"},
    {.name = "x x^T", .largest = {17, 33}, .scale = 1, .describe = describe_square, .record = square_record,
     .reference = square_reference, .roundings = several_roundings,
     .hint = "contributions must be written in the order in which tape_gradient() was called for them"},
    {.name = "layernorm of x by x", .largest = {65}, .smallest = 5, .never_empty = 1, .scale = 1,
     .describe = describe_vector, .record = own_layernorm_record, .reference = own_layernorm_reference,
     .roundings = several_roundings,
     .hint = "contributions must be written in the order in which tape_gradient() was called for them"},
    {0},
};
