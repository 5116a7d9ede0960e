/* test_ops.c: every operation of autograd/ops.h against its formula in float64 and that formula's numerical
 * derivative (gradient_check.h says how). Above each group of tests stands the formula. (Losses: test_losses.c; norms:
 * test_norms.c.) */
#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "device/device.h"
#include "expect.h"
#include "gradient_check.h"

/* ---- linear ---- */

static void linear_reference(const Problem *problem, double *out, double *const *operand)
{
    int64_t rows = problem->shape[0][0], n_in = problem->shape[0][1], n_out = problem->shape[1][0];
    const double *x = operand[0], *weight = operand[1];
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t o = 0; o < n_out; o++) {
            double sum = problem->operands == 3 ? operand[2][o] : 0;
            for (int64_t i = 0; i < n_in; i++)
                sum += x[r * n_in + i] * weight[o * n_in + i];
            out[r * n_out + o] = sum;
        }
    }
}

static Tensor *linear_apply(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    return op_linear(tape, operand[0], operand[1], problem->operands == 3 ? operand[2] : NULL);
}

static void check_linear(int64_t rows, int64_t n_in, int64_t n_out, bool bias)
{
    check_problem(&(Problem){.name = bias ? "linear" : "linear without bias",
                             .operands = bias ? 3 : 2,
                             .scale = 1,
                             .shape = {{rows, n_in, -1}, {n_out, n_in, -1}, {n_out, -1, -1}},
                             .outputs = rows * n_out,
                             .reference = linear_reference,
                             .apply = linear_apply,
                             .chain = (double)(rows + n_in + n_out),
                             .hint = "operand 0 is x, 1 the weight (out, in), 2 the bias; is a matrix transposed?"});
}

static void test_linear(void **state)
{
    check_linear(5, 7, 3, true);
    check_linear(1, 1, 1, true);
    check_linear(1, 33, 17, true);
    check_linear(16, 32, 48, true);
    check_linear(19, 10, 21, false);
    check_linear(0, 7, 3, true);
    check_linear(0, 7, 3, false);
}

/* ---- element-wise ---- */

static void relu_reference(const Problem *problem, double *out, double *const *operand)
{
    for (int64_t i = 0; i < problem->outputs; i++)
        out[i] = operand[0][i] > 0 ? operand[0][i] : 0;
}

static Tensor *relu_apply(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    return op_relu(tape, operand[0]);
}

static void gelu_reference(const Problem *problem, double *out, double *const *operand)
{
    for (int64_t i = 0; i < problem->outputs; i++) {
        double x = operand[0][i];
        out[i] = 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    }
}

static Tensor *gelu_apply(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    return op_gelu(tape, operand[0]);
}

static void add_reference(const Problem *problem, double *out, double *const *operand)
{
    for (int64_t i = 0; i < problem->outputs; i++)
        out[i] = operand[0][i] + operand[1][i];
}

static Tensor *add_apply(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    return op_add(tape, operand[0], operand[1]);
}

/* The shapes that vector code gets wrong: less than a register, a register, one more, none at all. */
static const int64_t element_shapes[][2] = {{1, 1}, {1, 16}, {1, 17}, {3, 5}, {7, 37}, {0, 5}};
#define ELEMENT_SHAPES (sizeof element_shapes / sizeof *element_shapes)

static void check_element_wise(Problem problem)
{
    for (size_t i = 0; i < ELEMENT_SHAPES; i++) {
        int64_t rows = element_shapes[i][0], columns = element_shapes[i][1];
        for (int k = 0; k < problem.operands; k++) {
            problem.shape[k][0] = rows;
            problem.shape[k][1] = columns;
            problem.shape[k][2] = -1;
        }
        problem.outputs = rows * columns;
        check_problem(&problem);
    }
}

static void test_relu(void **state)
{
    check_element_wise((Problem){.name = "relu",
                                 .operands = 1,
                                 .scale = 1,
                                 .reference = relu_reference,
                                 .apply = relu_apply,
                                 .chain = 2,
                                 .hint = "the gradient passes where x > 0"});
}

