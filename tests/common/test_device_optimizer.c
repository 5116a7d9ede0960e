/* test_device_optimizer.c: device.h's optimizers, norm and clipping against float64, on the device that this is linked
 * with. device_trial.h says what bounds mean. */
#include "device_trial.h"

#include <float.h>
#include <stdlib.h>

#include "base/check.h"

static const int64_t sizes[] = {0, 1, 3, 4, 31, 33, 257, 1025, 70001, 300001};
#define SIZES (int)(sizeof sizes / sizeof *sizes)

/* ---- norm and clipping ---- */

/* The sum of the device's sums, which are computed twice: over old values, and at another address. A block's sum must be
 * that of the block alone: ranks that hold different blocks of one gradient compute the same sums as one process. */
static double sum_of_squares_of(const float *x, int64_t n)
{
    const int64_t blocks = squares_blocks(n);
    const size_t bytes = (size_t)(blocks + 2) * sizeof(double);
    float *memory = device_copy_of(x, (size_t)n * sizeof *x);
    double *before = alloc_or_fault(bytes), *after = alloc_or_fault(bytes), *again = alloc_or_fault(bytes), total = 0;
    for (int64_t i = 0; i < blocks + 2; i++)
        before[i] = i == 0 || i == blocks + 1 ? NAN : 12;
    double *sums = device_copy_of(before, bytes), *others = device_copy_of(before, bytes);
    device_sum_of_squares(&sums[1], memory, n);
    for (int64_t k = blocks - 1; k >= 0; k--)
        device_sum_of_squares(&others[1 + k], memory + k * SQUARES_BLOCK,
                              k + 1 < blocks ? SQUARES_BLOCK : n - k * SQUARES_BLOCK);
    device_to_host(after, sums, bytes);
    device_to_host(again, others, bytes);
    assert_true(isnan(after[0]) && isnan(after[blocks + 1])); /* outside the result */
    for (int64_t i = 1; i <= blocks; i++) {
        if (memcmp(&after[i], &again[i], sizeof *after) != 0)
            fail_msg("device_sum_of_squares of %lld numbers: block %lld is %.17g, and alone %.17g", (long long)n,
                     (long long)i - 1, after[i], again[i]);
        total += after[i];
    }
    device_free(memory);
    device_free(sums);
    device_free(others);
    free(before);
    free(after);
    free(again);
    return total;
}

static void test_sum_of_squares(void **state)
{
    for (int s = 0; s < SIZES; s++) {
        const int64_t n = sizes[s];
        const float scales[] = {1, 1e30f, 1e-30f}; /* the squares fit into float64 only */
        for (int i = 0; i < 3; i++) {
            float *x = normals_around(0, scales[i], n);
            long double expected = 0;
            for (int64_t k = 0; k < n; k++)
                expected += (long double)x[k] * (long double)x[k];
            const double got = sum_of_squares_of(x, n), off = fabs((double)(got - expected));
            if (!(off <= (double)(n + 1) * 0x1p-53 * (double)expected))
                fail_msg("device_sum_of_squares of %lld numbers: %.17g, not %.17g: is it summed in float64?",
                         (long long)n, got, (double)expected);
        }
    }
}

/* The sum also says whether all numbers are finite. */
static void test_sum_of_squares_sees_what_is_not_finite(void **state)
{
    const float wrong[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int s = 0; s < SIZES; s++) {
        const int64_t n = sizes[s];
        float *x = normals(n);
        for (int64_t i = 0; i < n; i += 5)
            x[i] = i % 2 ? FLT_MAX : -FLT_MIN / 4;
        assert_true(isfinite(sum_of_squares_of(x, n)));
        const int64_t places[] = {0, n / 2, n - 1};
        for (int k = 0; k < 12 && n > 0; k++) {
            const float kept = x[places[k / 4]];
            x[places[k / 4]] = wrong[k % 4];
            if (isfinite(sum_of_squares_of(x, n)))
                fail_msg("device_sum_of_squares: %g at %lld of %lld numbers was not seen", (double)wrong[k % 4],
                         (long long)places[k / 4], (long long)n);
            x[places[k / 4]] = kept;
        }
    }
}

static float clip_factor_of(const double *sums, int64_t count, double max_norm)
{
    const float before[2] = {7, 7};
    double *memory = device_copy_of(sums, (size_t)count * sizeof *sums);
    float *factor = device_copy_of(before, sizeof before), after[2];
    device_clip_factor(factor, memory, count, max_norm);
    device_to_host(after, factor, sizeof after);
    device_free(memory);
    device_free(factor);
    assert_true(after[1] == 7); /* outside the result */
    return after[0];
}

