/* operations_losses.c: rows of the table: losses, accuracy, attention, and sums whose gradients change places. */
#include "autograd/ops.h"
#include "operation_check.h"

/* ---- cross-entropy (rows, V): the SUM over rows of -log p[target]; a masked row (target -1) adds nothing ---- */

static const int32_t *indices_of(const Case *c, int k)
{
    return (const int32_t *)(const void *)c->array[k].start;
}

static int32_t *add_targets(Case *c, int64_t rows, int64_t V)
{
    void *targets = add_array(c, "targets", ARRAY_INDICES, rows, -1, -1);
    if (rows > 0)
        memcpy(targets, indices_below((int32_t)V, rows), (size_t)rows * sizeof(int32_t));
    return targets;
}

static void describe_cross_entropy(Case *c)
{
    add_array(c, "logits", ARRAY_INPUT, c->dim[0], c->dim[1], -1);
    int32_t *targets = add_targets(c, c->dim[0], c->dim[1]);
    for (int64_t row = 1; row < c->dim[0]; row += 3)
        targets[row] = -1;
    add_array(c, "loss", ARRAY_OUTPUT, 1, -1, -1);
    add_array(c, "row_max", ARRAY_OUTPUT, c->dim[0], -1, -1);
    add_array(c, "row_sum", ARRAY_OUTPUT, c->dim[0], -1, -1);
}

static void cross_entropy_forward(const Case *c, void **a)
{
    device_cross_entropy_forward(a[2], a[3], a[4], a[0], a[1], c->dim[0], c->dim[1]);
}

static void cross_entropy_backward(const Case *c, void **a, const Gradient *d, const float *dloss)
{
    if (d[0].values != NULL)
        device_cross_entropy_backward(d[0], dloss, a[0], a[3], a[4], a[1], c->dim[0], c->dim[1]);
}

static Tensor *cross_entropy_record(const Case *c, Tape *tape, Tensor **tensor, void **a)
{
    return op_cross_entropy(tape, tensor[0], a[1]);
}

static void cross_entropy_reference(const Case *c, double **a)
{
    const int64_t rows = c->dim[0], V = c->dim[1];
    *a[2] = 0;
    for (int64_t row = 0; row < rows; row++) {
        const double *x = a[0] + row * V;
        double largest = x[0], sum = 0;
        for (int64_t i = 1; i < V; i++)
            largest = x[i] > largest ? x[i] : largest;
        for (int64_t i = 0; i < V; i++)
            sum += exp(x[i] - largest);
        a[3][row] = largest;
        a[4][row] = sum;
        if (indices_of(c, 1)[row] >= 0)
            *a[2] += log(sum) - (x[indices_of(c, 1)[row]] - largest);
    }
}

/* The difference from the largest logit is off by U of the logits, and exp() by as much. */
static double cross_entropy_roundings(const Case *c)
{
    const double size = (double)c->operation->scale + fabs((double)c->operation->offset);
    return 20 + 4 * size + sqrt((double)(c->dim[0] * c->dim[1]));
}

/* ---- mean squared error (rows, n): the SUM over rows of the MEAN over a row ---- */

static void describe_mse(Case *c)
{
    add_array(c, "prediction", ARRAY_INPUT, c->dim[0], c->dim[1], -1);
    add_array(c, "target", ARRAY_FIXED, c->dim[0], c->dim[1], -1);
    add_array(c, "loss", ARRAY_OUTPUT, 1, -1, -1);
}

static void mse_forward(const Case *c, void **a)
{
    device_mse_forward(a[2], a[0], a[1], c->dim[0], c->dim[1]);
}

static void mse_backward(const Case *c, void **a, const Gradient *d, const float *dloss)
{
    if (d[0].values != NULL)
        device_mse_backward(d[0], dloss, a[0], a[1], c->dim[0], c->dim[1]);
}

static Tensor *mse_record(const Case *c, Tape *tape, Tensor **tensor, void **a)
{
    return op_mse(tape, tensor[0], a[1]);
}

static void mse_reference(const Case *c, double **a)
{
    *a[2] = 0;
    for (int64_t i = 0; i < c->dim[0] * c->dim[1]; i++)
        *a[2] += (a[0][i] - a[1][i]) * (a[0][i] - a[1][i]) / (double)c->dim[1];
}

static double mse_roundings(const Case *c)
{
    return 6 + sqrt((double)(c->dim[0] * c->dim[1]));
}

/* ---- accuracy (rows, V): of equal logits the first counts, and a row with a NaN is wrong ---- */

static void describe_accuracy(Case *c)
{
    const int64_t V = c->dim[1];
    float *logits = add_array(c, "logits", ARRAY_FIXED, c->dim[0], V, -1);
    const int32_t *targets = add_targets(c, c->dim[0], V);
    add_array(c, "correct", ARRAY_OUTPUT, 1, -1, -1);
    for (int64_t i = 0; i < c->dim[0] * V; i++)
        logits[i] = roundf(logits[i]); /* many are equal */
    for (int64_t row = 0; row < c->dim[0]; row++) {
        logits[row * V + targets[row]] += row % 2 ? 0 : row % 4 ? 5 : 2; /* half would be right, but for ties and NaN */
        if (row % 3 == 0 && c->seed % 2 == 0)
            logits[row * V + (row % 2 ? targets[row] : row % V)] = NAN;
    }
}

