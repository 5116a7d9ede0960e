/* test_operands.c: the rounded copies of weights that matrix products read. Each is made at the first product after a
 * change of the weight, by the optimizer or other code, and kept until the next change. A stale copy is reported. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autograd/rounding.h"
#include "base/check.h"
#include "device/device.h"
#include "expect.h"
#include "toy_models.h"
#include "train/loop/replica.h"

enum { SAMPLES = 6 };

/* ---- one process that trains ---- */

typedef struct Run {
    Options options;
    Dataset dataset;
    Replica replica;
    void *gradients, *inputs, *targets;
} Run;

static void run_create(Run *run, DType precision, OptimizerKind kind, uint64_t seed)
{
    memset(run, 0, sizeof *run);
    run->options = toy_options("gpt");
    run->options.precision = precision;
    run->options.optimizer.kind = kind;
    run->options.lr = 0.01f;
    run->options.initial_loss_scale = 64;
    run->options.on_nan = ON_NAN_SKIP;
    run->dataset = toy_dataset(&run->options, 100);
    replica_create(&run->replica, &run->options, seed, 10);
    run->gradients = parameters_allocate_gradients(&run->replica.model.parameters);
    run->inputs = alloc_or_fault(SAMPLES * run->dataset.input_bytes);
    run->targets = alloc_or_fault(SAMPLES * run->dataset.target_bytes);
    const int64_t indices[SAMPLES] = {7, 1, 4, 50, 23, 99};
    dataset_get(&run->dataset, 0, indices, SAMPLES, run->inputs, run->targets);
}

static void run_free(Run *run)
{
    device_free(run->gradients);
    free(run->inputs);
    free(run->targets);
    replica_free(&run->replica);
    dataset_close(&run->dataset);
}

/* Forward and backward; returns the loss. */
static float micro_batch(Run *run)
{
    float value = 0;
    Tensor *loss = replica_loss(&run->replica, &run->dataset, run->inputs, run->targets, SAMPLES);
    device_to_host(&value, loss->data, sizeof value);
    replica_backward(&run->replica, loss);
    return value;
}

static void update(Run *run, long step)
{
    ParameterList *parameters = &run->replica.model.parameters;
    for (int i = 0; i < parameters->count; i++) /* ddp.c's part */
        device_scale(parameters->items[i]->tensor.grad, replica_gradient_scale(&run->replica, SAMPLES),
                     tensor_count(&parameters->items[i]->tensor));
    replica_update(&run->replica, step);
}

/* Checks that exactly the weights of matrix products have copies, and none is stale. */
static void expect_copies(const Run *run, const char *when)
{
    const ParameterList *parameters = &run->replica.model.parameters;
    const DType precision = run->options.precision;
    size_t bytes = 0;
    for (int i = 0; i < parameters->count; i++) {
        const Parameter *parameter = parameters->items[i];
        const bool multiplied = parameter->tensor.ndim == 2 && parameter != run->replica.model.wpe;
        const bool expected = multiplied && precision != DTYPE_F32;
        if ((parameter->rounded.values != NULL) != expected)
            fail_msg("%s, %s: %s has %s copy", dtype_name(precision), when, parameter->name, expected ? "no" : "a");
        bytes += expected ? device_rounded_bytes(precision, tensor_count(&parameter->tensor)) : 0;
    }
    assert_int_equal(parameters_operand_bytes(parameters), bytes);
    const Parameter *stale = parameters_find_stale(parameters);
    if (stale != NULL)
        fail_msg("%s, %s: the copy of %s is stale; usual cause: an optimizer that does not call parameter_changed()",
                 dtype_name(precision), when, stale->name);
}

static void check_training(DType precision, OptimizerKind kind)
{
    Run run;
    run_create(&run, precision, kind, 1);
    assert_int_equal(parameters_operand_bytes(&run.replica.model.parameters), 0); /* not before they are needed */
    for (long step = 0; step < 4; step++) {
        micro_batch(&run);
        expect_copies(&run, "after a forward pass");
        micro_batch(&run);
        if (step == 2) /* an infinity: the step is skipped */
            device_fill(run.replica.model.wpe->tensor.grad, INFINITY, 1);
        update(&run, step);
        expect_copies(&run, step == 2 ? "after a skipped step" : "after a step");
    }
    run_free(&run);
}