static void test_clip_factor(void **state)
{
    const int64_t counts[] = {0, 1, 2, 31, 148, 257, 1000};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        const int64_t count = counts[c];
        double *sums = room_for_doubles(count), total = 0;
        const float *sizes_of_sums = normals(count);
        for (int64_t i = 0; i < count; i++)
            total += sums[i] = fabs((double)sizes_of_sums[i]) * (i % 3 ? 1e-9 : 1e9);
        const double norm = sqrt(total), limits[] = {norm / 7, norm * 0.999, norm * 1.001 + 1, INFINITY, 1e-30};
        for (int i = 0; i < 5; i++) {
            const double expected = fmin(1, limits[i] / (norm + 1e-6));
            const float got = clip_factor_of(sums, count, limits[i]);
            if (!(fabs((double)got - expected) <= 2 * U * expected + TINY))
                fail_msg("device_clip_factor of %lld sums, norm %g, limit %g: %.9g, not %.9g", (long long)count, norm,
                         limits[i], (double)got, expected);
        }
        const double wrong[] = {NAN, INFINITY};
        for (int i = 0; i < 2 && count > 0; i++) {
            sums[(count - 1) * i] = wrong[i];
            assert_true(isnan(clip_factor_of(sums, count, INFINITY)));
            assert_true(isnan(clip_factor_of(sums, count, 1)));
            sums[(count - 1) * i] = 1;
        }
        free_room(NULL);
    }
}

/* ---- optimizers ---- */

static const float taken = 0.3f; /* the factor's value does not matter, unless it is NaN */

/* Array 0 is the gradient, 1 the weight. */
static DeviceUpdate update_of(const Trial *trial, void **array, const void *factor)
{
    return (DeviceUpdate){.weight = array[1], .grad = array[0], .factor = factor, .n = trial->shape[0]};
}

typedef struct Sgd {
    float lr, momentum, weight_decay;
    bool first_step, has_buffer;
} Sgd;

static void call_sgd(const Trial *trial, void **array)
{
    const Sgd *sgd = trial->extra;
    const DeviceUpdate update = update_of(trial, array, array[3]);
    device_sgd(&update, sgd->has_buffer ? array[2] : NULL, sgd->lr, sgd->momentum, sgd->weight_decay, sgd->first_step);
}

/* velocity = momentum * velocity + grad + weight_decay * weight: four roundings; weight -= lr * velocity: two more. */
static void check_sgd(const Sgd *sgd, int64_t n)
{
    const float *weight = normals(n), *grad = normals(n), *buffer = normals(n);
    double *w = room_for_doubles(n), *w_bound = room_for_doubles(n), *v = room_for_doubles(n),
           *v_bound = room_for_doubles(n);
    const double keep = sgd->has_buffer && !sgd->first_step ? (double)sgd->momentum : 0;
    for (int64_t i = 0; i < n; i++) {
        const double old = keep * (double)buffer[i], g = (double)grad[i],
                     decay = (double)sgd->weight_decay * (double)weight[i];
        v[i] = old + g + decay;
        v_bound[i] = 4 * U * (fabs(old) + fabs(g) + fabs(decay));
        w[i] = (double)weight[i] - (double)sgd->lr * v[i];
        w_bound[i] = (double)sgd->lr * (v_bound[i] + U * fabs(v[i])) + U * fabs(w[i]);
    }
    Trial trial = {.name = "sgd", .call = call_sgd, .shape = {n}, .extra = sgd};
    trial_input(&trial, grad, n), trial_output(&trial, "weight", weight, n);
    trial_output(&trial, "momentum_buffer", buffer, sgd->has_buffer ? n : 0), trial_input(&trial, &taken, 1);
    trial_run(&trial);
    trial_expect(&trial, 1, w, w_bound, "has the formula; weight decay is part of the gradient");
    trial_expect(&trial, 2, v, v_bound, "the first step takes the gradient as it is, whatever the buffer holds");
}

typedef struct AdamW {
    float lr, beta1, beta2, eps, weight_decay, correction1, correction2;
} AdamW;

static void call_adamw(const Trial *trial, void **array)
{
    const AdamW *a = trial->extra;
    const DeviceUpdate update = update_of(trial, array, array[4]);
    device_adamw(&update, array[2], array[3], a->lr, a->beta1, a->beta2, a->eps, a->weight_decay, a->correction1,
                 a->correction2);
}

/* m and v: three and four roundings (beta is exact, and so is 1 - beta). The step, lr / correction1 * m / (sqrt(v) /
 * sqrt(correction2) + eps): half of v's four, and at most eight more beside what m is off by. The weight keeps
 * 1 - lr * weight_decay of itself: three. */
