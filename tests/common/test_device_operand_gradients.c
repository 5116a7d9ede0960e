/* test_device_operand_gradients.c: device.h's functions that can store a gradient as an operand of matrix products, on
 * the device that this is linked with. Each number must be the float32 gradient, rounded; other tests compare the
 * float32 gradient with float64. */
#include "device_trial.h"

static const DType precisions[] = {DTYPE_BF16, DTYPE_F16};

/* For call(): array i as an operand of n numbers, which must be set. Afterwards finish() shows its numbers there. */
static Gradient start_operand(const Trial *trial, void **array, int i, int64_t n)
{
    return (Gradient){.values = operand_of(array[i], trial->precision, n), .dtype = trial->precision};
}

static void finish(const Trial *trial, void **array, int i, int64_t n, Gradient operand)
{
    numbers_of(array[i], operand.values, trial->precision, n);
    device_free(operand.values);
}

/* The last two arrays of a trial are the gradient in float32, and the same as an operand. */
static void check_operand(Trial *trial, int64_t n)
{
    const int floats = trial->arrays;
    trial_output(trial, "in float32", NULL, n), trial_output(trial, "as an operand", NULL, n);
    trial_run(trial);
    const float *nearest = rounded(trial->array[floats].result, trial->precision, n);
    double *expected = room_for_doubles(n), *exactly = room_for_doubles(n);
    for (int64_t i = 0; i < n; i++)
        expected[i] = (double)nearest[i];
    trial_expect(trial, floats + 1, expected, exactly,
                 "an operand is set, whatever lies there before, and is the gradient in float32, rounded to nearest");
    free_room(NULL);
}

/* ---- a contribution as it is: array 0 is x ---- */

static void call_contribute(const Trial *trial, void **array)
{
    const int64_t n = trial->shape[0];
    const Gradient operand = start_operand(trial, array, 2, n);
    device_contribute((Gradient){.values = array[1]}, array[0], n);
    device_contribute(operand, array[0], n);
    finish(trial, array, 2, n, operand);
}

static void test_contribute(void **state)
{
    const int64_t counts[] = {0, 1, 3, 4, 7, 1000, 5001};
    for (int p = 0; p < 2; p++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            Trial trial = {
                .name = "contribute", .call = call_contribute, .shape = {counts[i]}, .precision = precisions[p]};
            trial_input(&trial, normals(counts[i]), counts[i]);
            check_operand(&trial, counts[i]);
        }
}

/* ---- cross-entropy: arrays 0 to 2 are dloss, the logits, the targets ---- */

static void call_cross_entropy(const Trial *trial, void **array)
{
    const int64_t rows = trial->shape[0], V = trial->shape[1];
    float *loss = device_alloc(sizeof *loss), *row_max = device_alloc((size_t)rows * sizeof *row_max);
    float *row_sum = device_alloc((size_t)rows * sizeof *row_sum);
    const Gradient operand = start_operand(trial, array, 4, rows * V);
    device_cross_entropy_forward(loss, row_max, row_sum, array[1], array[2], rows, V);
    device_cross_entropy_backward((Gradient){.values = array[3]}, array[0], array[1], row_max, row_sum, array[2], rows,
                                  V);
    device_cross_entropy_backward(operand, array[0], array[1], row_max, row_sum, array[2], rows, V);
    finish(trial, array, 4, rows * V, operand);
    device_free(loss);
    device_free(row_max);
    device_free(row_sum);
}

static void test_cross_entropy(void **state)
{
    const int64_t shapes[][2] = {{0, 7}, {1, 1}, {3, 2}, {1, 257}, {31, 33}, {33, 256}, {3, 5003}};
    for (int p = 0; p < 2; p++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            const int64_t rows = shapes[s][0], V = shapes[s][1];
            const float dloss = 64; /* as a loss scale would make it */
            Trial trial = {.name = "cross entropy backward",
                           .call = call_cross_entropy,
                           .shape = {rows, V},
                           .precision = precisions[p]};
            trial_input(&trial, &dloss, 1), trial_input(&trial, normals(rows * V), rows * V);
            int32_t *targets = indices_below((int32_t)V, rows);
            if (rows > 1)
                targets[1] = -1; /* masked */
            trial_input(&trial, targets, rows);
            check_operand(&trial, rows * V);
        }
}

/* ---- attention: arrays 0 and 1 are qkv and dout ---- */

static void call_attention(const Trial *trial, void **array)
{
    const int64_t B = trial->shape[0], T = trial->shape[1], C = trial->shape[2], n = B * T * 3 * C;
    const DType precision = trial->precision;
    const int heads = trial->heads;
    float *saved = device_alloc((size_t)device_attention_saved(B, T, C, heads) * sizeof *saved);
    float *scratch = device_alloc((size_t)device_attention_scratch(B, T, C, heads) * sizeof *scratch);
    void *out = device_alloc(device_rounded_bytes(precision, B * T * C));
    const Gradient operand = start_operand(trial, array, 3, n), floats = {.values = array[2]};
    device_attention_forward(out, saved, array[0], B, T, C, heads, precision);
    device_attention_backward(floats, scratch, array[1], array[0], out, saved, B, T, C, heads, precision);
    device_attention_backward(operand, scratch, array[1], array[0], out, saved, B, T, C, heads, precision);
    finish(trial, array, 3, n, operand);
    device_free(saved);
    device_free(scratch);
    device_free(out);
}

/* Widths that are odd, and that fill or do not fill a GPU's tile; so are the numbers of rows. */
static void test_attention(void **state)
{
    const struct {
        int64_t B, T, width;
        int heads;
    } shapes[] = {{0, 5, 8, 2},  {1, 1, 1, 1},   {2, 3, 5, 3},    {1, 31, 16, 3}, {2, 33, 20, 2},
                  {1, 64, 64, 2}, {1, 65, 33, 1}, {1, 130, 80, 1}, {2, 50, 128, 1}};
    for (int p = 0; p < 2; p++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            const int64_t B = shapes[s].B, T = shapes[s].T, C = shapes[s].heads * shapes[s].width;
            Trial trial = {.name = "attention backward",
                           .call = call_attention,
                           .shape = {B, T, C},
                           .heads = shapes[s].heads,
                           .precision = precisions[p]};
            trial_input(&trial, normals(B * T * 3 * C), B * T * 3 * C);
            trial_input(&trial, normals(B * T * C), B * T * C);
            check_operand(&trial, B * T * 3 * C);
        }
}

int main(void)
{
    device_init(0, 1);
    return run_cases("device_operand_gradients", cmocka_unit_test_teardown(test_contribute, free_room),
                     cmocka_unit_test_teardown(test_cross_entropy, free_room),
                     cmocka_unit_test_teardown(test_attention, free_room));
}