static void test_copies_follow_training(void **state)
{
    const DType precisions[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (int p = 0; p < 3; p++) {
        check_training(precisions[p], OPTIMIZER_SGD);
        check_training(precisions[p], OPTIMIZER_ADAMW);
    }
}

/* The loss with source's weights, computed by a new model, which has no old copies. */
static float expected_loss(const Run *source)
{
    Run fresh;
    const size_t total = (size_t)parameters_total(&source->replica.model.parameters);
    float *values = alloc_or_fault(total * sizeof *values);
    run_create(&fresh, DTYPE_BF16, OPTIMIZER_ADAMW, 99);
    parameters_to_host(&source->replica.model.parameters, values);
    parameters_from_host(&fresh.replica.model.parameters, values); /* before there is any copy */
    float loss = micro_batch(&fresh);
    run_free(&fresh);
    free(values);
    return loss;
}

/* All ways in which code other than the optimizer writes weights, in a model that has copies. */
static void test_copies_are_made_anew(void **state)
{
    Run source, run;
    const char *parent = getenv("TMPDIR");
    char path[200];
    snprintf(path, sizeof path, "%s/lockstep_operands_XXXXXX", parent != NULL ? parent : "/tmp");
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    run_create(&source, DTYPE_BF16, OPTIMIZER_ADAMW, 5);
    const float expected = expected_loss(&source);
    Sampler sampler;
    sampler_create(&sampler, 8, 1, 4, 0, false, false);
    replica_save(&source.replica, path, NULL, &sampler, 1, RESCUE);
    for (int way = 0; way < 2; way++) {
        run_create(&run, DTYPE_BF16, OPTIMIZER_ADAMW, 6);
        assert_true(micro_batch(&run) != expected);
        if (way == 0) {
            const size_t total = (size_t)parameters_total(&run.replica.model.parameters);
            float *values = alloc_or_fault(total * sizeof *values);
            parameters_to_host(&source.replica.model.parameters, values);
            parameters_from_host(&run.replica.model.parameters, values);
            free(values);
        } else {
            replica_resume(&run.replica, path, &sampler);
        }
        const float got = micro_batch(&run);
        if (got != expected)
            fail_msg("%s: loss %.9g, expected %.9g; usual cause: products still read copies of the old weights",
                     way == 0 ? "parameters_from_host()" : "--resume", (double)got, (double)expected);
        expect_copies(&run, "after weights came from elsewhere");
        run_free(&run);
    }
    sampler_free(&sampler);
    unlink(path);
    run_free(&source);
}

/* A weight that was written without parameter_changed() is reported, whether its first or its last number changed. */
static void test_stale_copies_are_noticed(void **state)
{
    Run run;
    run_create(&run, DTYPE_F16, OPTIMIZER_SGD, 1);
    micro_batch(&run);
    ParameterList *parameters = &run.replica.model.parameters;
    for (int i = 0; i < parameters->count; i++) {
        const Parameter *parameter = parameters->items[i];
        const int64_t places[] = {0, tensor_count(&parameter->tensor) - 1};
        for (int k = 0; k < 2 && parameter->rounded.values != NULL; k++) {
            float *weight = (float *)parameter->tensor.data + places[k], before = 0, after = 3;
            device_to_host(&before, weight, sizeof before);
            device_from_host(weight, &after, sizeof after);
            assert_ptr_equal(parameters_find_stale(parameters), parameter);
            device_from_host(weight, &before, sizeof before);
            assert_null(parameters_find_stale(parameters));
        }
    }
    run_free(&run);
}

int main(void)
{
    device_init(0, 1);
    return run_cases("operands", cmocka_unit_test(test_copies_follow_training),
                     cmocka_unit_test(test_copies_are_made_anew), cmocka_unit_test(test_stale_copies_are_noticed));
}
