/* test_shapes.c: which shapes tensors may have, and what each operation says about tensors that do not fit. */
#include <stdlib.h>
#include <string.h>

#include "autograd/ops.h"
#include "device/device.h"
#include "expect.h"
#include "nn/model.h"

/* ---- tensors ---- */

static void view(void *dimensions)
{
    tensor_view(NULL, DTYPE_F32, *(int *)dimensions, (int64_t[]){2, -1, 1, 1, 1});
}

static void test_shapes_of_tensors(void **state)
{
    const Tensor largest = tensor_view(NULL, DTYPE_F32, 4, (int64_t[]){2, 3, 4, 5});
    assert_int_equal(tensor_rows(&largest), 24);
    assert_int_equal(tensor_last(&largest), 5);
    assert_int_equal(tensor_count(&largest), 120);
    const Tensor vector = tensor_view(NULL, DTYPE_F32, 1, (int64_t[]){7});
    assert_int_equal(tensor_rows(&vector), 1);
    assert_int_equal(tensor_count(&vector), 7);
    expect_dies(view, &(int){0}, 1, "a tensor has 1 to 4 dimensions, not 0");
    expect_dies(view, &(int){5}, 1, "a tensor has 1 to 4 dimensions, not 5");
    expect_dies(view, &(int){2}, 1, "dimension 1 of a tensor is negative: -1");
}

/* ---- parameters ---- */

/* On the CPU, gradients start on cache lines of 64 bytes. A frozen parameter has none. */
static void test_sizes_of_gradients(void **state)
{
    const int64_t counts[] = {1, 15, 16, 17, 32}, bytes[] = {64, 64, 64, 128, 128};
    ParameterList list = {0};
    for (int i = 0; i < 5; i++) {
        Parameter *parameter = parameters_add(&list, "x", 1, &counts[i]);
        assert_int_equal(parameter_gradient_bytes(parameter), bytes[i]);
    }
    assert_int_equal(parameters_gradient_bytes(&list), 448);
    list.items[3]->tensor.requires_grad = false;
    assert_int_equal(parameters_gradient_bytes(&list), 320);
    unsigned char *block = parameters_allocate_gradients(&list);
    const int places[] = {0, 64, 128, -1, 192};
    for (int i = 0; i < 5; i++) {
        assert_ptr_equal(list.items[i]->tensor.grad, places[i] >= 0 ? block + places[i] : NULL);
        list.items[i]->has_gradient = true;
    }
    parameters_free_gradients(&list, block);
    for (int i = 0; i < 5; i++) {
        assert_null(list.items[i]->tensor.grad);
        assert_false(list.items[i]->has_gradient);
    }
    parameters_free(&list);
    assert_null(list.items); /* it may be used again */
    assert_int_equal(list.count, 0);
    assert_int_equal(list.capacity, 0);
}

/* ---- operations: each reads numbers, all zeros, with a shape that does not fit ---- */

static float numbers[100];
static Tape tape;

/* (rows, columns), or (rows) if columns is 0. */
static Tensor *zeros(int64_t rows, int64_t columns)
{
    return tape_input(&tape, numbers, DTYPE_F32, columns > 0 ? 2 : 1, (int64_t[]){rows, columns});
}

/* For x (2, 3), a layernorm's weight and bias have 3 elements, and a linear layer's weight is (outputs, 3). */
static void normalize_with(int64_t weights, int64_t biases)
{
    op_layernorm(&tape, zeros(2, 3), zeros(weights, 0), zeros(biases, 0));
}

static void embed(int64_t T, int64_t position_columns)
{
    op_embedding(&tape, (const int32_t *)numbers, 2, T, zeros(10, 4), zeros(5, position_columns));
}

static void attend(int ndim, int64_t columns, int heads)
{
    op_attention(&tape, tape_input(&tape, numbers, DTYPE_F32, ndim, (int64_t[]){1, 2, columns, 1}), heads);
}

enum { LAYERNORM_WEIGHT, LAYERNORM_BIAS, LINEAR_COLUMNS, LINEAR_BIAS, LINEAR_DTYPE, ADD_SHAPES, EMBEDDING_COLUMNS,
       EMBEDDING_POSITIONS, ATTENTION_HEADS, ATTENTION_DIMENSIONS, OPERATIONS };

