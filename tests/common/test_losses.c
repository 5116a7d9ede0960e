/* test_losses.c: the losses of autograd/ops.h against their formulas in float64 and those formulas' numerical
 * derivatives, as in test_ops.c. Both are sums over rows: the division by the number of samples comes later, once. */
#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "device/device.h"
#include "expect.h"
#include "gradient_check.h"

/* logits (rows, V), fixed: the target of each row, -1 if it is masked. */
static void cross_entropy_reference(const Problem *problem, double *out, double *const *operand)
{
    int64_t rows = problem->shape[0][0], V = problem->shape[0][1];
    *out = 0;
    for (int64_t r = 0; r < rows; r++) {
        const double *logits = operand[0] + r * V;
        const int32_t target = ((const int32_t *)problem->fixed)[r];
        if (target < 0)
            continue;
        double at_target = logits[target], total = 0;
        for (int64_t i = 0; i < V; i++)
            total += exp(logits[i] - at_target);
        *out += log(total);
    }
}

static Tensor *cross_entropy_apply(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    return op_cross_entropy(tape, operand[0], fixed);
}

static void check_cross_entropy(int64_t rows, int64_t V, float scale, float offset)
{
    int32_t *targets = draw_indices(rows, (uint64_t)V);
    for (int64_t r = 1; r < rows; r += 4)
        targets[r] = -1;
    check_problem(&(Problem){.name = "cross-entropy",
                             .operands = 1,
                             .scale = scale,
                             .offset = offset,
                             .shape = {{rows, V, -1}},
                             .outputs = 1,
                             .fixed = targets,
                             .fixed_count = rows,
                             .reference = cross_entropy_reference,
                             .apply = cross_entropy_apply,
                             .chain = (double)(rows + V) + 20 + 4 * (double)(scale + offset),
                             .hint = "a SUM over rows; log(sum(exp(x))) needs the row's maximum taken off"});
    free(targets);
}

static void test_cross_entropy(void **state)
{
    check_cross_entropy(5, 10, 1, 0);
    check_cross_entropy(1, 16, 1, 0);
    check_cross_entropy(1, 1, 1, 0);
    check_cross_entropy(18, 257, 3, 0);
    check_cross_entropy(0, 10, 1, 0);
    check_cross_entropy(6, 11, 1, 1000); /* exp(1000) is infinite */
    check_cross_entropy(6, 11, 60, 0);   /* targets so unlikely that their probability is 0 in float32 */
}

/* prediction (rows, n), fixed: the target, of the same shape. */
static void mse_reference(const Problem *problem, double *out, double *const *operand)
{
    const float *target = problem->fixed;
    *out = 0;
    for (int64_t i = 0; i < problem->fixed_count; i++)
        *out += (operand[0][i] - target[i]) * (operand[0][i] - target[i]) / (double)problem->shape[0][1];
}

static Tensor *mse_apply(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    return op_mse(tape, operand[0], fixed);
}

static void test_mse(void **state)
{
    static const int64_t shapes[][2] = {{1, 1}, {1, 16}, {1, 17}, {3, 5}, {7, 37}, {0, 5}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        int64_t rows = shapes[i][0], n = shapes[i][1];
        float *target = alloc_or_fault((size_t)(rows * n) * sizeof *target);
        for (int64_t j = 0; j < rows * n; j++)
            target[j] = (float)(j % 7) - 3;
        check_problem(&(Problem){.name = "mse",
                                 .operands = 1,
                                 .scale = 1,
                                 .shape = {{rows, n, -1}},
                                 .outputs = 1,
                                 .fixed = target,
                                 .fixed_count = rows * n,
                                 .reference = mse_reference,
                                 .apply = mse_apply,
                                 .chain = (double)(rows * n) + 4,
                                 .hint = "a SUM over rows of the MEAN over a row; the derivative has a factor 2"});
        free(target);
    }
}

int main(void)
{
    device_init(0, 1);
    return run_cases("losses", cmocka_unit_test(test_cross_entropy), cmocka_unit_test(test_mse));
}
