/* test_device_linear.c: device.h's operands and linear against float64, on the device that this is linked with.
 * device_trial.h says what bounds mean. */
#include "device_trial.h"

/* rows, n_in, n_out: shape[0], [1], [2]. */
static int64_t x_count(const Trial *trial)
{
    return trial->shape[0] * trial->shape[1];
}

static int64_t weight_count(const Trial *trial)
{
    return trial->shape[1] * trial->shape[2];
}

static int64_t out_count(const Trial *trial)
{
    return trial->shape[0] * trial->shape[2];
}

static void call_linear(const Trial *trial, void **array)
{
    void *x = operand_of(array[0], trial->precision, x_count(trial));
    void *weight = operand_of(array[1], trial->precision, weight_count(trial));
    device_linear_forward(array[3], x, weight, array[2], trial->shape[0], trial->shape[1], trial->shape[2],
                          trial->precision);
    device_free(x);
    device_free(weight);
}

static void call_linear_backward(const Trial *trial, void **array)
{
    void *x = operand_of(array[0], trial->precision, x_count(trial));
    void *weight = operand_of(array[1], trial->precision, weight_count(trial));
    void *dout = operand_of(array[2], trial->precision, out_count(trial));
    device_linear_backward(trial_gradient(trial, array, 3), trial_gradient(trial, array, 4),
                           trial_gradient(trial, array, 5), dout, x, weight, trial->shape[0], trial->shape[1],
                           trial->shape[2], trial->precision);
    device_free(x);
    device_free(weight);
    device_free(dout);
}

/* c (m, n) += a b, both given by functions of strides: element (i, k) of a is a[i * a_row + k * a_column]. size: the
 * same with all numbers made positive. */
typedef struct Matrix {
    const float *values; /* NULL: ones */
    int64_t row, column; /* from one row, one column to the next */
} Matrix;

static double element(Matrix matrix, int64_t i, int64_t k)
{
    return matrix.values == NULL ? 1 : (double)matrix.values[i * matrix.row + k * matrix.column];
}

/* bound: each of the products is rounded once, and so is each addition, that of the start included. */
static void add_product(double *c, double *bound, Matrix a, Matrix b, const float *start, int64_t m, int64_t n,
                        int64_t k)
{
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = start != NULL ? (double)start[i * n + j] : 0, size = fabs(sum);
            for (int64_t l = 0; l < k; l++) {
                const double product = element(a, i, l) * element(b, l, j);
                sum += product;
                size += fabs(product);
            }
            c[i * n + j] = sum;
            bound[i * n + j] = (double)(k + 2) * U * size;
        }
    }
}

static const char *linear_hint(DType precision)
{
    return precision == DTYPE_F32
               ? "out = x weight^T + bias, weight is (n_out, n_in); is a matrix transposed, or is float32 "
                 "multiplied in less (TF32)?"
               : "x, weight and dout are rounded, and nothing else is: products are summed in float32";
}

static void check_linear(int64_t rows, int64_t n_in, int64_t n_out, bool with_bias, DType precision)
{
    Trial trial = {.name = "linear", .call = call_linear, .shape = {rows, n_in, n_out}, .precision = precision};
    const float *x = normals(rows * n_in), *weight = normals(n_in * n_out), *bias = normals(n_out);
    float *start = room_for_floats(rows * n_out); /* each row starts with the bias */
    for (int64_t i = 0; i < rows * n_out && with_bias; i++)
        start[i] = bias[i % n_out];
    trial_input(&trial, x, rows * n_in);
    trial_input(&trial, weight, n_in * n_out);
    if (with_bias)
        trial_input(&trial, bias, n_out);
    else
        trial_null(&trial);
    trial_output(&trial, "out", NULL, rows * n_out);
    trial_run(&trial);
    double *out = room_for_doubles(rows * n_out), *bound = room_for_doubles(rows * n_out);
    add_product(out, bound, (Matrix){rounded(x, precision, rows * n_in), n_in, 1},
                (Matrix){rounded(weight, precision, n_in * n_out), 1, n_in}, start, rows, n_out, n_in);
    trial_expect(&trial, 3, out, bound, linear_hint(precision));
}

/* wanted: bit 0 for dx, 1 for dweight, 2 for dbias. The others are NULL. added: the same bits; contributions of the
 * others are first ones, which are set. */
static void check_linear_backward(int64_t rows, int64_t n_in, int64_t n_out, unsigned wanted, unsigned added,
                                  DType precision)
{
    Trial trial = {
        .name = "linear backward", .call = call_linear_backward, .shape = {rows, n_in, n_out}, .precision = precision};
    const float *x = normals(rows * n_in), *weight = normals(n_in * n_out), *dout = normals(rows * n_out);
    const char *names[] = {"dx", "dweight", "dbias"};
    const int64_t counts[] = {rows * n_in, n_in * n_out, n_out};
    float *starts[3];
    trial_input(&trial, x, rows * n_in);
    trial_input(&trial, weight, n_in * n_out);
    trial_input(&trial, dout, rows * n_out);
    for (int i = 0; i < 3; i++) {
        starts[i] = added >> i & 1 ? normals(counts[i]) : NULL;
        if (wanted >> i & 1)
            trial_output(&trial, names[i], starts[i], counts[i]);
        else
            trial_null(&trial);
    }
    trial_run(&trial);

    const float *d = rounded(dout, precision, rows * n_out);
    double *expected[3], *bound[3];
    for (int i = 0; i < 3; i++) {
        expected[i] = room_for_doubles(counts[i]);
        bound[i] = room_for_doubles(counts[i]);
    }
    add_product(expected[0], bound[0], (Matrix){d, n_out, 1},
                (Matrix){rounded(weight, precision, n_in * n_out), n_in, 1}, starts[0], rows, n_in, n_out);
    add_product(expected[1], bound[1], (Matrix){d, 1, n_out}, (Matrix){rounded(x, precision, rows * n_in), n_in, 1},
                starts[1], n_out, n_in, rows);
    add_product(expected[2], bound[2], (Matrix){NULL, 0, 0}, (Matrix){d, n_out, 1}, starts[2], 1, n_out, rows);
    for (int i = 0; i < 3; i++)
        if (wanted >> i & 1)
            trial_expect(&trial, 3 + i, expected[i], bound[i], linear_hint(precision));
}

