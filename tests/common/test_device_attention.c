/* test_device_attention.c: device.h's causal self-attention against float64, on the device that this is linked with.
 * device_trial.h says what bounds mean; attention_reference() derives them for attention. */
#include "attention_trial.h"

/* ---- the reference: one head of one sequence at a time, with a bound beside each number ----
 *
 *     s = q k^T / sqrt(W)        W products: error (W + 3) U times the sum of their sizes
 *     p = softmax(s)             relative error of exp(s - largest): the error of s, U |s - largest|, 4 U; of the sum
 *                                over the row: the same again and n U. Tiles that are scaled down for a larger score:
 *                                at most n U more. Then h, if p is rounded to 16 bits, before or after the division.
 *     out = p v                  n products
 *     dp = dout v^T, D = sum over the row of p dp, which equals the sum of dout * out over the width. If it is computed
 *                                from out, which is rounded for the next product, h |out| |dout| are added
 *     ds = p (dp - D)            the relative error of p, the errors of dp and D, and h for rounding ds
 *     dq = ds k / sqrt(W), dk = ds^T q / sqrt(W), dv = p^T dout
 *
 * q, k, v, dout are rounded before all else; that is part of the task, not of the bound. h: the unit of 16-bit
 * rounding, 0 in float32. Numbers below f16's smallest normal number are rounded to a fixed distance; `subnormal` is
 * half of it. Errors times errors are left out, so all bounds are multiplied by SECOND_ORDER. */
#define SECOND_ORDER 1.1

typedef struct Reference {
    double *out, *out_bound;   /* (B, T, C) */
    double *dqkv, *dqkv_bound; /* (B, T, 3C) */
} Reference;

/* One head: where its numbers are. */
typedef struct Head {
    const float *q, *k, *v, *dout; /* rounded; rows of 3C, dout of C */
    int64_t T, C, W;
    double h, subnormal, scale;
} Head;

/* One row of scores: probabilities p of keys 0 to t, and the sizes of what they are off by. */
typedef struct Row {
    double *p, *p_off;
} Row;

static double dot(const float *a, const float *b, int64_t n, double *size)
{
    double sum = 0;
    *size = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)a[i] * (double)b[i];
        *size += fabs((double)a[i] * (double)b[i]);
    }
    return sum;
}

static void softmax_row(const Head *head, int64_t t, Row row)
{
    double largest = -INFINITY, smallest = INFINITY, s_off = 0, sum = 0, size;
    for (int64_t j = 0; j <= t; j++) {
        row.p[j] = head->scale * dot(head->q + t * 3 * head->C, head->k + j * 3 * head->C, head->W, &size);
        s_off = fmax(s_off, (double)(head->W + 3) * U * head->scale * size);
        largest = fmax(largest, row.p[j]);
        smallest = fmin(smallest, row.p[j]);
    }
    for (int64_t j = 0; j <= t; j++)
        sum += row.p[j] = exp(row.p[j] - largest);
    const double factor = 2 * (s_off + U * (largest - smallest + fabs(largest))) + (double)(2 * t + 20) * U + head->h;
    for (int64_t j = 0; j <= t; j++) {
        row.p[j] /= sum;
        row.p_off[j] = row.p[j] * factor + head->subnormal + TINY;
    }
}

