/* device_cpu_attention.c: causal self-attention on the CPU.
 *
 * For each sequence and each head, with q, k, v (T, head width) cut out of qkv:
 *     scores (T, T) = q k^T / sqrt(head width)
 *     p             = softmax of each row over the positions up to its own; 0 after it
 *     out           = p v
 * Rows are computed in blocks. The rows of a block need no columns beyond the block's last row, which saves about half
 * of the products. p is saved for backward, as (B, heads, T, T). Source: Vaswani et al., 2017.
 *
 * Under bf16 or f16 the operands of each product are rounded first (emulated: a float holds the rounded value); sums
 * and the softmax stay in float32. out is rounded too, because it is an operand of the next layer.
 */
#include "device/device.h"
#include "device/device_cpu_math.h"

enum { BLOCK_ROWS = 64 };

/* The operands of one head, T rows each; `stride` numbers from one row to the next. */
typedef struct Head {
    const float *q, *k, *v;
    int64_t stride;
    int64_t width;
} Head;

/* Floats for rounded copies: q, k, v, dout of one head (in forward: out, not yet rounded), and the probabilities of one
 * block. */
static int64_t rounded_size(int64_t T, int64_t C, int heads)
{
    return 4 * T * (C / heads) + BLOCK_ROWS * T;
}

int64_t device_attention_saved(int64_t B, int64_t T, int64_t C, int heads)
{
    return B * heads * T * T + rounded_size(T, C, heads); /* probabilities, then the forward's work space */
}

int64_t device_attention_scratch(int64_t B, int64_t T, int64_t C, int heads)
{
    (void)B; /* all heads of all sequences use the same scratch, one after the other */
    return BLOCK_ROWS * T + rounded_size(T, C, heads); /* the gradient of one block of p, and work space */
}

/* Writes the rounded numbers of `from` (rows, width) to `to` (rows, width), and returns `to`. Under float32 there is
 * nothing to round, and it returns `from`. */
static const float *round_rows(float *to, int64_t to_stride, const float *from, int64_t from_stride, int64_t rows,
                               int64_t width, DType precision)
{
    if (precision == DTYPE_F32)
        return from;
    for (int64_t row = 0; row < rows; row++)
        device_round(to + row * to_stride, from + row * from_stride, precision, width);
    return to;
}

/* q, k and v of head h: views into one sequence's qkv (T, 3C), or rounded copies in `workspace`. */
static Head head_of(float *workspace, const float *qkv, int64_t T, int64_t C, int heads, int h, DType precision)
{
    const int64_t width = C / heads;
    const float *q = qkv + h * width; /* each row: q of all heads, k of all heads, v of all heads */
    if (precision == DTYPE_F32)
        return (Head){.q = q, .k = q + C, .v = q + 2 * C, .stride = 3 * C, .width = width};
    return (Head){.q = round_rows(workspace, width, q, 3 * C, T, width, precision),
                  .k = round_rows(workspace + T * width, width, q + C, 3 * C, T, width, precision),
                  .v = round_rows(workspace + 2 * T * width, width, q + 2 * C, 3 * C, T, width, precision),
                  .stride = width, .width = width};
}

/* Turns row t (T numbers) from scores into probabilities. Only its first t + 1 scores are set. */
static void causal_softmax_row(float *row, int64_t t, int64_t T)
{
    const int64_t seen = t + 1;
    const float largest = max_of(row, seen); /* subtracted, so that exp cannot overflow */
#pragma omp simd
    for (int64_t i = 0; i < seen; i++)
        row[i] = exp_of(row[i] - largest);
    device_scale(row, 1 / sum_of(row, seen), seen);
    memset(row + seen, 0, (size_t)(T - seen) * sizeof *row);
}

/* out (T, width; stride out_stride) of one head; fills p (T, T). */
static void head_forward(float *out, int64_t out_stride, float *p, float *rounded_p, const Head *head, int64_t T,
                         DType precision)
{
    const float scale = 1 / sqrtf((float)head->width);
    for (int64_t first = 0; first < T; first += BLOCK_ROWS) {
        const int64_t end = first + BLOCK_ROWS < T ? first + BLOCK_ROWS : T; /* also the number of columns needed */
        const int64_t rows = end - first;
        float *block = p + first * T;
        matmul(block, T, scale, head->q + first * head->stride, head->stride, CblasNoTrans, head->k, head->stride,
               CblasTrans, 0, rows, end, head->width);
        for (int64_t t = first; t < end; t++)
            causal_softmax_row(p + t * T, t, T);
        const float *factor = round_rows(rounded_p, T, block, T, rows, end, precision);
        matmul(out + first * out_stride, out_stride, 1, factor, T, CblasNoTrans, head->v, head->stride, CblasNoTrans, 0,
               rows, head->width, end);
    }
}