/* rows, n_in, n_out. Zeros: a product without terms is 0, and leaves the bias; a gradient without rows stays as it
 * is, or is 0 if this is its first contribution. */
static const int64_t linear_shapes[][3] = {{1, 1, 1},     {3, 5, 2},    {31, 33, 17}, {33, 1, 257}, {257, 20, 1},
                                           {129, 64, 65}, {300, 7, 40}, {0, 7, 3},    {5, 0, 3},    {5, 7, 0}};

static void test_linear(void **state)
{
    const DType precisions[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (size_t s = 0; s < sizeof linear_shapes / sizeof *linear_shapes; s++) {
        const int64_t rows = linear_shapes[s][0], n_in = linear_shapes[s][1], n_out = linear_shapes[s][2];
        for (int p = 0; p < 3; p++) {
            check_linear(rows, n_in, n_out, true, precisions[p]);
            check_linear(rows, n_in, n_out, false, precisions[p]);
            check_linear_backward(rows, n_in, n_out, 7, 7, precisions[p]);
            check_linear_backward(rows, n_in, n_out, 7, 0, precisions[p]);
        }
        free_room(NULL);
    }
    for (unsigned wanted = 0; wanted < 8; wanted++)
        check_linear_backward(33, 20, 31, wanted, 5 * wanted, wanted % 2 ? DTYPE_F32 : DTYPE_BF16);
}

/* The relative error, as a root of sums of squares, of a trial's last array. Errors of both signs cancel, so for
 * products of 1024 numbers it is about 2^-20 in float32 and 2^-12 in TF32. */
static double relative_error(const Trial *trial, const double *expected)
{
    const TrialArray *array = &trial->array[trial->arrays - 1];
    double squares_off = 0, squares = 0;
    for (int64_t i = 0; i < array->count; i++) {
        const double off = (double)array->result[i] - expected[i];
        squares_off += off * off;
        squares += expected[i] * expected[i];
    }
    return sqrt(squares_off / squares);
}

/* TF32 keeps 11 significant bits: the relative error of a factor is 2^-11 if it is rounded, 2^-10 if it is truncated.
 * It has an effect on CUDA only, until it is forbidden again. It is only a permission: cuBLAS still multiplies small
 * matrices in float32. On an H100 (CUDA 12.8) it uses TF32 if both sides of the weight are 512 or more, according to
 * PyTorch's pull request 183355. */
static void test_tf32(void **state)
{
    const int64_t rows = 64, n = 1024, count = rows * n;
    const bool cuda = device_kind() == DEVICE_CUDA;
    Trial trial = {.name = "linear, TF32 allowed", .call = call_linear, .shape = {rows, n, n}, .precision = DTYPE_F32};
    const float *x = normals(count), *weight = normals(n * n);
    trial_input(&trial, x, count);
    trial_input(&trial, weight, n * n);
    trial_null(&trial);
    trial_output(&trial, "out", NULL, count);
    device_allow_tf32(true);
    trial_run(&trial);

    double *out = room_for_doubles(count), *bound = room_for_doubles(count), *tf32_bound = room_for_doubles(count);
    add_product(out, bound, (Matrix){x, n, 1}, (Matrix){weight, 1, n}, NULL, rows, n, n);
    for (int64_t i = 0; i < count; i++)
        tf32_bound[i] = bound[i] * (1 + (2 * 0x1p-10 + 0x1p-20) / ((double)(n + 2) * U));
    trial_expect(&trial, 3, out, cuda ? tf32_bound : bound, "are more than the 13 bits lost that TF32 leaves out?");
    if (cuda && relative_error(&trial, out) < 0x1p-16)
        fail_msg("TF32 is allowed, but all is as exact as float32 is: is cuBLAS asked for another compute type? (Or "
                 "does the environment say NVIDIA_TF32_OVERRIDE=0, or does cuBLAS prefer float32 at this size?)");

    device_allow_tf32(false);
    trial.name = "linear, TF32 forbidden again";
    trial_run(&trial);
    trial_expect(&trial, 3, out, bound, "float32 is to mean float32 again");
    if (relative_error(&trial, out) > 0x1p-16)
        fail_msg("TF32 is forbidden again, but the product is off by %.3g of itself, as TF32's is; float32's would be "
                 "some 1e-6: does device_allow_tf32(false) do anything?",
                 relative_error(&trial, out));
}

static void test_operand_bytes(void **state)
{
    const DType precisions[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (int p = 0; p < 3; p++) {
        assert_int_equal(device_rounded_bytes(precisions[p], 0), 0);
        assert_true(device_rounded_bytes(precisions[p], 33) >= 33 * (p == 0 ? 4u : 2u));
        device_free(operand_of(NULL, precisions[p], 0));
    }
}

int main(void)
{
    device_init(0, 1);
    return run_cases("device_linear", cmocka_unit_test_teardown(test_operand_bytes, free_room),
                     cmocka_unit_test_teardown(test_linear, free_room),
                     cmocka_unit_test_teardown(test_tf32, free_room));
}
