/* test_precision.c: what matrix products in bf16 and f16 mean: operands rounded, sums in float32. */
#include <math.h>
#include <stdlib.h>

#include "device/device.h"
#include "expect.h"
#include "gradient_check.h"

static Tensor *apply_linear(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    (void)problem, (void)fixed;
    return op_linear(tape, operand[0], operand[1], operand[2]);
}

static Tensor *apply_attention(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed)
{
    (void)fixed;
    return op_attention(tape, operand[0], problem->heads);
}

static void round_on_device(float *values, DType precision, int64_t count)
{
    float *memory = device_alloc((size_t)count * sizeof *memory);
    device_from_host(memory, values, (size_t)count * sizeof *memory);
    device_round(memory, memory, precision, count);
    device_to_host(values, memory, (size_t)count * sizeof *memory);
    device_free(memory);
}

/* A linear layer in half precision is one in float32 whose operands were rounded before: x, the weight, and the
 * gradient from above. Products are summed in float32, the bias stays what it is. */
static void check_linear_in(DType precision, double unit)
{
    Problem problem = {.name = dtype_name(precision),
                       .operands = 3,
                       .shape = {{9, 20, -1}, {6, 20, -1}, {6, -1, -1}},
                       .outputs = 54,
                       .scale = 1,
                       .apply = apply_linear,
                       .chain = 29};
    Draw drawn = draw(&problem);
    Result full = run(&problem, &drawn, 7, 1, 0);
    problem.precision = precision;
    Result half = run(&problem, &drawn, 7, 1, 0);
    problem.precision = DTYPE_F32;
    round_on_device(drawn.values[0], precision, 180);
    round_on_device(drawn.values[1], precision, 120);
    round_on_device(drawn.direction, precision, 54);
    Result rounded = run(&problem, &drawn, 7, 1, 0);

    const char *hint = "are x, weight and the incoming gradient all rounded, and nothing else?";
    compare(&problem, label(&problem, "result", -1), half.out, rounded.out, 54, hint);
    for (int k = 0; k < 2; k++)
        compare(&problem, label(&problem, "gradient of operand", k), half.gradient[k], rounded.gradient[k],
                operand_count(&problem, k), hint);
    expect_close(label(&problem, "gradient of operand", 2), half.gradient[2], full.gradient[2], 6, 54 * unit, 0, hint);
    double largest = 0;
    for (int i = 0; i < 54; i++)
        largest = fmax(largest, fabs((double)(half.out[i] - full.out[i])));
    assert_true(largest > unit / 8); /* else nothing was rounded at all */
    result_free(&full);
    result_free(&half);
    result_free(&rounded);
    draw_free(&drawn);
}

static void test_linear_in_half_precision(void **state)
{
    (void)state;
    check_linear_in(DTYPE_BF16, 0x1p-8);
    check_linear_in(DTYPE_F16, 0x1p-11);
}

/* Attention may round at more than one place: only the size of the difference is promised. */
static void test_attention_in_half_precision(void **state)
{
    (void)state;
    Problem problem = {.name = "attention in bf16",
                       .operands = 1,
                       .shape = {{2, 5, 24}},
                       .outputs = 80,
                       .scale = 1,
                       .heads = 2,
                       .apply = apply_attention};
    Draw drawn = draw(&problem);
    Result full = run(&problem, &drawn, 1, 1, 0);
    problem.precision = DTYPE_BF16;
    Result half = run(&problem, &drawn, 1, 1, 0);
    const char *hint = "bfloat16 is good to 2^-9 of each operand; far more is a mistake";
    expect_close("attention in bf16: result", half.out, full.out, 80, 0.03, 0.03, hint);
    expect_close("attention in bf16: gradient", half.gradient[0], full.gradient[0], 240, 0.06, 0.03, hint);
    assert_memory_not_equal(half.out, full.out, 80 * sizeof(float));
    result_free(&full);
    result_free(&half);
    draw_free(&drawn);
}

int main(void)
{
    device_init(0, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_in_half_precision),
        cmocka_unit_test(test_attention_in_half_precision),
    };
    return cmocka_run_group_tests_name("precision", tests, NULL, NULL);
}
