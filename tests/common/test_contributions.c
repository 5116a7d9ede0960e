/* test_contributions.c: gradients whose memory moves, and gradients to which one operation contributes several times,
 * against float64 and its numerical derivative (gradient_check.h). */
#include <math.h>

#include "device/device.h"
#include "expect.h"
#include "gradient_check.h"

/* ---- gradients that move from a sum to a summand ---- */

/* One tensor added to itself, sums of sums, and a sum that has other uses too: no operation may write to a gradient
 * that another one still reads. */
static void sums_reference(const Problem *problem, double *out, double *const *operand)
{
    for (int64_t i = 0; i < problem->outputs; i++) {
        double x = operand[0][i], y = operand[1][i], twice = x + x, sum = twice + y, positive = sum > 0 ? sum : 0;
        out[i] = (sum + positive) + (y + sum);
    }
}

static Tensor *apply_sums(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    (void)problem, (void)fixed;
    Tensor *x = operand[0], *y = operand[1], *sum = op_add(tape, op_add(tape, x, x), y);
    Tensor *positive = op_relu(tape, sum);
    return op_add(tape, op_add(tape, sum, positive), op_add(tape, y, sum));
}

static void test_gradients_move(void **state)
{
    const int64_t shapes[][2] = {{1, 1}, {3, 5}, {7, 37}, {0, 5}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        check_problem(&(Problem){.name = "sums of sums",
                                 .operands = 2,
                                 .scale = 1,
                                 .shape = {{shapes[s][0], shapes[s][1], -1}, {shapes[s][0], shapes[s][1], -1}},
                                 .outputs = shapes[s][0] * shapes[s][1],
                                 .reference = sums_reference,
                                 .apply = apply_sums,
                                 .chain = 10,
                                 .hint = "a gradient's memory was handed on while another operation still needed it"});
}

/* ---- one tensor is several inputs of one operation: its first contribution is set, the others are added ---- */

static void square_reference(const Problem *problem, double *out, double *const *operand)
{
    const int64_t rows = problem->shape[0][0], n = problem->shape[0][1];
    for (int64_t i = 0; i < rows * rows; i++) {
        out[i] = 0;
        for (int64_t k = 0; k < n; k++)
            out[i] += operand[0][i / rows * n + k] * operand[0][i % rows * n + k];
    }
}

static Tensor *square_apply(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    (void)problem, (void)fixed;
    return op_linear(tape, operand[0], operand[0], NULL);
}

static void own_layernorm_reference(const Problem *problem, double *out, double *const *operand)
{
    const double *x = operand[0], n = (double)problem->outputs;
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < problem->outputs; i++)
        mean += x[i] / n;
    for (int64_t i = 0; i < problem->outputs; i++)
        variance += (x[i] - mean) * (x[i] - mean) / n;
    for (int64_t i = 0; i < problem->outputs; i++)
        out[i] = (x[i] - mean) / sqrt(variance + 1e-5) * x[i] + x[i];
}

static Tensor *own_layernorm_apply(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    (void)problem, (void)fixed;
    return op_layernorm(tape, operand[0], operand[0], operand[0]);
}

static void test_one_tensor_several_times(void **state)
{
    const char *hint = "contributions must be written in the order in which tape_gradient() was called for them";
    check_problem(&(Problem){.name = "x x^T",
                             .operands = 1,
                             .scale = 1,
                             .shape = {{5, 7, -1}},
                             .outputs = 25,
                             .reference = square_reference,
                             .apply = square_apply,
                             .chain = 40,
                             .hint = hint});
    check_problem(&(Problem){.name = "layernorm of x by x",
                             .operands = 1,
                             .scale = 1,
                             .shape = {{1, 33, -1}},
                             .outputs = 33,
                             .reference = own_layernorm_reference,
                             .apply = own_layernorm_apply,
                             .chain = 80,
                             .hint = hint});
}

int main(void)
{
    device_init(0, 1);
    return run_cases("contributions", cmocka_unit_test(test_gradients_move),
                     cmocka_unit_test(test_one_tensor_several_times));
}