void device_attention_forward(void *out, float *saved, const float *qkv, int64_t B, int64_t T, int64_t C, int heads,
                              DType precision)
{
    const int64_t width = C / heads;
    float *workspace = saved + B * heads * T * T;
    float *head_out = workspace + 3 * T * width, *rounded_p = head_out + T * width;
    for (int64_t b = 0; b < B; b++)
        for (int h = 0; h < heads; h++) {
            const Head head = head_of(workspace, qkv + b * T * 3 * C, T, C, heads, h, precision);
            float *p = saved + (b * heads + h) * T * T;
            const int64_t first = b * T * C + h * width; /* where the head's first row begins in out */
            if (precision == DTYPE_F32) {
                head_forward((float *)out + first, C, p, rounded_p, &head, T, precision);
                continue;
            }
            head_forward(head_out, width, p, rounded_p, &head, T, precision);
            for (int64_t t = 0; t < T; t++)
                device_store_rounded((char *)out + device_rounded_bytes(precision, first + t * C),
                                     head_out + t * width, precision, width);
        }
}

/* Turns the gradient of row t of p into the gradient of its scores, in place (dp). */
static void causal_softmax_row_backward(float *dp, const float *p, int64_t t, int64_t end)
{
    const int64_t seen = t + 1;
    const float mean_dp = dot_of(p, dp, seen); /* weighted by p */
#pragma omp simd
    for (int64_t i = 0; i < seen; i++) {
        /* forward: p[i] = exp(score[i]) / (sum of exp(score)); mean_dp: each score also changes the sum */
        dp[i] = p[i] * (dp[i] - mean_dp);
    }
    memset(dp + seen, 0, (size_t)(end - seen) * sizeof *dp);
}

/* Adds to dq, dk, dv (each T rows with stride 3C) of one head. dp: room for one block (BLOCK_ROWS, T). */
static void head_backward(float *dq, float *dk, float *dv, float *dp, float *rounded_p, const float *dout,
                          int64_t dout_stride, const float *p, const Head *head, int64_t T, int64_t C,
                          DType precision)
{
    const int64_t width = head->width, stride = head->stride;
    const float scale = 1 / sqrtf((float)width);
    for (int64_t first = 0; first < T; first += BLOCK_ROWS) {
        const int64_t end = first + BLOCK_ROWS < T ? first + BLOCK_ROWS : T;
        const int64_t rows = end - first;
        const float *dout_block = dout + first * dout_stride, *q_block = head->q + first * stride;
        const float *factor = round_rows(rounded_p, T, p + first * T, T, rows, end, precision);

        /* forward: out = p v, so dp = dout v^T and dv = p^T dout */
        matmul(dp, T, 1, dout_block, dout_stride, CblasNoTrans, head->v, stride, CblasTrans, 0, rows, end, width);
        matmul(dv, 3 * C, 1, factor, T, CblasTrans, dout_block, dout_stride, CblasNoTrans, 1, end, width, rows);
        for (int64_t t = first; t < end; t++)
            causal_softmax_row_backward(dp + (t - first) * T, p + t * T, t, end);
        const float *dscores = round_rows(dp, T, dp, T, rows, end, precision);
        /* forward: scores = q k^T * scale, so dq = dscores k * scale and dk = dscores^T q * scale */
        matmul(dq + first * 3 * C, 3 * C, scale, dscores, T, CblasNoTrans, head->k, stride, CblasNoTrans, 1, rows,
               width, end);
        matmul(dk, 3 * C, scale, dscores, T, CblasTrans, q_block, stride, CblasNoTrans, 1, end, width, rows);
    }
}

void device_attention_backward(Gradient dqkv, float *scratch, const float *dout, const float *qkv, const void *out,
                               const float *saved, int64_t B, int64_t T, int64_t C, int heads, DType precision)
{
    (void)out; /* the saved probabilities are enough here */
    const int64_t width = C / heads;
    float *dp = scratch, *workspace = dp + BLOCK_ROWS * T;
    float *rounded_dout = workspace + 3 * T * width, *rounded_p = rounded_dout + T * width;
    clear_if_first(dqkv, B * T * 3 * C); /* each block of rows adds to dk and dv of all rows before it */
    for (int64_t b = 0; b < B; b++)
        for (int h = 0; h < heads; h++) {
            const Head head = head_of(workspace, qkv + b * T * 3 * C, T, C, heads, h, precision);
            const float *p = saved + (b * heads + h) * T * T;
            const int64_t dout_stride = precision == DTYPE_F32 ? C : width;
            const float *head_dout =
                round_rows(rounded_dout, width, dout + b * T * C + h * width, C, T, width, precision);
            float *dq = dqkv.values + b * T * 3 * C + h * width;
            head_backward(dq, dq + C, dq + 2 * C, dp, rounded_p, head_dout, dout_stride, p, &head, T, C, precision);
        }
}
