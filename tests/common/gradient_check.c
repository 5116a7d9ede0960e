/* gradient_check.c: the parts of check_problem(), in the order in which it uses them. */
#include "gradient_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/rng.h"
#include "device/device.h"
#include "expect.h"

void result_free(Result *result)
{
    free(result->out);
    for (int k = 0; k < MAX_OPERANDS; k++)
        free(result->gradient[k]);
}

static int operand_ndim(const Problem *problem, int k)
{
    int ndim = 0;
    while (ndim < 3 && problem->shape[k][ndim] >= 0)
        ndim++;
    return ndim;
}

int64_t operand_count(const Problem *problem, int k)
{
    int64_t count = 1;
    for (int i = 0; i < operand_ndim(problem, k); i++)
        count *= problem->shape[k][i];
    return count;
}

const char *label(const Problem *problem, const char *what, int k)
{
    static char text[160];
    int used = snprintf(text, sizeof text, "%s", problem->name);
    for (int i = 0; i < operand_ndim(problem, 0); i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%d", i ? "x" : " ", (int)problem->shape[0][i]);
    if (k >= 0)
        snprintf(text + used, sizeof text - (size_t)used, ": %s %d", what, k);
    else
        snprintf(text + used, sizeof text - (size_t)used, ": %s", what);
    return text;
}

/* ---- a loss for the test: the sum of direction * x; its gradient is the direction ---- */

static void project_backward(Tape *tape, Node *node)
{
    for (int k = 0; k < 2; k++)
        if (node->inputs[k] != NULL)
            device_contribute(tape_gradient(tape, node->inputs[k]), node->saved[0], tensor_count(node->inputs[k]));
}

/* The loss of a, and of b unless it is NULL. Its value is not used; backward must start with 1. */
static Tensor *project(Tape *tape, Tensor *a, Tensor *b, float *direction)
{
    Tensor *loss = tape_tensor(tape, 1, (int64_t[]){1}, true);
    Node *node = tape_record(tape, "project", project_backward, loss, a, b, NULL);
    node->saved[0] = direction;
    return loss;
}

/* ---- one run ---- */

Draw draw(const Problem *problem)
{
    Draw drawn = {.direction = alloc_or_fault((size_t)problem->outputs * sizeof(float))};
    Rng rng;
    rng_seed(&rng, 1);
    for (int64_t i = 0; i < problem->outputs; i++)
        drawn.direction[i] = rng_normal(&rng);
    for (int k = 0; k < problem->operands; k++) {
        int64_t count = operand_count(problem, k);
        drawn.values[k] = alloc_or_fault((size_t)count * sizeof(float));
        drawn.exact[k] = alloc_or_fault((size_t)count * sizeof(double));
        for (int64_t i = 0; i < count; i++) {
            float value = 0;
            while (fabsf(value) < 1e-3f) /* ReLU has no derivative at 0: keep away from it */
                value = k == 0 ? problem->offset + problem->scale * rng_normal(&rng) : rng_normal(&rng);
            drawn.exact[k][i] = drawn.values[k][i] = value;
        }
    }
    return drawn;
}

void draw_free(Draw *drawn)
{
    for (int k = 0; k < MAX_OPERANDS; k++) {
        free(drawn->values[k]);
        free(drawn->exact[k]);
    }
    free(drawn->direction);
}

int32_t *draw_indices(int64_t count, uint64_t limit)
{
    Rng rng;
    rng_seed(&rng, 2);
    int32_t *indices = alloc_or_fault((size_t)count * sizeof *indices);
    for (int64_t i = 0; i < count; i++)
        indices[i] = (int32_t)rng_below(&rng, limit);
    return indices;
}

static float *copy_to_host(const void *device, int64_t count)
{
    float *host = alloc_or_fault((size_t)count * sizeof *host);
    device_to_host(host, device, (size_t)count * sizeof *host);
    return host;
}

float *numbers_of_tensor(const Tensor *tensor)
{
    const int64_t count = tensor_count(tensor);
    if (tensor->dtype == DTYPE_F32 || device_rounded_bytes(tensor->dtype, 1) == sizeof(float))
        return copy_to_host(tensor->data, count);
    float *numbers = device_alloc((size_t)count * sizeof *numbers);
    device_from_half(numbers, tensor->data, tensor->dtype, count);
    float *host = copy_to_host(numbers, count);
    device_free(numbers);
    return host;
}

static void *copy_to_device(Tape *tape, const void *host, int64_t count)
{
    void *device = tape_floats(tape, count);
    device_from_host(device, host, (size_t)count * sizeof(float));
    return device;
}

/* Fills the memory of the next step with NaN, so that reading memory before it is written shows. */
static void leave_nan_behind(Tape *tape)
{
    enum { COUNT = 1 << 18 };
    float *nans = alloc_or_fault(COUNT * sizeof *nans);
    for (int i = 0; i < COUNT; i++)
        nans[i] = NAN;
    copy_to_device(tape, nans, COUNT);
    free(nans);
}

Result run(const Problem *problem, const Draw *drawn, unsigned needs, int uses, int shift)
{
    Tape tape = {.precision = problem->precision};
    leave_nan_behind(&tape);
    tape_begin(&tape, true);
    Tensor *operand[MAX_OPERANDS];
    for (int k = 0; k < problem->operands; k++) {
        tape_floats(&tape, 16 * shift);
        void *data = copy_to_device(&tape, drawn->values[k], operand_count(problem, k));
        operand[k] = tape_input(&tape, data, DTYPE_F32, operand_ndim(problem, k), problem->shape[k]);
        operand[k]->requires_grad = needs >> k & 1;
    }
    const void *fixed = copy_to_device(&tape, problem->fixed, problem->fixed_count);
    float *direction_copy = copy_to_device(&tape, drawn->direction, problem->outputs);

    Tensor *out = problem->apply(problem, &tape, operand, fixed);
    assert_int_equal(tensor_count(out), problem->outputs);
    Tensor *second = uses == 2 ? problem->apply(problem, &tape, operand, fixed) : NULL;
    tape_backward(&tape, project(&tape, out, second, direction_copy), 1.0f);

    Result result = {.out = numbers_of_tensor(out)};
    for (int k = 0; k < problem->operands; k++)
        if (operand[k]->grad != NULL)
            result.gradient[k] = copy_to_host(operand[k]->grad, operand_count(problem, k));
    tape_free(&tape);
    return result;
}

/* ---- the judgement ---- */

/* The derivative of sum(direction * reference(operands)) by each element of operand k. */
static void differentiate(const Problem *problem, const Draw *drawn, int k, float *gradient)
{
    double *const *operand = drawn->exact;
    const double nudge = 1e-4; /* the difference is wrong by about nudge^2, and by 1e-16 / nudge through rounding */
    double *up = alloc_or_fault((size_t)problem->outputs * sizeof *up);
    double *down = alloc_or_fault((size_t)problem->outputs * sizeof *down);
    for (int64_t i = 0; i < operand_count(problem, k); i++) {
        double value = operand[k][i], difference = 0;
        operand[k][i] = value + nudge;
        problem->reference(problem, up, operand);
        operand[k][i] = value - nudge;
        problem->reference(problem, down, operand);
        operand[k][i] = value;
        for (int64_t j = 0; j < problem->outputs; j++)
            difference += drawn->direction[j] * (up[j] - down[j]);
        gradient[i] = (float)(difference / (2 * nudge));
    }
    free(up);
    free(down);
}

/* Each rounding in a chain has an error of up to 2^-24 of the numbers that are added there, which are about as large as
 * the largest result. Most errors cancel, so this bound is generous; the error of a wrong formula is far larger. */
static double tolerance(const Problem *problem, const float *expected, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)expected[i]));
    return largest * 2 * problem->chain / (1 << 24);
}

