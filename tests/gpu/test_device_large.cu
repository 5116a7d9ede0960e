/* test_device_large.cu: logits of more than 4 GiB, and of more than 2^31 numbers: an index or a number of bytes that is
 * computed in 32 bits overflows there. The last row must have the same result as the same row alone.
 *
 * LOCKSTEP_TEST_LOGITS in the environment: the minimal number of logits, instead of both sizes. */
#include "backends/gpu/device_cuda.h"

#include <stdlib.h>

extern "C" {
#include "device_numbers.h"
}

enum { CHANNELS = 64, VOCABULARY = 50257 };

/* The results of forward and backward for rows of x: logits, each row's largest and sum of exponentials, gradients. */
struct Head {
    float *logits, *loss, *row_max, *row_sum, *dx;
    Gradient dlogits;
};

static float *device_room(int64_t numbers)
{
    return (float *)device_alloc((size_t)numbers * sizeof(float));
}

static Head run_head(const void *x, const void *weight, const int32_t *targets, const float *dloss, int64_t rows,
                     DType precision)
{
    Head head;
    head.logits = device_room(rows * VOCABULARY);
    head.dlogits = {(float *)device_alloc(device_rounded_bytes(precision, rows * VOCABULARY)), false, precision};
    head.loss = device_room(1);
    head.row_max = device_room(rows);
    head.row_sum = device_room(rows);
    head.dx = device_room(rows * CHANNELS);
    device_linear_forward(head.logits, x, weight, NULL, rows, CHANNELS, VOCABULARY, precision);
    device_cross_entropy_forward(head.loss, head.row_max, head.row_sum, head.logits, targets, rows, VOCABULARY);
    device_cross_entropy_backward(head.dlogits, dloss, head.logits, head.row_max, head.row_sum, targets, rows,
                                  VOCABULARY);
    device_linear_backward({head.dx, false, DTYPE_F32}, {NULL, false, DTYPE_F32}, {NULL, false, DTYPE_F32},
                           head.dlogits.values, x, weight, rows, CHANNELS, VOCABULARY, precision);
    return head;
}

static void free_head(Head head)
{
    for (float *memory : {head.logits, head.dlogits.values, head.loss, head.row_max, head.row_sum, head.dx})
        device_free(memory);
}

/* n numbers of device memory, from number `first` on. */
static float *part(const float *numbers, int64_t first, int64_t n)
{
    float *copy = room_for_floats(n);
    device_to_host(copy, numbers + first, (size_t)n * sizeof *copy);
    return copy;
}

/* The same of a gradient that is stored rounded to `precision`. */
static float *part_of_rounded(const void *rounded, DType precision, int64_t first, int64_t n)
{
    float *numbers = device_room(n);
    numbers_of(numbers, (const char *)rounded + device_rounded_bytes(precision, first), precision, n);
    float *copy = part(numbers, 0, n);
    device_free(numbers);
    return copy;
}

/* A product of one row may add in another order than a product of many rows, so its logits may differ a little. All
 * other kernels treat rows alike, but they start from these logits. */
static void expect_same_row(const Head *all, int64_t row, const Head *alone, DType precision)
{
    const char *hint = "is an index, or a number of bytes, computed in 32 bits?";
    expect_close("logits", part(all->logits, row * VOCABULARY, VOCABULARY), part(alone->logits, 0, VOCABULARY),
                 VOCABULARY, 1e-3, 1e-4, hint);
    expect_close("the largest logit", part(all->row_max, row, 1), part(alone->row_max, 0, 1), 1, 1e-3, 1e-4, hint);
    expect_close("the sum of exponentials", part(all->row_sum, row, 1), part(alone->row_sum, 0, 1), 1, 0, 1e-2, hint);
    expect_close("dlogits", part_of_rounded(all->dlogits.values, precision, row * VOCABULARY, VOCABULARY),
                 part_of_rounded(alone->dlogits.values, precision, 0, VOCABULARY), VOCABULARY, 1e-3, 1e-2, hint);
    expect_close("dx", part(all->dx, row * CHANNELS, CHANNELS), part(alone->dx, 0, CHANNELS), CHANNELS, 1e-2, 1e-2,
                 hint);
}

/* `logits` or a few more; in `precision`. */
static void check_last_row(int64_t logits, DType precision)
{
    const int64_t rows = logits / VOCABULARY + 1, last = rows - 1;
    const float one = 1, *numbers = normals(rows * CHANNELS), *weights = normals(VOCABULARY * CHANNELS);
    const int32_t *tokens = indices_below(VOCABULARY, rows);
    float *dloss = (float *)device_copy_of(&one, sizeof one);
    int32_t *targets = (int32_t *)device_copy_of(tokens, (size_t)rows * sizeof *tokens);
    float *x = (float *)device_copy_of(numbers, (size_t)(rows * CHANNELS) * sizeof *numbers);
    float *w = (float *)device_copy_of(weights, sizeof *weights * VOCABULARY * CHANNELS);
    void *weight = operand_of(w, precision, VOCABULARY * CHANNELS);
    void *x_of_all = operand_of(x, precision, rows * CHANNELS);
    void *x_alone = operand_of(x + last * CHANNELS, precision, CHANNELS);

    const Head all = run_head(x_of_all, weight, targets, dloss, rows, precision);
    const Head alone = run_head(x_alone, weight, targets + last, dloss, 1, precision);
    expect_same_row(&all, last, &alone, precision);
    free_head(all);
    free_head(alone);
    for (void *memory : {(void *)dloss, (void *)targets, (void *)x, (void *)w, weight, x_of_all, x_alone})
        device_free(memory);
}

/* True if the GPU has memory for the logits, their gradient, and a GB more. */
static bool has_room_for(int64_t logits, DType precision)
{
    size_t free_bytes = 0, total = 0;
    CHECK_CUDA(cudaMemGetInfo(&free_bytes, &total));
    const size_t wanted = (size_t)logits * 4 + device_rounded_bytes(precision, logits) + ((size_t)1 << 30);
    if (free_bytes < wanted)
        print_message("%zu MiB of device memory are free, and %zu are needed\n", free_bytes >> 20, wanted >> 20);
    return free_bytes >= wanted;
}

static void check_logits(int64_t logits)
{
    const char *fewer = getenv("LOCKSTEP_TEST_LOGITS");
    for (DType precision : {DTYPE_F32, DTYPE_BF16}) {
        if (fewer == NULL && !has_room_for(logits, precision))
            skip();
        check_last_row(fewer != NULL ? atol(fewer) : logits, precision);
    }
}

static void test_logits_of_more_than_4_gib(void **)
{
    check_logits((int64_t)1 << 30);
}

static void test_more_than_2_to_the_31_logits(void **)
{
    check_logits((int64_t)1 << 31);
}

int main(void)
{
    device_init(0, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_logits_of_more_than_4_gib, free_room),
        cmocka_unit_test_teardown(test_more_than_2_to_the_31_logits, free_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
