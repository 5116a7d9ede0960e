/* test_norms.c: layer norm and batch norm against their formula in float64 and its numerical derivative (gradient_check.h
 * says how). They differ in what a mean is over: a row, or a column. Over several ranks: test_batch_norm.c. */
#include <math.h>

#include "autograd/batch_norm.h"
#include "device/device.h"
#include "expect.h"
#include "gradient_check.h"

/* ---- the formula: out = (x - mean) / sqrt(variance + eps) * weight + bias, over `count` numbers, `step` apart ---- */

static void normalize(double *out, const double *x, int64_t count, int64_t step)
{
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < count; i++)
        mean += x[i * step] / (double)count;
    for (int64_t i = 0; i < count; i++)
        variance += (x[i * step] - mean) * (x[i * step] - mean) / (double)count;
    for (int64_t i = 0; i < count; i++)
        out[i * step] = (x[i * step] - mean) / sqrt(variance + 1e-5);
}

static void scale_and_shift(const Problem *problem, double *out, double *const *operand)
{
    const int64_t columns = problem->shape[0][1];
    for (int64_t i = 0; i < problem->outputs; i++)
        out[i] = out[i] * operand[1][i % columns] + operand[2][i % columns];
}

/* The problem, but for what a mean is over: it is over `count` numbers. */
static void check_norm(Problem problem, int64_t rows, int64_t columns, float scale, float offset, int64_t count)
{
    problem.operands = 3;
    problem.scale = scale;
    problem.offset = offset;
    problem.shape[0][0] = rows;
    problem.shape[0][1] = problem.shape[1][0] = problem.shape[2][0] = columns;
    problem.shape[0][2] = problem.shape[1][1] = problem.shape[2][1] = -1;
    problem.outputs = rows * columns;
    problem.chain = (double)count + 20 + 4 * fabs((double)(offset / scale));
    problem.hint = "operand 0 is x: mean and variance depend on it, too. Far from 0: take the variance from x - mean, never "
                   "from the mean of x^2";
    check_problem(&problem);
}

/* ---- layer norm ---- */

static void layernorm_reference(const Problem *problem, double *out, double *const *operand)
{
    const int64_t rows = problem->shape[0][0], columns = problem->shape[0][1];
    for (int64_t r = 0; r < rows; r++)
        normalize(out + r * columns, operand[0] + r * columns, columns, 1);
    scale_and_shift(problem, out, operand);
}

static Tensor *layernorm_apply(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    return op_layernorm(tape, operand[0], operand[1], operand[2]);
}

static void check_layernorm(int64_t rows, int64_t n, float scale, float offset)
{
    const Problem problem = {.name = offset != 0 ? "layernorm far from 0" : "layernorm", .reference = layernorm_reference,
                             .apply = layernorm_apply};
    check_norm(problem, rows, n, scale, offset, rows + n);
}

static void test_layernorm(void **state)
{
    check_layernorm(3, 8, 1, 0);
    check_layernorm(1, 17, 1, 0);
    check_layernorm(5, 48, 0.1f, 0);
    check_layernorm(37, 31, 3, 0);
    check_layernorm(0, 8, 1, 0);
    check_layernorm(4, 48, 1, 1000);
}

/* ---- batch norm ---- */

static void batch_norm_reference(const Problem *problem, double *out, double *const *operand)
{
    const int64_t rows = problem->shape[0][0], columns = problem->shape[0][1];
    for (int64_t c = 0; c < columns; c++)
        normalize(out + c, operand[0] + c, rows, columns);
    scale_and_shift(problem, out, operand);
}

static BatchNorm norm; /* only its running statistics, which no result here depends on */

static Tensor *batch_norm_apply(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    return op_batch_norm(tape, operand[0], operand[1], operand[2], &norm.running, NULL);
}

static void check_batch_norm(int64_t rows, int64_t C, float scale, float offset)
{
    const Problem problem = {.name = offset != 0 ? "batch norm far from 0" : "batch norm", .reference = batch_norm_reference,
                             .apply = batch_norm_apply};
    ParameterList parameters = {0};
    norm = batch_norm_create(&parameters, "bn", C);
    check_norm(problem, rows, C, scale, offset, rows);
    parameters_free(&parameters);
}

static void test_batch_norm(void **state)
{
    check_batch_norm(8, 3, 1, 0);
    check_batch_norm(5, 17, 1, 0);
    check_batch_norm(37, 31, 3, 0);
    check_batch_norm(0, 8, 1, 0);
    check_batch_norm(48, 4, 1, 1000);
}

int main(void)
{
    device_init(0, 1);
    return run_cases("norms", cmocka_unit_test(test_layernorm), cmocka_unit_test(test_batch_norm));
}