/* Computes row t of out, and adds this row's contributions to dqkv. The bounds are summed in the same way. */
static void reference_row(const Head *head, int64_t t, Row row, double *out, double *out_off, double *dqkv, double *off)
{
    const int64_t C = head->C, W = head->W, n = t + 1;
    const float *d = head->dout + t * C;
    double D = 0, D_size = 0, D_off = 0, size;
    softmax_row(head, t, row);
    for (int64_t j = 0; j <= t; j++) {
        for (int64_t w = 0; w < W; w++) {
            const double v = (double)head->v[j * 3 * C + w];
            out[t * C + w] += row.p[j] * v;
            out_off[t * C + w] += fabs(v) * (row.p_off[j] + (double)(n + 4) * U * row.p[j]);
        }
        D += row.p[j] * dot(d, head->v + j * 3 * C, W, &size);
        D_size += row.p[j] * size;
        D_off += row.p_off[j] * size;
    }
    D_off += D_size * ((double)(n + W + 6) * U + head->h);
    for (int64_t w = 0; w < W; w++)
        D_off += fabs((double)d[w]) * (head->h * fabs(out[t * C + w]) + head->subnormal);
    for (int64_t j = 0; j <= t; j++) {
        const double p = row.p[j], dp = dot(d, head->v + j * 3 * C, W, &size), dp_off = (double)(W + 2) * U * size;
        const double ds = p * (dp - D);
        const double ds_off = p * (dp_off + D_off + 2 * U * fabs(dp - D)) + row.p_off[j] * fabs(dp - D) +
                              head->h * fabs(ds) + head->subnormal;
        for (int64_t w = 0; w < W; w++) {
            const double q = head->scale * (double)head->q[t * 3 * C + w],
                         k = head->scale * (double)head->k[j * 3 * C + w];
            const int64_t to_q = t * 3 * C + w, to_k = j * 3 * C + C + w, to_v = to_k + C;
            const double terms = (double)(head->T + 6) * U; /* at most this many in any of the three sums */
            dqkv[to_q] += ds * k;
            off[to_q] += fabs(k) * (ds_off + terms * fabs(ds));
            dqkv[to_k] += ds * q;
            off[to_k] += fabs(q) * (ds_off + terms * fabs(ds));
            dqkv[to_v] += p * (double)d[w];
            off[to_v] += fabs((double)d[w]) * (row.p_off[j] + terms * p);
        }
    }
}

static Reference attention_reference(const Attention *a)
{
    const int64_t B = a->B, T = a->T, C = a->C, W = C / a->heads;
    const float *qkv = rounded(a->qkv, a->precision, B * T * 3 * C), *dout = rounded(a->dout, a->precision, B * T * C);
    Reference r = {room_for_doubles(B * T * C), room_for_doubles(B * T * C), room_for_doubles(B * T * 3 * C),
                   room_for_doubles(B * T * 3 * C)};
    const Row row = {room_for_doubles(T), room_for_doubles(T)};
    for (int64_t b = 0; b < B; b++) {
        for (int h = 0; h < a->heads; h++) {
            const float *q = qkv + b * T * 3 * C + h * W;
            const Head head = {q,
                               q + C,
                               q + 2 * C,
                               dout + b * T * C + h * W,
                               T,
                               C,
                               W,
                               unit_of(a->precision),
                               a->precision == DTYPE_F16 ? 0x1p-25 : 0,
                               1 / sqrt((double)W)};
            const int64_t at = b * T * C + h * W, at3 = b * T * 3 * C + h * W;
            for (int64_t t = 0; t < T; t++)
                reference_row(&head, t, row, r.out + at, r.out_bound + at, r.dqkv + at3, r.dqkv_bound + at3);
        }
    }
    for (int64_t i = 0; i < B * T * C; i++)
        r.out_bound[i] = off_when_rounded(a->precision, r.out[i], SECOND_ORDER * r.out_bound[i] + TINY);
    for (int64_t i = 0; i < B * T * 3 * C; i++) {
        r.dqkv[i] += start_at(a->start, i);
        const double sizes = fabs(start_at(a->start, i)) + fabs(r.dqkv[i]);
        r.dqkv_bound[i] = SECOND_ORDER * r.dqkv_bound[i] + 2 * U * sizes + TINY;
    }
    return r;
}

/* ---- forward and backward ---- */

static void check_attention(int64_t B, int64_t T, int heads, int64_t W, float scale, DType precision)
{
    Attention a = random_attention(B, T, heads, W, scale, precision);
    for (int round = 0; round < 2; round++) {
        const Reference reference = attention_reference(&a);
        const Trial trial = run_attention(&a);
        trial_expect(&trial, 2, reference.out, reference.out_bound,
                     "row t sees keys 0 to t, scores are divided by sqrt(width), "
                     "each head has its own columns of q, k and v");
        trial_expect(&trial, 3, reference.dqkv, reference.dqkv_bound,
                     "which third is off: dq, dk or dv? ds = p (dp - D); each gradient is added to what is there, or "
                     "set if it is the first contribution");
        a.start = NULL;
    }
    free_room(NULL);
}

