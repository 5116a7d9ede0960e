/* test_device_promises.c: contracts of device.h other than results: alignment of tensors, when memory is freed, and
 * what device_is_idle() returns.
 *
 * cuBLAS's choice of a kernel depends on addresses, and another kernel adds in another order. So all tensors begin at
 * multiples of device_alignment(). At other addresses, only a repetition must give the same bits. */
#include <stdio.h>

#include "autograd/rounding.h"
#include "device/arena.h"
#include "device_numbers.h"

enum { ROWS = 200, N_IN = 256, N_OUT = 320 };
enum { X = ROWS * N_IN, WEIGHT = N_OUT * N_IN, OUT = ROWS * N_OUT, NUMBERS = 2 * (X + WEIGHT + OUT) };

/* ---- matrix products ---- */

/* The products of a linear layer, with each matrix `offset` bytes after an aligned address. Returns host memory: out,
 * dx and dweight, one after the other. */
static float *products_at(size_t offset, DType precision, const float *numbers)
{
    const int64_t counts[6] = {X, WEIGHT, OUT, OUT, X, WEIGHT}; /* x, weight, dout; out, dx, dweight */
    unsigned char *memory[6];
    float *results = room_for_floats(OUT + X + WEIGHT), *result = results;
    for (int i = 0; i < 6; i++) {
        memory[i] = (unsigned char *)device_alloc((size_t)counts[i] * sizeof(float) + offset) + offset;
        float *x = device_copy_of(numbers, (size_t)counts[i] * sizeof *numbers);
        if (i < 3 && precision == DTYPE_F32)
            device_copy(memory[i], x, (size_t)counts[i] * sizeof *x);
        else if (i < 3)
            device_store_rounded(memory[i], x, precision, counts[i]);
        device_free(x);
        numbers += counts[i];
    }
    const Gradient none = {NULL, false, DTYPE_F32};
    device_linear_forward((float *)(void *)memory[3], memory[0], memory[1], NULL, ROWS, N_IN, N_OUT, precision);
    device_linear_backward((Gradient){(float *)(void *)memory[4], false, DTYPE_F32},
                           (Gradient){(float *)(void *)memory[5], false, DTYPE_F32}, none, memory[2], memory[0],
                           memory[1], ROWS, N_IN, N_OUT, precision);
    for (int i = 3; i < 6; i++) {
        device_to_host(result, memory[i], (size_t)counts[i] * sizeof *result);
        result += counts[i];
    }
    for (int i = 0; i < 6; i++)
        device_free(memory[i] - offset);
    return results;
}

static void check_products(DType precision)
{
    const size_t results = OUT + X + WEIGHT, offsets[] = {0, 64, 128, device_alignment()};
    const float *numbers = normals(NUMBERS), *first = products_at(0, precision, numbers);
    for (int i = 0; i < 4; i++) {
        char name[80];
        snprintf(name, sizeof name, "%s products at +%zu bytes", dtype_name(precision), offsets[i]);
        const float *once = products_at(offsets[i], precision, numbers);
        expect_bits_equal(name, products_at(offsets[i], precision, numbers), once, (int64_t)results,
                          "the same product gives other bits the second time: is cuBLAS's workspace its own?");
        if (offsets[i] % device_alignment() == 0)
            expect_bits_equal(name, once, first, (int64_t)results,
                              "the bits depend on where the matrices lie, although they lie where tensors do");
        else if (memcmp(once, first, results * sizeof *once) != 0)
            print_message("%s are not the bits of those at +0: no tensor lies there\n", name);
    }
}

static void test_products_repeat_wherever_matrices_lie(void **state)
{
    check_products(DTYPE_F32);
    check_products(DTYPE_BF16);
    check_products(DTYPE_F16);
}

/* ---- tensors ---- */

static void expect_aligned(const char *what, const void *address)
{
    if ((uintptr_t)address % device_alignment() != 0)
        fail_msg("%s begins at %p, no multiple of %zu bytes: products with it may have other bits", what, address,
                 device_alignment());
}