static void test_gelu(void **state)
{
    const char *hint = "GPT-2's GELU is the tanh form; its derivative has two terms";
    check_element_wise((Problem){.name = "gelu",
                                 .operands = 1,
                                 .scale = 1,
                                 .reference = gelu_reference,
                                 .apply = gelu_apply,
                                 .chain = 16,
                                 .hint = hint});
    /* For large numbers tanh is 1 or -1: an exp() that overflows would turn it into NaN. */
    check_element_wise((Problem){.name = "gelu of large numbers",
                                 .operands = 1,
                                 .scale = 100,
                                 .reference = gelu_reference,
                                 .apply = gelu_apply,
                                 .chain = 16,
                                 .hint = hint});
}

static void test_add(void **state)
{
    check_element_wise((Problem){.name = "add",
                                 .operands = 2,
                                 .scale = 1,
                                 .reference = add_reference,
                                 .apply = add_apply,
                                 .chain = 2,
                                 .hint = "both operands get the whole gradient"});
}

/* At 0 ReLU passes no gradient, as in PyTorch: dead units do not change. */
static void test_relu_at_zero(void **state)
{
    Problem problem = {.name = "relu of zero", .operands = 1, .shape = {{1, 2, -1}}, .outputs = 2, .apply = relu_apply};
    float zeros[2] = {0.0f, -0.0f}, direction[2] = {1, 1};
    Result result = run(&problem, &(Draw){.values = {zeros}, .direction = direction}, 1, 1, 0);
    expect_close("relu at 0: gradient", result.gradient[0], (float[]){0, 0}, 2, 0, 0, "x > 0, not x >= 0");
    result_free(&result);
}

/* ---- embedding: operand 0 is the token table, 1 the position table ---- */

static void embedding_reference(const Problem *problem, double *out, double *const *operand)
{
    const int32_t *tokens = problem->fixed;
    int64_t C = problem->shape[0][1], T = problem->heads; /* `heads` carries T here */
    for (int64_t i = 0; i < problem->fixed_count; i++)
        for (int64_t c = 0; c < C; c++)
            out[i * C + c] = operand[0][tokens[i] * C + c] + operand[1][i % T * C + c];
}

static Tensor *embedding_apply(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    int64_t T = problem->heads; /* see above */
    return op_embedding(tape, fixed, problem->fixed_count / T, T, operand[0], operand[1]);
}

static void check_embedding(int64_t B, int64_t T, int64_t C, int64_t tokens, int64_t positions)
{
    int32_t *drawn = draw_indices(B * T, (uint64_t)tokens);
    check_problem(&(Problem){.name = "embedding",
                             .operands = 2,
                             .scale = 1,
                             .heads = (int)T,
                             .fixed = drawn,
                             .shape = {{tokens, C, -1}, {positions, C, -1}},
                             .fixed_count = B * T,
                             .outputs = B * T * C,
                             .reference = embedding_reference,
                             .apply = embedding_apply,
                             .chain = (double)(B * T),
                             .hint = "a token that occurs twice gets two contributions"});
    free(drawn);
}

static void test_embedding(void **state)
{
    check_embedding(2, 5, 7, 4, 5);   /* fewer tokens than places: some occur several times */
    check_embedding(3, 6, 16, 50, 9); /* more tokens: some rows of both tables get no contribution */
    check_embedding(1, 1, 33, 2, 1);
    check_embedding(0, 5, 7, 4, 5);
}

/* ---- attention: operand 0 is (B, T, 3C), query, key and value side by side ---- */