static void count_correct(const Case *c, void **a)
{
    const float correct = (float)device_count_correct(a[0], a[1], c->dim[0], c->dim[1]);
    device_from_host(a[2], &correct, sizeof correct);
}

static void accuracy_reference(const Case *c, double **a)
{
    *a[2] = 0;
    for (int64_t row = 0; row < c->dim[0]; row++) {
        const double *x = a[0] + row * c->dim[1];
        int64_t answer = 0;
        bool has_nan = false;
        for (int64_t i = 0; i < c->dim[1]; i++) {
            answer = x[i] > x[answer] ? i : answer;
            has_nan |= isnan(x[i]);
        }
        *a[2] += !has_nan && answer == indices_of(c, 1)[row];
    }
}

static double exactly(const Case *c)
{
    return 0;
}

/* ---- attention: B, T, heads, width. qkv (B, T, 3C): query, key and value side by side, heads side by side ---- */

static void describe_attention(Case *c)
{
    const int64_t B = c->dim[0], T = c->dim[1], C = c->dim[2] * c->dim[3];
    add_array(c, "qkv", ARRAY_ROUNDED, B, T, 3 * C);
    add_array(c, "out", ARRAY_OUTPUT, B, T, C);
    add_array(c, "device_attention_saved()", ARRAY_WORK, device_attention_saved(B, T, C, (int)c->dim[2]), -1, -1);
    add_array(c, "device_attention_scratch()", ARRAY_WORK, device_attention_scratch(B, T, C, (int)c->dim[2]), -1, -1);
}

static void attention_forward(const Case *c, void **a)
{
    const int64_t B = c->dim[0], T = c->dim[1], C = c->dim[2] * c->dim[3];
    void *out = device_alloc(device_rounded_bytes(c->precision, B * T * C));
    device_attention_forward(out, a[2], a[0], B, T, C, (int)c->dim[2], c->precision);
    numbers_of(a[1], out, c->precision, B * T * C);
    device_free(out);
}

static void attention_backward(const Case *c, void **a, const Gradient *d, const float *dout)
{
    const int64_t B = c->dim[0], T = c->dim[1], C = c->dim[2] * c->dim[3];
    void *out = operand_of(a[1], c->precision, B * T * C);
    if (d[0].values != NULL)
        device_attention_backward(d[0], a[3], dout, a[0], out, a[2], B, T, C, (int)c->dim[2], c->precision);
    device_free(out);
}

static Tensor *attention_record(const Case *c, Tape *tape, Tensor **tensor, void **a)
{
    return op_attention(tape, tensor[0], (int)c->dim[2]);
}

/* One head of one sample. q, k and v are the first row's; the next row lies 3C further. out: rows of C. */
static void attend(double *out, const double *q, const double *k, const double *v, int64_t T, int64_t C, int64_t width)
{
    double weight[T > 0 ? T : 1];
    for (int64_t t = 0; t < T; t++) {
        double total = 0, largest = -INFINITY;
        for (int64_t past = 0; past <= t; past++) {
            weight[past] = 0;
            for (int64_t i = 0; i < width; i++)
                weight[past] += q[t * 3 * C + i] * k[past * 3 * C + i] / sqrt((double)width);
            largest = weight[past] > largest ? weight[past] : largest;
        }
        for (int64_t past = 0; past <= t; past++)
            total += weight[past] = exp(weight[past] - largest);
        for (int64_t i = 0; i < width; i++) {
            out[t * C + i] = 0;
            for (int64_t past = 0; past <= t; past++)
                out[t * C + i] += weight[past] / total * v[past * 3 * C + i];
        }
    }
}

static void attention_reference(const Case *c, double **a)
{
    const int64_t T = c->dim[1], heads = c->dim[2], width = c->dim[3], C = heads * width;
    for (int64_t b = 0; b < c->dim[0]; b++)
        for (int64_t head = 0; head < heads; head++) {
            const double *q = a[0] + b * T * 3 * C + head * width;
            attend(a[1] + b * T * C + head * width, q, q + C, q + 2 * C, T, C, width);
        }
}

/* Scores are off by U of their size, which is about scale^2, and exp() by as much. */
static double attention_roundings(const Case *c)
{
    const double scale = (double)c->operation->scale;
    return 20 + sqrt((double)(c->dim[3] + c->dim[1])) + 8 * scale * scale;
}

/* ---- one tensor added to itself, sums of sums, and a sum with other uses: no operation may write to a gradient that
 * another one still reads (note: moved-gradient) ---- */

static void describe_sums(Case *c)
{
    add_array(c, "x", ARRAY_INPUT, c->dim[0], -1, -1);
    add_array(c, "y", ARRAY_INPUT, c->dim[0], -1, -1);
    add_array(c, "out", ARRAY_OUTPUT, c->dim[0], -1, -1);
    for (int64_t i = 0; i < c->dim[0]; i++) /* the sum 2x + y is not near relu's kink */
        c->array[1].start[i] = copysignf(fabsf(c->array[1].start[i]) + 1e-2f, c->array[0].start[i]);
}

