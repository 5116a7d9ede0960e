/* test_device_optimizer.c: device.h's norm and clipping against float64, on the device that this is linked with. (The
 * optimizers: operations_update.c.) */
#include "device_numbers.h"

#include <float.h>
#include <stdlib.h>

#include "base/check.h"

static const int64_t sizes[] = {0, 1, 3, 4, 31, 33, 257, 1025, 70001, 300001};
#define SIZES (int)(sizeof sizes / sizeof *sizes)

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

int main(void)
{
    device_init(0, 1);
    return run_cases("device_optimizer", cmocka_unit_test_teardown(test_sum_of_squares, free_room),
                     cmocka_unit_test_teardown(test_sum_of_squares_sees_what_is_not_finite, free_room),
                     cmocka_unit_test_teardown(test_clip_factor, free_room));
}