/* One head of one sample. q, k and v are the first row's; the next row lies 3C further. out: rows of C. */
static void attend(double *out, const double *q, const double *k, const double *v, int64_t T, int64_t C, int64_t size)
{
    double *weight = alloc_or_fault((size_t)T * sizeof *weight);
    for (int64_t t = 0; t < T; t++) {
        double total = 0;
        for (int64_t past = 0; past <= t; past++) {
            double score = 0;
            for (int64_t i = 0; i < size; i++)
                score += q[t * 3 * C + i] * k[past * 3 * C + i];
            weight[past] = exp(score / sqrt((double)size));
            total += weight[past];
        }
        for (int64_t i = 0; i < size; i++) {
            out[t * C + i] = 0;
            for (int64_t past = 0; past <= t; past++)
                out[t * C + i] += weight[past] / total * v[past * 3 * C + i];
        }
    }
    free(weight);
}

static void attention_reference(const Problem *problem, double *out, double *const *operand)
{
    int64_t B = problem->shape[0][0], T = problem->shape[0][1], C = problem->shape[0][2] / 3;
    int64_t size = C / problem->heads;
    for (int64_t b = 0; b < B; b++) {
        for (int64_t head = 0; head < problem->heads; head++) {
            const double *q = operand[0] + b * T * 3 * C + head * size;
            attend(out + b * T * C + head * size, q, q + C, q + 2 * C, T, C, size);
        }
    }
}

static Tensor *attention_apply(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    return op_attention(tape, operand[0], problem->heads);
}

/* Large scores make exp() overflow in float32, unless the row's maximum is taken off first. */
static void check_attention(int64_t B, int64_t T, int64_t C, int heads, float scale)
{
    check_problem(&(Problem){.name = scale > 1 ? "attention, large scores" : "attention",
                             .operands = 1,
                             .scale = scale,
                             .shape = {{B, T, 3 * C}},
                             .outputs = B * T * C,
                             .heads = heads,
                             .reference = attention_reference,
                             .apply = attention_apply,
                             .chain = (double)(C / heads + 2 * T) + 20 + 4 * (double)(scale * scale),
                             .hint = "causal mask, the factor 1/sqrt(head width), heads side by side in a row"});
}

static void test_attention(void **state)
{
    check_attention(2, 5, 6, 2, 1);
    check_attention(1, 1, 4, 1, 1);
    check_attention(1, 17, 12, 3, 1);
    check_attention(3, 4, 16, 1, 1);
    check_attention(1, 9, 20, 4, 6);
    check_attention(1, 70, 4, 2, 1); /* long: kernels that take the rows in blocks need more than one */
    check_attention(0, 5, 6, 2, 1);
}

static float place[4];

static void place_gradient(void *listener, Parameter *parameter)
{
    parameter->tensor.grad = place;
}

/* The first summand's gradient takes over the memory of the sum's (note: moved-gradient), if it has no contribution yet
 * (otherwise: test_contributions.c). But a parameter's gradient lies where the listener says. */
static void test_a_summand_takes_over_the_gradient(void **state)
{
    float ones[4] = {1, 1, 1, 1}, zeros[4] = {0};
    ParameterList parameters = {0};
    Parameter *x = parameters_add(&parameters, "x", 1, (int64_t[]){4}); /* zeros */
    Tape tape = {.listener = {.gradient_needed = place_gradient}};
    tape_begin(&tape, true);
    Tensor *b = tape_input(&tape, ones, DTYPE_F32, 1, (int64_t[]){4});
    Tensor *inner = op_add(&tape, &x->tensor, b), *outer = op_add(&tape, inner, b);
    tape_backward(&tape, op_mse(&tape, outer, zeros), 1);
    assert_ptr_equal(inner->grad, outer->grad);
    assert_ptr_equal(x->tensor.grad, place);
    expect_bits_equal("the gradient of x", place, ones, 4, "per element, 2 * 2 / 4");
    tape_free(&tape);
    parameters_free(&parameters);
}

int main(void)
{
    device_init(0, 1);
    return run_cases("ops", cmocka_unit_test(test_linear), cmocka_unit_test(test_relu),
                     cmocka_unit_test(test_relu_at_zero), cmocka_unit_test(test_gelu), cmocka_unit_test(test_add),
                     cmocka_unit_test(test_embedding), cmocka_unit_test(test_attention),
                     cmocka_unit_test(test_a_summand_takes_over_the_gradient));
}