static Tensor *sums_record(const Case *c, Tape *tape, Tensor **tensor, void **a)
{
    Tensor *x = tensor[0], *y = tensor[1], *sum = op_add(tape, op_add(tape, x, x), y);
    Tensor *positive = op_relu(tape, sum);
    return op_add(tape, op_add(tape, sum, positive), op_add(tape, y, sum));
}

static void sums_reference(const Case *c, double **a)
{
    for (int64_t i = 0; i < c->dim[0]; i++) {
        const double x = a[0][i], y = a[1][i], sum = x + x + y, positive = sum > 0 ? sum : 0;
        a[2][i] = (sum + positive) + (y + sum);
    }
}

static double sums_roundings(const Case *c)
{
    return 10;
}

/* ---- the rows ---- */

static const int64_t wide[][CHECKED_DIMS] = {{2, 5003}, {7, 10001}, {257, 10}, {-1}};
static const int64_t many_rows[][CHECKED_DIMS] = {{2100, 10}, {40, 1025}, {-1}};
/* CUDA takes 16, 32 or 64 rows at a time, and pads heads to 64 or 128: just below, at, and just above each of them. */
static const int64_t tiles[][CHECKED_DIMS] = {{1, 15, 2, 64}, {1, 16, 1, 80},  {1, 130, 1, 8}, {1, 63, 1, 40},
                                              {1, 65, 1, 64}, {1, 64, 2, 16}, {1, 17, 1, 128}, {-1}};
static const int64_t long_text[][CHECKED_DIMS] = {{1, 70, 2, 20}, {-1}};

const Operation loss_operations[] = {
    {.name = "cross-entropy", .largest = {65, 257}, .never_empty = 2, .shapes = wide, .scale = 1, .offset = 3,
     .keeps_nan = true, .has_precisions = true, .stores_16_bits = true, .describe = describe_cross_entropy,
     .forward = cross_entropy_forward,
     .backward = cross_entropy_backward, .record = cross_entropy_record, .reference = cross_entropy_reference,
     .roundings = cross_entropy_roundings,
     .hint = "a SUM over rows, set; log(sum(exp(x))) needs the row's maximum taken off; a masked row adds nothing"},
    {.name = "cross-entropy of large logits", .largest = {33, 65}, .never_empty = 2, .scale = 3000, .offset = 3,
     .describe = describe_cross_entropy, .forward = cross_entropy_forward, .backward = cross_entropy_backward,
     .record = cross_entropy_record, .reference = cross_entropy_reference, .roundings = cross_entropy_roundings,
     .hint = "exp() of thousands is infinite; probabilities of 0 are right"},
    {.name = "mse", .largest = {65, 257}, .shapes = wide, .scale = 1, .keeps_nan = true, .describe = describe_mse,
     .forward = mse_forward, .backward = mse_backward, .record = mse_record, .reference = mse_reference,
     .roundings = mse_roundings, .hint = "a SUM over rows of the MEAN over a row; the derivative has a factor 2"},
    {.name = "count correct", .largest = {129, 257}, .never_empty = 2, .shapes = many_rows, .scale = 1,
     .describe = describe_accuracy, .forward = count_correct, .reference = accuracy_reference, .roundings = exactly,
     .hint = "of equal logits the first counts, and a row with a NaN is wrong"},
    {.name = "attention", .largest = {2, 33, 2, 33}, .never_empty = 12, .shapes = tiles, .scale = 1,
     .has_precisions = true, .units = 2, .stores_16_bits = true, .keeps_nan = true, .describe = describe_attention,
     .forward = attention_forward, .backward = attention_backward, .record = attention_record,
     .reference = attention_reference, .roundings = attention_roundings,
     .hint = "row t sees keys 0 to t, scores are divided by sqrt(width), heads lie side by side; ds = p (dp - D)"},
    {.name = "attention of one row", .largest = {3, 1, 3, 33}, .never_empty = 12, .scale = 1, .has_precisions = true,
     .describe = describe_attention, .forward = attention_forward, .backward = attention_backward,
     .reference = attention_reference, .roundings = attention_roundings,
     .hint = "p is 1, so out is v and dv is dout, both rounded, and nothing else"},
    {.name = "attention with large scores", .largest = {2, 17, 2, 33}, .never_empty = 12, .shapes = long_text,
     .scale = 5, .describe = describe_attention, .forward = attention_forward, .backward = attention_backward,
     .record = attention_record, .reference = attention_reference, .roundings = attention_roundings,
     .hint = "exp() overflows, unless the row's maximum is taken off first"},
    {.name = "sums of sums", .largest = {257}, .scale = 1, .element_wise = true, .describe = describe_sums,
     .record = sums_record, .reference = sums_reference, .roundings = sums_roundings,
     .hint = "a gradient's memory was handed on while another operation still needed it"},
    {0},
};
