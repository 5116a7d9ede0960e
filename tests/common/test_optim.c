/* test_optim.c: SGD, AdamW and clipping against their formulas in float64, over several steps, each with new gradients.
 * In one step one parameter has no gradient: neither it nor its state may change. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "device/device.h"
#include "expect.h"
#include "optim/optimizer.h"

/* A matrix, a vector whose length is no multiple of a vector register, a frozen matrix, and a single number. */
enum { PARAMETERS = 4, FROZEN = 2, LARGEST = 7 * 19, STEPS = 8, STEP_WITHOUT = 3, PARAMETER_WITHOUT = 1 };

typedef struct Setup {
    ParameterList list;
    Optimizer optimizer;
    void *gradients;
    Rng rng;
    float gradient[PARAMETERS][LARGEST]; /* this step's, on the host */
    double weight[PARAMETERS][LARGEST];  /* the float64 run: weights, and state as the formula calls it */
    double m[PARAMETERS][LARGEST], v[PARAMETERS][LARGEST];
    int steps[PARAMETERS];
} Setup;

static int64_t count_of(const Setup *setup, int i)
{
    return tensor_count(&setup->list.items[i]->tensor);
}

static void setup_create(Setup *setup, const OptimizerOptions *options)
{
    *setup = (Setup){0};
    parameters_add(&setup->list, "matrix", 2, (int64_t[]){7, 19});
    parameters_add(&setup->list, "vector", 1, (int64_t[]){37});
    parameters_add(&setup->list, "frozen", 2, (int64_t[]){4, 4})->tensor.requires_grad = false;
    parameters_add(&setup->list, "number", 1, (int64_t[]){1});
    setup->gradients = parameters_allocate_gradients(&setup->list);
    rng_seed(&setup->rng, 1);
    for (int i = 0; i < PARAMETERS; i++) {
        float values[LARGEST];
        for (int64_t j = 0; j < count_of(setup, i); j++) {
            values[j] = rng_normal(&setup->rng);
            setup->weight[i][j] = values[j];
        }
        device_from_host(setup->list.items[i]->tensor.data, values, (size_t)count_of(setup, i) * sizeof *values);
    }
    optimizer_create(&setup->optimizer, options, &setup->list);
    optimizer_allocate_state(&setup->optimizer);
}

static void setup_free(Setup *setup)
{
    optimizer_free(&setup->optimizer);
    parameters_free(&setup->list);
    device_free(setup->gradients);
}

/* New gradients. Some elements are tiny or zero, where AdamW's eps matters. The parameter without a gradient has
 * numbers in its gradient's memory, as an unused parameter may have. */
static void draw_gradients(Setup *setup, int step)
{
    for (int i = 0; i < PARAMETERS; i++) {
        Parameter *parameter = setup->list.items[i];
        if (i == FROZEN)
            continue;
        for (int64_t j = 0; j < count_of(setup, i); j++)
            setup->gradient[i][j] = rng_normal(&setup->rng) * (j % 5 == 1 ? 1e-8f : j % 5 == 2 ? 0 : 1);
        device_from_host(parameter->tensor.grad, setup->gradient[i], (size_t)count_of(setup, i) * sizeof(float));
        parameter->has_gradient = !(step == STEP_WITHOUT && i == PARAMETER_WITHOUT);
    }
}

/* torch.optim.SGD's formula for one weight. */
static double sgd(const OptimizerOptions *options, double weight, double gradient, double *buffer, bool first,
                  double lr)
{
    double g = gradient + (double)options->weight_decay * weight;
    if (options->momentum > 0) {
        *buffer = first ? g : (double)options->momentum * *buffer + g;
        g = *buffer;
    }
    return weight - lr * g;
}

/* torch.optim.AdamW's formula for one weight. */
static double adamw(const OptimizerOptions *options, double weight, double gradient, double *m, double *v, int steps,
                    double decay, double lr)
{
    double beta1 = (double)options->beta1, beta2 = (double)options->beta2;
    *m = beta1 * *m + (1 - beta1) * gradient;
    *v = beta2 * *v + (1 - beta2) * gradient * gradient;
    double corrected_m = *m / (1 - pow(beta1, steps)), corrected_v = *v / (1 - pow(beta2, steps));
    return weight - lr * decay * weight - lr * corrected_m / (sqrt(corrected_v) + (double)options->eps);
}

