/* test_fusions.c: fused operations are right (against float64 and its numerical derivative, see gradient_check.h), and
 * give the same bits as the two operations that they join, forward and backward. Also: gradients whose memory moves,
 * and gradients to which one operation contributes several times. */
#include <math.h>

#include "device/device.h"
#include "expect.h"
#include "gpu/fused_ops.h"
#include "gradient_check.h"

typedef Tensor *(*Apply)(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed);

/* Runs the problem as it is and with `unfused`, for every choice of operands that need a gradient. */
static void expect_same_bits_in(DType precision, Problem problem, Apply unfused)
{
    const char *hint = "the fused operation must round where the two operations round, and add in their order";
    Draw drawn = draw(&problem);
    problem.precision = precision;
    for (unsigned needs = 1; needs < 1u << problem.operands; needs++) {
        for (int uses = 1; uses <= 2; uses++) {
            Problem two = problem;
            two.apply = unfused;
            Result got = run(&problem, &drawn, needs, uses, 0), expected = run(&two, &drawn, needs, uses, 0);
            if (problem.outputs > 0)
                expect_bits_equal(label(&problem, "result", -1), got.out, expected.out, problem.outputs, hint);
            for (int k = 0; k < problem.operands; k++) {
                assert_int_equal(got.gradient[k] != NULL, expected.gradient[k] != NULL);
                if (got.gradient[k] != NULL && operand_count(&problem, k) > 0)
                    expect_bits_equal(label(&problem, "gradient of operand", k), got.gradient[k], expected.gradient[k],
                                      operand_count(&problem, k), hint);
            }
            result_free(&got);
            result_free(&expected);
        }
    }
    draw_free(&drawn);
}

static void expect_same_bits(Problem problem, Apply unfused)
{
    expect_same_bits_in(DTYPE_F32, problem, unfused);
    expect_same_bits_in(DTYPE_BF16, problem, unfused);
    expect_same_bits_in(DTYPE_F16, problem, unfused);
}

/* x as an operand of the next product, which multiplies it by 1. */
static Tensor *times_one(Tape *tape, Tensor *x)
{
    const int64_t n = tensor_last(x);
    float *one = tape_floats(tape, n * n);
    device_fill(one, 0, n * n);
    for (int64_t i = 0; i < n; i++)
        device_fill(one + i * n + i, 1, 1);
    return op_linear(tape, x, tape_input(tape, one, DTYPE_F32, 2, (int64_t[]){n, n}), NULL);
}

/* ---- linear and gelu: operand 0 is x, 1 the weight, 2 the bias ---- */

static void linear_gelu_reference(const Problem *problem, double *out, double *const *operand)
{
    int64_t rows = problem->shape[0][0], n_in = problem->shape[0][1], n_out = problem->shape[1][0];
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t o = 0; o < n_out; o++) {
            double x = operand[2][o];
            for (int64_t i = 0; i < n_in; i++)
                x += operand[0][r * n_in + i] * operand[1][o * n_in + i];
            out[r * n_out + o] = 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
        }
    }
}

static Tensor *apply_linear_gelu(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    return times_one(tape, op_linear_gelu(tape, operand[0], operand[1], operand[2]));
}

static Tensor *apply_linear_then_gelu(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    return times_one(tape, op_gelu(tape, op_linear(tape, operand[0], operand[1], operand[2])));
}

static void test_linear_gelu(void **state)
{
    const int64_t shapes[][3] = {{5, 7, 3}, {1, 1, 1}, {1, 33, 17}, {16, 32, 48}, {19, 10, 21}, {0, 7, 3}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        int64_t rows = shapes[s][0], n_in = shapes[s][1], n_out = shapes[s][2];
        Problem problem = {.name = "linear-gelu",
                           .operands = 3,
                           .scale = 1,
                           .shape = {{rows, n_in, -1}, {n_out, n_in, -1}, {n_out, -1, -1}},
                           .outputs = rows * n_out,
                           .reference = linear_gelu_reference,
                           .apply = apply_linear_gelu,
                           .chain = (double)(rows + n_in + n_out) + 40,
                           .hint = "gelu(x weight^T + bias): the bias belongs inside, in backward as well"};
        check_problem(&problem);
        expect_same_bits(problem, apply_linear_then_gelu);
    }
}

/* ---- add and layernorm: operands 0 and 1 are added, 2 is the weight, 3 the bias. A block uses both results, the
 * residual stream and its layernorm, so their sum is compared. ---- */

static void add_layernorm_reference(const Problem *problem, double *out, double *const *operand)
{
    int64_t rows = problem->shape[0][0], n = problem->shape[0][1];
    for (int64_t r = 0; r < rows; r++) {
        double *x = out + r * n, mean = 0, variance = 0;
        for (int64_t i = 0; i < n; i++) {
            x[i] = operand[0][r * n + i] + operand[1][r * n + i];
            mean += x[i] / (double)n;
        }
        for (int64_t i = 0; i < n; i++)
            variance += (x[i] - mean) * (x[i] - mean) / (double)n;
        for (int64_t i = 0; i < n; i++)
            x[i] += (x[i] - mean) / sqrt(variance + 1e-5) * operand[2][i] + operand[3][i];
    }
}

static Tensor *apply_add_layernorm(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    Tensor *sum = NULL, *normalized = op_add_layernorm(tape, operand[0], operand[1], operand[2], operand[3], &sum);
    return op_add(tape, times_one(tape, normalized), sum);
}

static Tensor *apply_add_then_layernorm(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    Tensor *sum = op_add(tape, operand[0], operand[1]);
    return op_add(tape, times_one(tape, op_layernorm(tape, sum, operand[2], operand[3])), sum);
}

static void test_add_layernorm(void **state)
{
    const int64_t shapes[][2] = {{3, 8}, {1, 17}, {5, 48}, {37, 31}, {0, 8}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        int64_t rows = shapes[s][0], n = shapes[s][1];
        Problem problem = {.name = "add-layernorm",
                           .operands = 4,
                           .scale = 1,
                           .shape = {{rows, n, -1}, {rows, n, -1}, {n, -1, -1}, {n, -1, -1}},
                           .outputs = rows * n,
                           .reference = add_layernorm_reference,
                           .apply = apply_add_layernorm,
                           .chain = (double)(rows + n) + 30,
                           .hint = "the sum has two uses, itself and its layernorm: both add to its gradient"};
        check_problem(&problem);
        expect_same_bits(problem, apply_add_then_layernorm);
    }
}

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
    return run_cases("fusions", cmocka_unit_test(test_linear_gelu), cmocka_unit_test(test_add_layernorm),
                     cmocka_unit_test(test_gradients_move), cmocka_unit_test(test_one_tensor_several_times));
}