static void test_tensors_are_aligned(void **state)
{
    const int64_t shapes[][2] = {{1, 3}, {5, 7}, {11, 13}, {1, 64}};
    ParameterList parameters = {0};
    Tape tape = {.precision = DTYPE_BF16};
    for (int i = 0; i < 4; i++)
        parameters_add(&parameters, "parameter", 2, shapes[i]);
    void *gradients = parameters_allocate_gradients(&parameters);
    for (int i = 0; i < parameters.count; i++) {
        expect_aligned("a gradient", parameters.items[i]->tensor.grad);
        expect_aligned("a weight", parameters.items[i]->tensor.data);
        expect_aligned("a weight's rounded copy", rounded_operand(&tape, &parameters.items[i]->tensor));
    }
    device_free(gradients);
    tape_free(&tape);
    parameters_free(&parameters);
    Arena arena = {0};
    for (size_t bytes = 1; bytes < 1000; bytes += 37)
        expect_aligned("an activation", arena_alloc(&arena, bytes));
    arena_free(&arena);
}

/* ---- work in progress ---- */

static void test_questions_leave_no_error_behind(void **state)
{
    enum { MANY = 10000 };
    float *x = device_alloc(MANY * sizeof *x), got;
    for (int i = 0; i < 5; i++)
        device_fill(x, (float)i, MANY);
    while (!device_is_idle())
        ;
    device_fill(x, 7, MANY); /* the check of this launch would report a "not ready" that was not cleared */
    device_to_host(&got, x + MANY - 1, sizeof got);
    assert_true(got == 7 && device_is_idle());
    device_free(x);
}

/* The sums read memory that is then freed, and scratch memory that the next call replaces by a larger block; it may not
 * even have begun then. The emulator overwrites freed memory, and reports later writes to it. */
static void test_memory_is_given_back_when_its_work_is_done(void **state)
{
    enum { FEW = 3000, ROWS_OF_MANY = 30000, COLUMNS = 40, PIECES = 16 };
    const float *numbers = normals(FEW);
    float *freed = device_copy_of(numbers, FEW * sizeof *numbers), *pieces[PIECES];
    enum { BLOCKS = squares_blocks(FEW) };
    double *sums = device_alloc(BLOCKS * sizeof *sums), got[BLOCKS], total = 0, expected = 0;
    float *dout = device_alloc((size_t)ROWS_OF_MANY * COLUMNS * sizeof *dout);
    const Gradient few = {device_alloc(COLUMNS * sizeof(float)), false, DTYPE_F32};
    const Gradient none = {NULL, false, DTYPE_F32}, dbias = {device_alloc(COLUMNS * sizeof(float)), false, DTYPE_F32};
    device_sum_of_squares(sums, freed, FEW);
    device_linear_backward(none, none, few, freed, NULL, NULL, FEW / COLUMNS, 1, COLUMNS, DTYPE_F32); /* uses scratch */
    device_linear_backward(none, none, dbias, dout, NULL, NULL, ROWS_OF_MANY, 1, COLUMNS, DTYPE_F32);
    device_free(freed);
    device_to_host(got, sums, sizeof got);
    for (int i = 0; i < BLOCKS; i++)
        total += got[i];
    for (int i = 0; i < FEW; i++)
        expected += (double)numbers[i] * (double)numbers[i];
    if (!(fabs(total - expected) <= 1e-9 * expected))
        fail_msg("the sum of squares is %g, not %g: was memory freed that a kernel still used?", total, expected);
    float columns[COLUMNS];
    device_to_host(columns, few.values, sizeof columns);
    for (int i = 0; i < FEW; i++)
        columns[i % COLUMNS] -= numbers[i];
    for (int i = 0; i < COLUMNS; i++)
        if (!(fabsf(columns[i]) <= 1e-4f))
            fail_msg("the sum of column %d is off by %g: was scratch memory freed that a kernel still used?", i,
                     (double)columns[i]);
    for (int i = 0; i < PIECES; i++)
        pieces[i] = device_alloc(FEW / PIECES * sizeof(float));
    for (int i = 0; i < PIECES; i++)
        device_free(pieces[i]);
    device_free(sums);
    device_free(dout);
    device_free(dbias.values);
    device_free(few.values);
}

int main(void)
{
    device_init(0, 1);
    const struct CMUnitTest tests[] = {
        /* The first, while scratch memory is small. */
        cmocka_unit_test_teardown(test_memory_is_given_back_when_its_work_is_done, free_room),
        cmocka_unit_test_teardown(test_products_repeat_wherever_matrices_lie, free_room),
        cmocka_unit_test(test_tensors_are_aligned),
        cmocka_unit_test(test_questions_leave_no_error_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
