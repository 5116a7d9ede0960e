/* test_gradient_dtype.c: which gradients a GPU's backward stores in 16 bits: those of a linear layer's output, under
 * bf16 and f16, if there is only one contribution. The bits are those of rounding later. Runs in the emulator. */
#include <string.h>

#include "autograd/ops.h"
#include "base/rng.h"
#include "device/device.h"
#include "expect.h"
#include "nn/model.h"

enum { ROWS = 5, WIDTH = 6, NUMBERS = ROWS * WIDTH };

static const DType precisions[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

/* ---- how often numbers are rounded in a pass of their own: the linker puts this before the device's function ---- */

static int passes;

void __real_device_store_rounded(void *operand, const float *x, DType precision, int64_t n);

void __wrap_device_store_rounded(void *operand, const float *x, DType precision, int64_t n)
{
    passes++;
    __real_device_store_rounded(operand, x, precision, n);
}

static int32_t *indices_on_device(const int32_t *indices, size_t bytes)
{
    int32_t *copy = device_alloc(bytes);
    device_from_host(copy, indices, bytes);
    return copy;
}

/* ---- a model ---- */

static const ModelSpec gpt = {.name = "gpt", .kind = MODEL_GPT, .gpt = {2, 2, 8, WIDTH, 11, 11}};

static void check_gpt(DType precision)
{
    Tape tape = {.precision = precision};
    Model model = {0};
    int32_t tokens[NUMBERS], linears = 0;
    for (int i = 0; i < NUMBERS; i++)
        tokens[i] = i * 7 % 11;
    model_create(&model, &gpt, 1);
    void *gradients = parameters_allocate_gradients(&model.parameters);
    tape_begin(&tape, true);
    int32_t *inputs = indices_on_device(tokens, sizeof tokens);
    Tensor *loss = model_loss(&model, &tape, inputs, inputs, ROWS, WIDTH);
    passes = 0;
    tape_backward(&tape, loss, 1);
    if (passes != (precision == DTYPE_F32 ? 0 : gpt.gpt.layers)) /* before each gelu there is a linear layer */
        fail_msg("gpt, %s: backward rounded %d gradients in a separate pass; all kernels but gelu's can round theirs",
                 dtype_name(precision), passes);
    for (int i = 0; i < tape.count; i++) {
        const Node *node = &tape.nodes[i];
        const bool linear = strcmp(node->name, "linear") == 0 && strcmp(node[1].name, "gelu") != 0;
        linears += linear;
        if (node->output->grad_dtype != (linear ? precision : DTYPE_F32))
            fail_msg("gpt, %s: the gradient of a result of %s is %s", dtype_name(precision), node->name,
                     dtype_name(node->output->grad_dtype));
        for (int k = 0; k < NODE_MAX_INPUTS; k++)
            assert_true(node->inputs[k] == NULL || node->inputs[k]->uses == 0);
    }
    assert_int_equal(linears, 2 * 3 + 1); /* qkv and two projections in each block, the output layer */
    tape_free(&tape);
    device_free(inputs);
    device_free(gradients);
    model_free(&model);
}

static void test_gpt(void **state)
{
    for (int p = 0; p < 3; p++)
        check_gpt(precisions[p]);
}

/* ---- one linear layer, whose output is used in different ways ---- */

typedef struct Layer {
    Tape tape;
    Tensor *x, *weight, *other, *linear; /* linear = x weight^T */
} Layer;

static Tensor *normal_tensor(Tape *tape, int rows, uint64_t seed)
{
    Tensor *tensor = tape_tensor(tape, 2, (int64_t[]){rows, WIDTH}, true);
    float values[NUMBERS + WIDTH];
    Rng rng;
    rng_seed(&rng, seed);
    for (int i = 0; i < rows * WIDTH; i++)
        values[i] = rng_normal(&rng);
    device_from_host(tensor->data, values, (size_t)(rows * WIDTH) * sizeof *values);
    return tensor;
}

static void layer_create(Layer *layer, DType precision)
{
    *layer = (Layer){.tape = {.precision = precision}};
    tape_begin(&layer->tape, true);
    layer->x = normal_tensor(&layer->tape, ROWS, 1);
    layer->weight = normal_tensor(&layer->tape, WIDTH, 2);
    layer->other = normal_tensor(&layer->tape, ROWS, 3);
    layer->linear = op_linear(&layer->tape, layer->x, layer->weight, NULL);
}

static void expect_dtype(const Layer *layer, const char *how, DType expected)
{
    if (layer->linear->grad_dtype != expected)
        fail_msg("a linear layer's output, %s, under %s: its gradient is %s, not %s", how,
                 dtype_name(layer->tape.precision), dtype_name(layer->linear->grad_dtype), dtype_name(expected));
}

/* The operations of a GPT set operands. relu and mse cannot, and their contributions are rounded later; the left input
 * of a sum takes over the sum's gradient unchanged. */
static void test_who_sets_operands(void **state)
{
    const int32_t classes[ROWS] = {5, 0, 3, 1, 2};
    int32_t *targets = indices_on_device(classes, sizeof classes);
    const char *how[] = {"read by cross-entropy", "the right of a sum", "the left of a sum", "read by relu",
                         "read by mse"};
    for (int p = 0; p < 3; p++)
        for (int way = 0; way < 5; way++) {
            Layer layer;
            layer_create(&layer, precisions[p]);
            Tape *tape = &layer.tape;
            Tensor *read = way == 1 ? op_add(tape, layer.other, layer.linear)
                         : way == 2 ? op_add(tape, layer.linear, layer.other)
                         : way == 3 ? op_relu(tape, layer.linear) : layer.linear;
            Tensor *loss = way == 0 ? op_cross_entropy(tape, read, targets) : op_mse(tape, read, layer.x->data);
            tape_backward(tape, loss, 1);
            expect_dtype(&layer, how[way], way <= 1 ? precisions[p] : DTYPE_F32);
            tape_free(tape);
        }
    device_free(targets);
}

/* Two uses: the first or the second in backward could set an operand, but must not, because it is not the only one. */
static void check_two_uses(DType precision, bool sum_first)
{
    Layer layer;
    layer_create(&layer, precision);
    Tape *tape = &layer.tape;
    Tensor *sum = sum_first ? op_add(tape, layer.other, layer.linear) : NULL;
    Tensor *relu = op_relu(tape, layer.linear);
    sum = sum_first ? sum : op_add(tape, layer.other, layer.linear);
    Tensor *out = op_add(tape, sum, relu);
    tape_backward(tape, op_mse(tape, out, layer.x->data), 1);
    expect_dtype(&layer, sum_first ? "used by add, then by relu" : "used by relu, then by add", DTYPE_F32);
    float d[NUMBERS], linear[NUMBERS], got[NUMBERS], expected[NUMBERS];
    device_to_host(d, out->grad, sizeof d);
    device_to_host(linear, layer.linear->data, sizeof linear);
    device_to_host(got, layer.linear->grad, sizeof got);
    for (int i = 0; i < NUMBERS; i++)
        expected[i] = d[i] + (linear[i] > 0 ? d[i] : 0);
    expect_bits_equal("gradient of a linear layer's output with two uses", got, expected, NUMBERS,
                      "a sum is rounded after its last addition, not before");
    tape_free(tape);
}

static void test_two_uses(void **state)
{
    for (int p = 0; p < 3; p++) {
        check_two_uses(precisions[p], true);
        check_two_uses(precisions[p], false);
        Layer layer;
        layer_create(&layer, precisions[p]);
        Tensor *twice = op_add(&layer.tape, layer.linear, layer.linear);
        tape_backward(&layer.tape, op_mse(&layer.tape, twice, layer.x->data), 1);
        expect_dtype(&layer, "added to itself", DTYPE_F32);
        tape_free(&layer.tape);
    }
}

/* A dead use, on which the loss does not depend, after or before the live one. If it is after, backward has passed it
 * already, and the gradient is an operand. If it is before, backward cannot know yet that it is dead, and the gradient
 * is rounded later: the same bits. */
static void test_dead_ends(void **state)
{
    const int32_t classes[ROWS] = {5, 0, 3, 1, 2};
    int32_t *targets = indices_on_device(classes, sizeof classes);
    for (int p = 0; p < 3; p++) {
        float dweight[2][WIDTH * WIDTH], dx[2][NUMBERS];
        for (int early = 0; early < 2; early++) {
            Layer layer;
            layer_create(&layer, precisions[p]);
            Tape *tape = &layer.tape;
            if (early)
                op_relu(tape, layer.linear);
            Tensor *loss = op_cross_entropy(tape, layer.linear, targets);
            if (!early)
                op_relu(tape, layer.linear);
            tape_backward(tape, loss, 0.37f);
            expect_dtype(&layer, early ? "after a dead end" : "before a dead end", early ? DTYPE_F32 : precisions[p]);
            device_to_host(dweight[early], layer.weight->grad, sizeof *dweight);
            device_to_host(dx[early], layer.x->grad, sizeof *dx);
            tape_free(tape);
        }
        const char *hint = "a gradient that is set as an operand must be what it would have been rounded to later";
        expect_bits_equal("dweight", dweight[0], dweight[1], WIDTH * WIDTH, hint);
        expect_bits_equal("dx", dx[0], dx[1], NUMBERS, hint);
    }
    device_free(targets);
}

int main(void)
{
    device_init(0, 1);
    return run_cases("gradient dtype", cmocka_unit_test(test_gpt), cmocka_unit_test(test_who_sets_operands),
                     cmocka_unit_test(test_two_uses), cmocka_unit_test(test_dead_ends));
}
