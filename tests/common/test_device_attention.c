/* test_device_attention.c: what only attention has, on the device that this is linked with: what it rounds under bf16
 * and f16, and that no row sees a later one. (That its results are right: operations_losses.c.)
 *
 * Under bf16 and f16 p and the gradient of the scores are rounded, as operands of products, and out, as an operand of
 * the next product; nothing else. In the test of this, key j is the unit vector j (and far right the binary digits of j,
 * so that all scores differ), and one row alone has a gradient. Then each of these sums has one term, and shows the
 * operand: dq = ds / sqrt(W), dk = ds q / sqrt(W), dv = p dout. sqrt(W), q and dout are powers of two, which change no
 * fraction. out is rounded itself, so a sum of one term would show nothing. But value j is the unit vector j minus the
 * unit vector j - 1: out is the difference of two p, and that of two rounded numbers is a multiple of the distance at
 * which the format's numbers lie there. */
#include "device_numbers.h"

/* One sequence of T rows, and what attention makes of it, on the host. */
typedef struct Attention {
    int64_t T, C;
    int heads;
    DType precision;
    const float *qkv, *dout;
    float *out, *dqkv;
} Attention;

static void run_attention(Attention *a)
{
    const int64_t T = a->T, C = a->C, n = T * C;
    float *qkv = device_copy_of(a->qkv, (size_t)(3 * n) * sizeof *qkv);
    float *dout = device_copy_of(a->dout, (size_t)n * sizeof *dout);
    float *saved = device_alloc((size_t)device_attention_saved(1, T, C, a->heads) * sizeof *saved);
    float *scratch = device_alloc((size_t)device_attention_scratch(1, T, C, a->heads) * sizeof *scratch);
    float *numbers = device_alloc((size_t)n * sizeof *numbers), *dqkv = device_alloc((size_t)(3 * n) * sizeof *dqkv);
    void *out = device_alloc(device_rounded_bytes(a->precision, n));
    device_attention_forward(out, saved, qkv, 1, T, C, a->heads, a->precision);
    device_attention_backward((Gradient){.values = dqkv}, scratch, dout, qkv, out, saved, 1, T, C, a->heads,
                              a->precision);
    numbers_of(numbers, out, a->precision, n);
    a->out = room_for_floats(n), a->dqkv = room_for_floats(3 * n);
    device_to_host(a->out, numbers, (size_t)n * sizeof *numbers);
    device_to_host(a->dqkv, dqkv, (size_t)(3 * n) * sizeof *dqkv);
    void *to_free[] = {qkv, dout, saved, scratch, numbers, dqkv, out};
    for (int i = 0; i < 7; i++)
        device_free(to_free[i]);
}

/* ---- causality ---- */

