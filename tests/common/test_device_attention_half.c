/* test_device_attention_half.c: what device.h's attention rounds under bf16 and f16: p and the gradient of the scores,
 * as operands of products, and out, as an operand of the next product; nothing else. (That the results are right within
 * what this explains: test_device_attention.c.)
 *
 * Key j is the unit vector j (and far right the binary digits of j, so that all scores differ), and one row alone has a
 * gradient. Then each of these sums has one term, and shows the operand: dq = ds / sqrt(W), dk = ds q / sqrt(W), dv = p
 * dout. sqrt(W), q and dout are powers of two, which change no fraction. out is rounded itself, so a sum of one term
 * would show nothing. But value j is the unit vector j minus the unit vector j - 1: out is the difference of two p, and
 * that of two rounded numbers is a multiple of the distance at which the format's numbers lie there. */
#include "attention_trial.h"

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
    return (Attention){.B = 1,
                       .T = UNIT_T,
                       .C = UNIT_W,
                       .heads = 1,
                       .precision = precision,
                       .qkv = qkv,
                       .dout = dout,
                       .start = room_for_floats(UNIT_T * 3 * UNIT_W)};
}

/* Backward: how many of the operands of the row that has a gradient are not rounded to `precision`. */
static int count_unrounded(const Trial *trial, DType precision)
{
    const float *dqkv = trial->array[3].result, *dq = dqkv + UNIT_ROW * 3 * UNIT_W;
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
        const double smaller = exp(fmin(score(w), score(w + 1))) / sum * divisor;
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
        largest = fmax(largest, score(j));
    }
    const int after = count_impossible(out, precision, 1, sum);
    const int before = count_impossible(out, precision, sum / exp(largest), sum);
    return after < before ? after : before;
}

static void check_rounding(DType precision)
{
    const int operands = (UNIT_ROW + 1) * (1 + 2 * UNIT_W);
    const Attention rounding = unit_attention(precision), exact = unit_attention(DTYPE_F32);
    const Trial trial = run_attention(&rounding), control = run_attention(&exact);
    const float *out = trial.array[2].result + UNIT_ROW * UNIT_W;
    const int unrounded = count_unrounded(&trial, precision), unrounded_p = count_unrounded_p(out, precision);
    trial_expect_rounded(&trial, 2);
    if (unrounded > 0)
        fail_msg("backward: %d of %d operands of products are not rounded to %s: p or the gradient of the scores",
                 unrounded, operands, dtype_name(precision));
    if (unrounded_p > 0)
        fail_msg("forward: %d of %d differences of two p show that p was not rounded to %s", unrounded_p, UNIT_ROW,
                 dtype_name(precision));
    /* the test can tell: */
    const float *out_of_exact_p = rounded(control.array[2].result + UNIT_ROW * UNIT_W, precision, UNIT_W);
    assert_true(count_unrounded(&control, precision) > operands / 2);
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
    return run_cases("device_attention_half", cmocka_unit_test_teardown(test_what_is_rounded, free_room));
}