static void apply_to_wrong_shapes(void *which)
{
    switch (*(int *)which) {
    case LAYERNORM_WEIGHT: normalize_with(2, 3); break;
    case LAYERNORM_BIAS: normalize_with(3, 4); break;
    case LINEAR_COLUMNS: op_linear(&tape, zeros(2, 3), zeros(5, 4), NULL); break;
    case LINEAR_BIAS: op_linear(&tape, zeros(2, 3), zeros(5, 3), zeros(3, 0)); break;
    case LINEAR_DTYPE: /* stored as f16 numbers, but the products are in bf16 */
        tape.precision = DTYPE_BF16;
        op_linear(&tape, tape_input(&tape, numbers, DTYPE_F16, 2, (int64_t[]){2, 3}), zeros(5, 3), NULL);
        break;
    case ADD_SHAPES: op_add(&tape, zeros(2, 3), zeros(3, 2)); break;
    case EMBEDDING_COLUMNS: embed(5, 3); break;
    case EMBEDDING_POSITIONS: embed(6, 4); break;
    case ATTENTION_HEADS: attend(3, 12, 3); break;
    case ATTENTION_DIMENSIONS: attend(4, 12, 2); break;
    }
}

static void test_operations_that_do_not_fit(void **state)
{
    static const char *const messages[] = {
        [LAYERNORM_WEIGHT] = "layernorm: weight and bias must have 3 elements",
        [LAYERNORM_BIAS] = "layernorm: weight and bias must have 3 elements",
        [LINEAR_COLUMNS] = "linear: the input has 3 columns, the weight takes 4",
        [LINEAR_BIAS] = "linear: the bias must have 5 elements",
        [LINEAR_DTYPE] = "linear reads float32 or the tape's precision, not float16",
        [ADD_SHAPES] = "add: float32 [2, 3] and float32 [3, 2] differ",
        [EMBEDDING_COLUMNS] = "embedding: the two tables have 4 and 3 columns",
        [EMBEDDING_POSITIONS] = "embedding: 6 positions, but the table has only 5",
        [ATTENTION_HEADS] = "attention: rows of 12 numbers are not query, key and value of 3 heads",
        [ATTENTION_DIMENSIONS] = "are not query, key and value of 2 heads",
    };
    normalize_with(3, 3);
    embed(5, 4);
    attend(3, 12, 2);
    for (int i = 0; i < OPERATIONS; i++)
        expect_dies(apply_to_wrong_shapes, &i, 1, messages[i]);
    tape_free(&tape);
}

/* ---- backward ---- */

static void start_from_two_numbers(void *unused)
{
    tape_backward(&tape, tape_tensor(&tape, 1, (int64_t[]){2}, true), 1);
}

static void start_from_an_untrained_number(void *unused)
{
    tape_backward(&tape, tape_tensor(&tape, 1, (int64_t[]){1}, false), 1);
}

static void leave_out_the_gradients(void *unused)
{
    ParameterList list = {0};
    Parameter *x = parameters_add(&list, "x", 2, (int64_t[]){2, 3});
    tape_backward(&tape, op_mse(&tape, &x->tensor, numbers), 1);
}

/* A GPU may store a gradient in 16 bits, at its only contribution. */
static void add_to_a_rounded_gradient(void *unused)
{
    Tensor *x = tape_tensor(&tape, 1, (int64_t[]){1}, true);
    x->grad = numbers;
    x->grad_dtype = DTYPE_BF16;
    tape_gradient(&tape, x);
}

static void test_backward_that_cannot_start(void **state)
{
    tape_begin(&tape, true);
    expect_dies(start_from_two_numbers, NULL, 1, "backward starts from one number, not 2");
    expect_dies(start_from_an_untrained_number, NULL, 1, "the loss does not depend on any parameter that is trained");
    expect_dies(leave_out_the_gradients, NULL, 1, "parameter x has no memory for its gradient");
    expect_dies(add_to_a_rounded_gradient, NULL, 1, "a gradient was rounded before its last contribution");
    tape_free(&tape);
    assert_null(tape.nodes); /* it may be used again */
    assert_null(tape.tensors);
    assert_int_equal(tape.capacity + tape.tensor_capacity + tape.arena.block_count, 0);
}

int main(void)
{
    device_init(0, 1);
    return run_cases("shapes", cmocka_unit_test(test_shapes_of_tensors),
                     cmocka_unit_test(test_sizes_of_gradients), cmocka_unit_test(test_operations_that_do_not_fit),
                     cmocka_unit_test(test_backward_that_cannot_start));
}