/* A change in the text does not affect earlier positions: they have the same bits. */
static void test_causality(void **state)
{
    enum { T = 77, C = 40, CHANGED = 50, BEFORE = CHANGED * C };
    const DType precisions[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (int p = 0; p < 3; p++) {
        float *qkv = normals(T * 3 * C);
        Attention a = {T, C, 2, precisions[p], qkv, normals(T * C), NULL, NULL};
        run_attention(&a);
        const float *before = a.out;
        for (int64_t i = 3 * BEFORE; i < T * 3 * C; i++)
            qkv[i] = 3 - qkv[i];
        run_attention(&a);
        expect_bits_equal("rows before the change", a.out, before, BEFORE,
                          "the mask: key j is seen by rows t >= j only");
        assert_memory_not_equal(a.out + BEFORE, before + BEFORE, C * sizeof(float));
    }
}

/* ---- what is rounded ---- */

enum { UNIT_T = 40, UNIT_W = 64, UNIT_ROW = 37, DIGITS = 6 };

static float power(int i)
{
    return (i * 7 % 3 ? 1.0f : -1.0f) * ldexpf(1, i * 5 % 4 - 4);
}

/* Of the row and key j. */
static double score(int j)
{
    double sum = (double)power(UNIT_ROW + j);
    for (int digit = 0; digit < DIGITS; digit++)
        sum += (j >> digit & 1) * (double)power(UNIT_ROW + UNIT_T + digit);
    return sum;
}

static Attention unit_attention(DType precision)
{
    float *qkv = room_for_floats(UNIT_T * 3 * UNIT_W), *dout = room_for_floats(UNIT_T * UNIT_W);
    for (int t = 0; t < UNIT_T; t++) {
        float *q = qkv + t * 3 * UNIT_W, *k = q + UNIT_W, *v = k + UNIT_W;
        for (int w = 0; w < UNIT_W; w++)
            q[w] = 8 * power(t + w);
        k[t] = 1;
        for (int digit = 0; digit < DIGITS; digit++)
            k[UNIT_T + digit] = (float)(t >> digit & 1);
        v[t] = 1;
        if (t > 0)
            v[t - 1] = -1;
    }
    for (int w = 0; w < UNIT_W; w++)
        dout[UNIT_ROW * UNIT_W + w] = power(w + 2);
    Attention attention = {UNIT_T, UNIT_W, 1, precision, qkv, dout, NULL, NULL};
    run_attention(&attention);
    return attention;
}

/* Backward: how many of the operands of the row that has a gradient are not rounded to `precision`. */
static int count_unrounded(const float *dqkv, DType precision)
{
    const float *dq = dqkv + UNIT_ROW * 3 * UNIT_W;
    const double scale = 1 / sqrt((double)UNIT_W);
    int unrounded = 0;
    for (int j = 0; j <= UNIT_ROW; j++) {
        const float *dk = dqkv + (j * 3 + 1) * UNIT_W, *dv = dk + UNIT_W;
        const double ds = (double)dq[j] / scale;
        unrounded += ds != nearest_in(precision, ds);
        for (int w = 0; w < UNIT_W; w++) {
            const double of_dk = (double)dk[w] / scale / (8 * (double)power(UNIT_ROW + w));
            const double of_dv = (double)dv[w] / (double)power(w + 2);
            unrounded += of_dk != nearest_in(precision, of_dk);
            unrounded += of_dv != nearest_in(precision, of_dv);
        }
    }
    return unrounded;
}

/* Forward: how many numbers of out cannot be (a - b) / divisor, rounded, where a and b are p * divisor, rounded. */
static int count_impossible(const float *out, DType precision, double divisor, double sum)
{
    int impossible = 0;
    for (int w = 0; w < UNIT_ROW; w++) {
        const double smaller = exp(score(w) < score(w + 1) ? score(w) : score(w + 1)) / sum * divisor;
        const double distance = ldexp(2 * unit_of(precision), ilogb(smaller)); /* of the format's numbers, there */
        const double multiple = (double)out[w] * divisor / distance;
        impossible += fabs(multiple - nearbyint(multiple)) > fabs(multiple) * (unit_of(precision) + 8 * U);
    }
    return impossible;
}

/* p may be rounded after the division by the sum, or before, when it is exp(score - largest). */
static int count_unrounded_p(const float *out, DType precision)
{
    double sum = 0, largest = -INFINITY;
    for (int j = 0; j <= UNIT_ROW; j++) {
        sum += exp(score(j));
        largest = score(j) > largest ? score(j) : largest;
    }
    const int after = count_impossible(out, precision, 1, sum);
    const int before = count_impossible(out, precision, sum / exp(largest), sum);
    return after < before ? after : before;
}

static void check_rounding(DType precision)
{
    const int operands = (UNIT_ROW + 1) * (1 + 2 * UNIT_W);
    const Attention rounding = unit_attention(precision), exact = unit_attention(DTYPE_F32);
    const float *out = rounding.out + UNIT_ROW * UNIT_W;
    const int unrounded = count_unrounded(rounding.dqkv, precision), unrounded_p = count_unrounded_p(out, precision);
    expect_bits_equal("out", rounding.out, rounded(rounding.out, precision, UNIT_T * UNIT_W), UNIT_T * UNIT_W,
                      "out is rounded, as an operand of the next product");
    if (unrounded > 0)
        fail_msg("backward: %d of %d operands of products are not rounded to %s: p or the gradient of the scores",
                 unrounded, operands, dtype_name(precision));
    if (unrounded_p > 0)
        fail_msg("forward: %d of %d differences of two p show that p was not rounded to %s", unrounded_p, UNIT_ROW,
                 dtype_name(precision));
    /* the test can tell: */
    const float *out_of_exact_p = rounded(exact.out + UNIT_ROW * UNIT_W, precision, UNIT_W);
    assert_true(count_unrounded(exact.dqkv, precision) > operands / 2);
    assert_true(count_unrounded_p(out_of_exact_p, precision) > UNIT_ROW / 8);
}

static void test_what_is_rounded(void **state)
{
    check_rounding(DTYPE_BF16);
    check_rounding(DTYPE_F16);
}

int main(void)
{
    device_init(0, 1);
    return run_cases("device_attention", cmocka_unit_test_teardown(test_causality, free_room),
                     cmocka_unit_test_teardown(test_what_is_rounded, free_room));
}