static void check_adamw(const AdamW *a, float scale, int64_t n)
{
    const float *weight = normals(n), *grad = normals_around(0, scale, n), *m0 = normals_around(0, scale, n);
    float *v0 = normals_around(0, scale, n);
    double *w = room_for_doubles(n), *w_bound = room_for_doubles(n), *m = room_for_doubles(n),
           *m_bound = room_for_doubles(n), *v = room_for_doubles(n), *v_bound = room_for_doubles(n);
    for (int64_t i = 0; i < n; i++) {
        v0[i] = i % 3 == 0 ? 0 : v0[i] * v0[i];
        const double g = (double)grad[i], old = (double)a->beta1 * (double)m0[i], new = (1 - (double)a->beta1) * g;
        m[i] = old + new;
        m_bound[i] = 3 * U * (fabs(old) + fabs(new));
        v[i] = (double)a->beta2 * (double)v0[i] + (1 - (double)a->beta2) * g * g;
        v_bound[i] = 4 * U * v[i] + TINY;
        const double root = sqrt(v[i]) / sqrt((double)a->correction2) + (double)a->eps;
        const double factor = (double)a->lr / (double)a->correction1 / root;
        const double keep = (1 - (double)a->lr * (double)a->weight_decay) * (double)weight[i];
        w[i] = keep - factor * m[i];
        w_bound[i] = factor * (m_bound[i] + 10 * U * fabs(m[i])) + 3 * U * fabs((double)weight[i]) + U * fabs(w[i]);
    }
    Trial trial = {.name = "adamw", .call = call_adamw, .shape = {n}, .extra = a};
    trial_input(&trial, grad, n), trial_output(&trial, "weight", weight, n);
    trial_output(&trial, "m", m0, n), trial_output(&trial, "v", v0, n), trial_input(&trial, &taken, 1);
    trial_run(&trial);
    trial_expect(&trial, 2, m, m_bound, "m = beta1 m + (1 - beta1) grad");
    trial_expect(&trial, 3, v, v_bound, "v = beta2 v + (1 - beta2) grad^2");
    trial_expect(&trial, 1, w, w_bound,
                 "has the formula; weight decay is apart from the gradient, and eps is "
                 "added after the correction");
}

static void test_optimizers(void **state)
{
    const Sgd sgds[] = {{0.1f, 0.9f, 0.01f, false, false},
                        {0.1f, 0.9f, 0.01f, true, true},
                        {0.05f, 0.9f, 0.01f, false, true},
                        {0.1f, 0, 0, false, true}};
    const AdamW first = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, 0.05f},
                later = {0.01f, 0.9f, 0.999f, 1e-3f, 0, 0.7f, 0.3f};
    for (int s = 0; s < SIZES; s++) {
        for (int i = 0; i < 4; i++)
            check_sgd(&sgds[i], sizes[s]);
        check_adamw(&first, 1, sizes[s]);
        check_adamw(&first, 1e-3f, sizes[s]);
        check_adamw(&later, 1, sizes[s]);
        free_room(NULL);
    }
}

/* With a factor of NaN the step is skipped, whatever the gradient is. */
static void check_left_out(int64_t n)
{
    static const float nan = NAN;
    const Sgd sgds[] = {{0.1f, 0.9f, 0.01f, false, false}, {0.1f, 0.9f, 0.01f, true, true}};
    const AdamW adamw = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, 0.05f};
    const float *weight = normals(n), *m = normals(n), *v = normals(n);
    float *grad = normals(n);
    for (int64_t i = 0; i < n; i += 4)
        grad[i] = i % 8 ? NAN : INFINITY;
    for (int i = 0; i < 3; i++) {
        Trial trial = {.name = i < 2 ? "sgd, left out" : "adamw, left out",
                       .call = i < 2 ? call_sgd : call_adamw,
                       .shape = {n},
                       .extra = i < 2 ? (const void *)&sgds[i] : &adamw};
        trial_input(&trial, grad, n), trial_output(&trial, "weight", weight, n);
        trial_output(&trial, i < 2 ? "momentum_buffer" : "m", m, n);
        if (i == 2)
            trial_output(&trial, "v", v, n);
        trial_input(&trial, &nan, 1);
        trial_run(&trial);
        const float *starts[] = {NULL, weight, m, v};
        for (int k = 1; k < (i == 2 ? 4 : 3) && n > 0; k++)
            expect_bits_equal(trial.array[k].name, trial.array[k].result, starts[k], n,
                              "where the factor is NaN, the optimizer leaves weights and state alone");
    }
}

static void test_left_out(void **state)
{
    for (int s = 0; s < SIZES; s++) {
        check_left_out(sizes[s]);
        free_room(NULL);
    }
}

int main(void)
{
    device_init(0, 1);
    return run_cases("device_optimizer", cmocka_unit_test_teardown(test_sum_of_squares, free_room),
                     cmocka_unit_test_teardown(test_sum_of_squares_sees_what_is_not_finite, free_room),
                     cmocka_unit_test_teardown(test_clip_factor, free_room),
                     cmocka_unit_test_teardown(test_optimizers, free_room),
                     cmocka_unit_test_teardown(test_left_out, free_room));
}
