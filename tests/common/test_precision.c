/* test_precision.c: which operations' results and gradients are stored as operands of matrix products in bf16 and f16.
 * (The products: operations_layers.c.) */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/ops.h"
#include "autograd/rounding.h"
#include "base/check.h"
#include "base/rng.h"
#include "device/device.h"
#include "expect.h"

static void round_on_device(float *values, DType precision, int64_t count)
{
    float *memory = device_alloc((size_t)count * sizeof *memory);
    device_from_host(memory, values, (size_t)count * sizeof *memory);
    device_round(memory, memory, precision, count);
    device_to_host(values, memory, (size_t)count * sizeof *memory);
    device_free(memory);
}

/* The numbers of a tensor on the host, whatever format the device keeps them in; free() them. */
static float *numbers_of_tensor(const Tensor *tensor)
{
    const size_t count = (size_t)tensor_count(tensor);
    float *numbers = device_alloc(count * sizeof *numbers), *host = alloc_or_fault(count * sizeof *host);
    if (tensor->dtype == DTYPE_F32 || device_rounded_bytes(tensor->dtype, 1) == sizeof(float))
        device_copy(numbers, tensor->data, count * sizeof *numbers);
    else
        device_from_half(numbers, tensor->data, tensor->dtype, (int64_t)count);
    device_to_host(host, numbers, count * sizeof *host);
    device_free(numbers);
    return host;
}

/* ---- results that are operands ---- */

enum { ROWS = 4, WIDTH = 6 };

/* Inputs for every operation, without gradients: there is no backward pass here. */
typedef struct Setting {
    Tape tape;
    Tensor *x, *matrix, *vector; /* (1, ROWS, WIDTH), (WIDTH, WIDTH), (WIDTH) */
    Tensor *operand;             /* (1, ROWS, WIDTH), of attention, which has rounded it */
} Setting;

static Tensor *normal_tensor(Tape *tape, int ndim, const int64_t *shape, uint64_t seed)
{
    Tensor *tensor = tape_tensor(tape, ndim, shape, false);
    float *values = alloc_or_fault((size_t)tensor_count(tensor) * sizeof *values);
    Rng rng;
    rng_seed(&rng, seed);
    for (int64_t i = 0; i < tensor_count(tensor); i++)
        values[i] = rng_normal(&rng);
    device_from_host(tensor->data, values, (size_t)tensor_count(tensor) * sizeof *values);
    free(values);
    return tensor;
}

static void setting_create(Setting *setting, DType precision)
{
    *setting = (Setting){.tape = {.precision = precision}};
    Tape *tape = &setting->tape;
    tape_begin(tape, true);
    setting->x = normal_tensor(tape, 3, (int64_t[]){1, ROWS, WIDTH}, 1);
    setting->matrix = normal_tensor(tape, 2, (int64_t[]){WIDTH, WIDTH}, 2);
    setting->vector = normal_tensor(tape, 1, (int64_t[]){WIDTH}, 3);
    setting->operand = op_attention(tape, normal_tensor(tape, 3, (int64_t[]){1, ROWS, 3 * WIDTH}, 4), 1);
}

static void check_operand(const Tensor *tensor, DType precision, const char *name)
{
    if (tensor->dtype != precision)
        fail_msg("%s under %s: the result is %s", name, dtype_name(precision), dtype_name(tensor->dtype));
    float *values = numbers_of_tensor(tensor), *nearest = numbers_of_tensor(tensor);
    round_on_device(nearest, precision, tensor_count(tensor));
    expect_bits_equal(name, values, nearest, tensor_count(tensor), "an operand's numbers have been rounded already");
    free(values);
    free(nearest);
}

/* Attention rounds its result, because only products read it, and linear layers read it without a copy. All other
 * results are float32. */
static void test_results_are_operands(void **state)
{
    const DType precisions[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (int p = 0; p < 3; p++) {
        const DType precision = precisions[p];
        Setting s;
        setting_create(&s, precision);
        s.matrix->requires_grad = true; /* nodes are recorded */
        Tensor *linear = op_linear(&s.tape, s.operand, s.matrix, s.vector);
        assert_ptr_equal(s.tape.nodes[s.tape.count - 1].saved[0], s.operand->data); /* no copy */
        check_operand(s.operand, precision, "attention");
        check_operand(linear, DTYPE_F32, "linear");
        check_operand(op_gelu(&s.tape, linear), DTYPE_F32, "gelu");
        check_operand(op_layernorm(&s.tape, s.x, s.vector, s.vector), DTYPE_F32, "layernorm");
        check_operand(op_add(&s.tape, s.x, linear), DTYPE_F32, "sum");
        tape_free(&s.tape);
    }
}

int main(void)
{
    device_init(0, 1);
    return run_cases("precision", cmocka_unit_test(test_results_are_operands));
}