static const DType precisions[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static void test_attention(void **state)
{
    for (int p = 0; p < 3; p++) {
        check_attention(1, 1, 1, 1, 1, precisions[p]);
        check_attention(2, 3, 2, 5, 1, precisions[p]);
        check_attention(1, 31, 3, 33, 1, precisions[p]);
        check_attention(2, 33, 2, 20, 1, precisions[p]);
    }
}

/* CUDA takes 16, 32 or 64 rows at a time, and pads heads to 64 or 128: just below, at, and just above each of them. (The
 * longest text has narrow heads, because an emulated GPU is slow.) */
static void test_around_tiles(void **state)
{
    const int64_t T[] = {1, 15, 16, 130, 63, 65, 64, 17}, widths[] = {8, 16, 40, 64, 80, 128};
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < 8; i++) {
            check_attention(1, T[i], 1, widths[i % 6], 1, precisions[p]);
            check_attention(1, T[i], 2, widths[(i + 3) % 6], 1, precisions[p]);
        }
}

static void test_no_numbers_at_all(void **state)
{
    check_attention(0, 5, 2, 8, 1, DTYPE_F32);
    check_attention(3, 0, 2, 8, 1, DTYPE_F32);
    check_attention(3, 0, 2, 8, 1, DTYPE_BF16);
}

/* Scores in the hundreds: without the largest subtracted, exp() would overflow. (The factor of exp() is then off by
 * more than a little, which is what the bound says.) */
static void test_large_scores(void **state)
{
    check_attention(1, 40, 1, 20, 5, DTYPE_F32);
    check_attention(1, 70, 2, 64, 8, DTYPE_F32);
    check_attention(1, 70, 2, 64, 8, DTYPE_BF16);
}

/* A change in the text does not affect earlier positions: they have the same bits. */
static void test_causality(void **state)
{
    const int64_t T = 77, C = 40, changed = 50;
    for (int p = 0; p < 3; p++) {
        Attention a = random_attention(1, T, 2, 20, 1, precisions[p]);
        const Trial before = run_attention(&a);
        float *qkv = room_for_floats(T * 3 * C);
        memcpy(qkv, a.qkv, (size_t)(T * 3 * C) * sizeof *qkv);
        for (int64_t i = changed * 3 * C; i < T * 3 * C; i++)
            qkv[i] = 3 - qkv[i];
        a.qkv = qkv;
        const Trial after = run_attention(&a);
        expect_bits_equal("rows before the change", after.array[2].result, before.array[2].result, changed * C,
                          "the mask: key j is seen by rows t >= j only");
        assert_true(memcmp(after.array[2].result + changed * C, before.array[2].result + changed * C, 40) != 0);
    }
}

/* A NaN in a key makes every row NaN that sees it. (fmaxf() drops NaN; the exp() of it must not be dropped.) */
static void test_nan_is_kept(void **state)
{
    const int64_t T = 70, C = 16, key = 37;
    for (int i = 0; i < 9; i++) {
        const int part = i / 3; /* of qkv */
        const Attention a = random_attention(1, T, 1, C, 1, precisions[i % 3]);
        float *qkv = room_for_floats(T * 3 * C);
        memcpy(qkv, a.qkv, (size_t)(T * 3 * C) * sizeof *qkv);
        qkv[key * 3 * C + part * C] = NAN;
        Attention with_nan = a;
        with_nan.qkv = qkv;
        const Trial trial = run_attention(&with_nan);
        for (int64_t t = key; t < (part == 0 ? key + 1 : T); t++)
            trial_expect_nan(&trial, 2, t * C, "a maximum that drops NaN, or a score that is not looked at");
        trial_expect_nan(&trial, 3, key * 3 * C, "a NaN in q, k or v reaches dq of its row");
    }
}

int main(void)
{
    device_init(0, 1);
    return run_cases("device_attention", cmocka_unit_test_teardown(test_attention, free_room),
                     cmocka_unit_test_teardown(test_around_tiles, free_room),
                     cmocka_unit_test_teardown(test_no_numbers_at_all, free_room),
                     cmocka_unit_test_teardown(test_large_scores, free_room),
                     cmocka_unit_test_teardown(test_causality, free_room),
                     cmocka_unit_test_teardown(test_nan_is_kept, free_room));
}