static void step_in_float64(Setup *setup, double lr)
{
    const OptimizerOptions *options = &setup->optimizer.options;
    for (int i = 0; i < PARAMETERS; i++) {
        if (!setup->list.items[i]->has_gradient)
            continue;
        setup->steps[i]++;
        double decay = setup->list.items[i]->tensor.ndim == 2 ? (double)options->weight_decay : 0;
        for (int64_t j = 0; j < count_of(setup, i); j++) {
            double *weight = &setup->weight[i][j], gradient = (double)setup->gradient[i][j];
            if (options->kind == OPTIMIZER_SGD)
                *weight = sgd(options, *weight, gradient, &setup->m[i][j], setup->steps[i] == 1, lr);
            else
                *weight =
                    adamw(options, *weight, gradient, &setup->m[i][j], &setup->v[i][j], setup->steps[i], decay, lr);
        }
    }
}

static void compare(const Setup *setup, int i, const char *hint)
{
    float actual[LARGEST], expected[LARGEST];
    device_to_host(actual, setup->list.items[i]->tensor.data, (size_t)count_of(setup, i) * sizeof *actual);
    for (int64_t j = 0; j < count_of(setup, i); j++)
        expected[j] = (float)setup->weight[i][j];
    /* Each step rounds a weight of at most 4 by 2^-23 or less, a few times. */
    expect_close(setup->list.items[i]->name, actual, expected, count_of(setup, i), STEPS * 0x1p-22, 0, hint);
}

static void check(const OptimizerOptions *options, float lr, const char *hint)
{
    Setup setup;
    setup_create(&setup, options);
    for (int step = 0; step < STEPS; step++) {
        draw_gradients(&setup, step);
        float before[LARGEST], after[LARGEST];
        const Tensor *without = &setup.list.items[PARAMETER_WITHOUT]->tensor;
        size_t bytes = (size_t)tensor_count(without) * sizeof(float);
        device_to_host(before, without->data, bytes);
        optimizer_step(&setup.optimizer, lr);
        step_in_float64(&setup, (double)lr);
        device_to_host(after, without->data, bytes);
        if (step == STEP_WITHOUT)
            expect_bits_equal("vector, without a gradient", after, before, tensor_count(without),
                              "no gradient is not a gradient of 0: momentum and weight decay must rest, too");
        for (int i = 0; i < PARAMETERS; i++)
            compare(&setup, i, hint);
        lr *= 0.9f; /* the learning rate may change from step to step */
    }
    setup_free(&setup);
}

static void test_sgd(void **state)
{
    check(&(OptimizerOptions){.kind = OPTIMIZER_SGD}, 0.1f, "weight - lr * gradient");
    check(&(OptimizerOptions){.kind = OPTIMIZER_SGD, .weight_decay = 0.1f}, 0.1f,
          "weight decay is added to the gradient of every parameter, biases too");
}

static void test_sgd_with_momentum(void **state)
{
    const char *hint = "the buffer starts as the gradient, and lr is applied when it is used, not when it is filled";
    check(&(OptimizerOptions){.kind = OPTIMIZER_SGD, .momentum = 0.9f}, 0.1f, hint);
    check(&(OptimizerOptions){.kind = OPTIMIZER_SGD, .momentum = 0.5f, .weight_decay = 0.1f}, 0.1f, hint);
}

static void test_adamw(void **state)
{
    OptimizerOptions options = {.kind = OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};
    check(&options, 0.01f, "bias correction counts the updates of this parameter; eps is outside of the root");
    options.weight_decay = 0.1f;
    check(&options, 0.01f, "weight decay is taken from the weight, by lr, and for matrices only");
    options.eps = 0.1f;
    check(&options, 0.01f, "eps is added after the root of the corrected v");
}

/* ---- clipping ---- */

static double norm_of_gradients(const Setup *setup)
{
    double sum = 0;
    for (int i = 0; i < PARAMETERS; i++)
        for (int64_t j = 0; j < count_of(setup, i) && setup->list.items[i]->has_gradient; j++)
            sum += (double)setup->gradient[i][j] * (double)setup->gradient[i][j];
    return sqrt(sum);
}