/* With a batch of zero rows, results and gradients have no elements, and there is nothing to compare. */
void compare(const Problem *problem, const char *name, const float *actual, const float *expected, int64_t count,
             const char *hint)
{
    if (count > 0)
        expect_close(name, actual, expected, count, tolerance(problem, expected, count), 0, hint);
}

static void check_result(const Problem *problem, const Result *result, double *const *operand)
{
    double *exact = alloc_or_fault((size_t)problem->outputs * sizeof *exact);
    float *expected = alloc_or_fault((size_t)problem->outputs * sizeof *expected);
    problem->reference(problem, exact, operand);
    for (int64_t i = 0; i < problem->outputs; i++)
        expected[i] = (float)exact[i];
    compare(problem, label(problem, "result", -1), result->out, expected, problem->outputs, problem->hint);
    free(exact);
    free(expected);
}

/* uses: how often the operation was applied to its operands; each use adds the same gradient. */
static void check_gradients(const Problem *problem, const Result *result, const Draw *drawn, int uses)
{
    for (int k = 0; k < problem->operands; k++) {
        int64_t count = operand_count(problem, k);
        float *expected = alloc_or_fault((size_t)count * sizeof *expected);
        differentiate(problem, drawn, k, expected);
        for (int64_t i = 0; i < count; i++)
            expected[i] *= (float)uses;
        assert_non_null(result->gradient[k]);
        compare(problem, label(problem, uses == 2 ? "used twice, gradient of operand" : "gradient of operand", k),
                result->gradient[k], expected, count,
                uses == 2 ? "each use must add to the gradient (+=), never replace it" : problem->hint);
        free(expected);
    }
}

static void check_same_bits(const Problem *problem, const Result *actual, const Result *expected, unsigned needs,
                            const char *hint)
{
    if (problem->outputs > 0)
        expect_bits_equal(label(problem, "result", -1), actual->out, expected->out, problem->outputs, hint);
    for (int k = 0; k < problem->operands; k++) {
        assert_int_equal(actual->gradient[k] != NULL, needs >> k & 1);
        if (actual->gradient[k] != NULL && operand_count(problem, k) > 0)
            expect_bits_equal(label(problem, "gradient of operand", k), actual->gradient[k], expected->gradient[k],
                              operand_count(problem, k), hint);
    }
}

void check_problem(const Problem *problem)
{
    Draw drawn = draw(problem);
    unsigned all = (1u << problem->operands) - 1;
    Result once = run(problem, &drawn, all, 1, 0);
    check_result(problem, &once, drawn.exact);
    check_gradients(problem, &once, &drawn, 1);
    Result twice = run(problem, &drawn, all, 2, 0);
    check_gradients(problem, &twice, &drawn, 2);
    result_free(&twice);
    for (int shift = 1; shift <= 3; shift++) {
        Result moved = run(problem, &drawn, all, 1, shift);
        check_same_bits(problem, &moved, &once, all, "the same numbers at another address must give the same bits");
        result_free(&moved);
    }
    for (unsigned needs = 1; needs < all; needs++) {
        Result partial = run(problem, &drawn, needs, 1, 0);
        check_same_bits(problem, &partial, &once, needs, "a frozen operand must not change the others' gradients");
        result_free(&partial);
    }
    result_free(&once);
    draw_free(&drawn);
}