/* Clips to max_norm and compares every gradient with factor * what it was. */
static void check_clip(Setup *setup, double max_norm, double factor)
{
    clip_grad_norm(&setup->optimizer, max_norm);
    assert_null(optimizer_end_step(&setup->optimizer));
    float norm = (float)setup->optimizer.norm, expected_norm = (float)norm_of_gradients(setup);
    expect_close("norm", &norm, &expected_norm, 1, 0, 1e-6, "one norm over all parameters that have a gradient");
    for (int i = 0; i < PARAMETERS; i++) {
        if (i == FROZEN)
            continue;
        float actual[LARGEST], expected[LARGEST];
        double own_factor = setup->list.items[i]->has_gradient ? factor : 1;
        device_to_host(actual, setup->list.items[i]->tensor.grad, (size_t)count_of(setup, i) * sizeof *actual);
        for (int64_t j = 0; j < count_of(setup, i); j++)
            expected[j] = (float)(own_factor * (double)setup->gradient[i][j]);
        if (own_factor == 1)
            expect_bits_equal(setup->list.items[i]->name, actual, expected, count_of(setup, i),
                              "a gradient below the limit must not be touched");
        else
            expect_close(setup->list.items[i]->name, actual, expected, count_of(setup, i), 0, 3e-7,
                         "factor = max_norm / (norm + 1e-6)");
    }
}

static void test_clip_grad_norm(void **state)
{
    Setup setup;
    setup_create(&setup, &(OptimizerOptions){.kind = OPTIMIZER_SGD});
    draw_gradients(&setup, 0);
    double norm = norm_of_gradients(&setup);
    check_clip(&setup, norm * 2, 1);
    check_clip(&setup, INFINITY, 1);
    check_clip(&setup, norm / 4, norm / 4 / (norm + 1e-6));
    draw_gradients(&setup, STEP_WITHOUT); /* one parameter has no gradient: it does not count */
    norm = norm_of_gradients(&setup);
    check_clip(&setup, norm / 4, norm / 4 / (norm + 1e-6));
    setup_free(&setup);
}

/* ---- skipped steps ---- */

/* Everything that a step changes: weights, state, counts. */
typedef struct Snapshot {
    float weight[PARAMETERS][LARGEST], m[PARAMETERS][LARGEST], v[PARAMETERS][LARGEST];
    long steps[PARAMETERS];
} Snapshot;

static Snapshot snapshot(const Setup *setup)
{
    Snapshot shot;
    memset(&shot, 0, sizeof shot);
    for (int i = 0; i < PARAMETERS; i++) {
        size_t bytes = (size_t)count_of(setup, i) * sizeof(float);
        device_to_host(shot.weight[i], setup->list.items[i]->tensor.data, bytes);
        device_to_host(shot.m[i], setup->optimizer.state1[i], bytes);
        device_to_host(shot.v[i], setup->optimizer.state2[i], bytes);
        shot.steps[i] = setup->optimizer.steps[i];
    }
    return shot;
}

/* A gradient is not finite: the step changes nothing, and names the first such parameter. The next step has the same
 * result as without the skipped one. */
static void check_left_out(float wrong, int first, int second)
{
    Setup setup;
    setup_create(&setup, &(OptimizerOptions){.kind = OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f});
    for (int step = 0; step < STEPS; step++) {
        draw_gradients(&setup, step);
        const Snapshot before = snapshot(&setup);
        const int bad[] = {first, second};
        for (int i = 0; i < 2; i++) {
            float *gradient = setup.list.items[bad[i]]->tensor.grad;
            device_from_host(gradient + count_of(&setup, bad[i]) - 1, &wrong, sizeof wrong);
        }
        clip_grad_norm(&setup.optimizer, step % 2 ? 1 : (double)INFINITY);
        optimizer_step(&setup.optimizer, 0.01f);
        assert_ptr_equal(optimizer_end_step(&setup.optimizer), setup.list.items[first]);
        assert_false(isfinite(setup.optimizer.norm));
        const Snapshot after = snapshot(&setup);
        assert_memory_equal(&after, &before, sizeof after);

        draw_gradients(&setup, step);
        clip_grad_norm(&setup.optimizer, INFINITY);
        optimizer_step(&setup.optimizer, 0.01f);
        step_in_float64(&setup, (double)0.01f);
        assert_null(optimizer_end_step(&setup.optimizer));
        for (int i = 0; i < PARAMETERS; i++)
            compare(&setup, i, "the skipped step changed something: the state, or the count of "
                               "steps, on which the bias correction depends");
    }
    setup_free(&setup);
}

static void test_steps_that_are_left_out(void **state)
{
    check_left_out(NAN, 0, 0);
    check_left_out(INFINITY, 0, 3);
    check_left_out(-INFINITY, 3, 3);
}

int main(void)
{
    device_init(0, 1);
    return run_cases("optim", cmocka_unit_test(test_sgd), cmocka_unit_test(test_sgd_with_momentum),
                     cmocka_unit_test(test_adamw), cmocka_unit_test(test_clip_grad_norm),
                     cmocka_unit_test(test_steps_that_are_left_out));
}
