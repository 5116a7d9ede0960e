/* test_reference.c: lockstep and PyTorch compute the same: logits, loss, every gradient, the gradients' norm, and ten
 * steps of SGD and AdamW, for a tiny GPT and three MLPs; with batch norm 50 steps, and the running statistics after.
 * Weights and batches are drawn here, and tensors are compared by four weighted sums. The expected numbers were written
 * by reference/make_reference.py (which describes the format); PyTorch is not needed to run the test.
 *
 * PyTorch computed the expected numbers in float64. lockstep computes in float32, where each rounding has a relative
 * error of up to 6e-8, and these small models have chains of a few dozen. So the allowed error is 5e-6 of a record's
 * largest number; the error of a wrong formula is far larger.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "device/device.h"
#include "expect.h"
#include "nn/model.h"
#include "optim/optimizer.h"

#define TOLERANCE 5e-6
#define CURVE_TOLERANCE 2e-5 /* larger, because ten steps accumulate their errors */

/* ---- reading the file ---- */

typedef struct Record {
    char name[96];
    int count;
    double values[16];
} Record;

typedef struct Reference {
    Record records[64];
    int count;
} Reference;

/* A comment is a line whose first character is '#'. */
static void skip_comments(FILE *file)
{
    char sign[2];
    while (fscanf(file, " %1[#]", sign) == 1)
        for (int c = 0; c != '\n' && c != EOF;)
            c = getc(file);
}

static bool read_record(FILE *file, Record *record)
{
    skip_comments(file);
    if (fscanf(file, "%95s %d", record->name, &record->count) != 2)
        return false;
    CHECK(record->count > 0 && record->count <= 16, "%s: not a count", record->name);
    for (int i = 0; i < record->count; i++)
        CHECK(fscanf(file, "%la", &record->values[i]) == 1, "%s: number %d is missing", record->name, i);
    return true;
}

static void reference_load(Reference *reference, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.txt", LOCKSTEP_TEST_DATA, name);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL, "cannot read %s", path);
    *reference = (Reference){0};
    while (reference->count < 64 && read_record(file, &reference->records[reference->count]))
        reference->count++;
    CHECK(feof(file), "%s: more records than expected, or a damaged one", path);
    fclose(file);
}

/* The record PREFIX + NAME. */
static const Record *find(const Reference *reference, const char *prefix, const char *name)
{
    size_t length = strlen(prefix);
    for (int i = 0; i < reference->count; i++) {
        const char *full = reference->records[i].name;
        if (strncmp(full, prefix, length) == 0 && strcmp(full + length, name) == 0)
            return &reference->records[i];
    }
    FAULT("the reference has no %s%s", prefix, name);
}

enum { FACTORS = 0, INPUTS = 101, TARGETS = 102 }; /* series of numbers; weights are those from 1 */

/* A number in [0, 1), as make_reference.py draws it. */
static double draw(uint64_t series, int64_t place)
{
    uint64_t z = (series << 32 | (uint64_t)place) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)(z >> 40) * 0x1p-24;
}

/* On the device: whole numbers below limit, as int32; if that is 0, real ones, as float32. device_free() them. */
static void *draw_batch(uint64_t series, int64_t count, int limit)
{
    size_t bytes = (size_t)count * sizeof(float);
    float *floats = alloc_or_fault(bytes);
    int32_t *integers = alloc_or_fault(bytes);
    for (int64_t i = 0; i < count; i++) {
        floats[i] = (float)(4 * draw(series, i) - 2);
        integers[i] = (int32_t)(limit * draw(series, i));
    }
    void *device = device_alloc(bytes);
    device_from_host(device, limit > 0 ? (void *)integers : floats, bytes);
    free(floats);
    free(integers);
    return device;
}

/* Compares the four sums of a tensor with a record; allowed: `tolerance` of the record's largest. */
static void compare_sums(const char *title, const Tensor *tensor, const float *data, const Record *record,
                         double tolerance, const char *hint)
{
    int64_t count = tensor_count(tensor);
    float *values = alloc_or_fault((size_t)count * sizeof *values), actual[4], expected[4];
    double sums[4] = {0}, largest = 0;
    device_to_host(values, data, (size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        sums[i % 4] += (0.5 + draw(FACTORS, i)) * (double)values[i];
    for (int i = 0; i < 4; i++) {
        actual[i] = (float)sums[i];
        expected[i] = (float)record->values[i];
        largest = fmax(largest, fabs(record->values[i]));
    }
    expect_close(title, actual, expected, 4, tolerance * largest, 0, hint);
    free(values);
}

/* ---- a model with the reference's weights and batch ---- */

typedef struct Setup {
    Reference reference;
    Model model;
    Tape tape;
    void *inputs, *targets, *gradients;
    int64_t samples, time;
} Setup;

/* As draw_weights() of make_reference.py. */
static void draw_weights(ParameterList *list)
{
    uint64_t series = 0;
    for (int i = 0; i < list->count; i++) {
        const Parameter *parameter = list->items[i];
        if (parameter->is_buffer)
            continue;
        bool is_scale = parameter->tensor.ndim == 1 && strstr(parameter->name, ".weight") != NULL;
        int64_t count = tensor_count(&parameter->tensor);
        float *values = alloc_or_fault((size_t)count * sizeof *values);
        series++;
        for (int64_t k = 0; k < count; k++)
            values[k] = (float)((is_scale ? 1 : 0) +
                                (parameter->tensor.ndim == 2 ? 0.75 : 0.375) * (2 * draw(series, k) - 1));
        device_from_host(parameter->tensor.data, values, (size_t)count * sizeof *values);
        free(values);
    }
}

static ModelSpec spec_of(const Reference *reference, const char *name)
{
    const double *size = find(reference, "sizes", "")->values;
    ModelSpec spec = {.kind = MODEL_MLP,
                      .norm = strcmp(name, "mlp-norm") == 0 ? NORM_BATCH : NORM_NONE,
                      .loss = strcmp(name, "mlp-toy") == 0 ? LOSS_MSE : LOSS_CROSS_ENTROPY};
    snprintf(spec.name, sizeof spec.name, "%s", name);
    if (strcmp(name, "gpt") == 0) {
        spec.kind = MODEL_GPT;
        spec.gpt = (GptSizes){(int)size[0], (int)size[1], (int)size[2], (int)size[3], (int)size[4], (int)size[5]};
    } else {
        spec.mlp = (MlpSizes){(int)size[0], (int)size[1], (int)size[2], (int)size[3], size[4] > 0,
                              size[5] > 0 ? ACTIVATION_RELU : ACTIVATION_GELU};
    }
    return spec;
}

static void setup_create(Setup *setup, const char *name)
{
    *setup = (Setup){0};
    reference_load(&setup->reference, name);
    ModelSpec spec = spec_of(&setup->reference, name);
    model_create(&setup->model, &spec, 1);
    setup->gradients = parameters_allocate_gradients(&setup->model.parameters);
    const double *size = find(&setup->reference, "sizes", "")->values;
    int limit = spec.kind == MODEL_GPT ? (int)size[4] : spec.loss == LOSS_MSE ? 0 : (int)size[3];
    setup->samples = (int64_t)size[6];
    setup->time = (int64_t)size[7]; /* the MLP ignores it */
    if (spec.kind == MODEL_GPT)
        setup->inputs = draw_batch(INPUTS, setup->samples * setup->time, limit);
    else
        setup->inputs = draw_batch(INPUTS, setup->samples * spec.mlp.inputs, 0);
    setup->targets = draw_batch(TARGETS, setup->samples * (limit > 0 ? setup->time : (int64_t)size[3]), limit);
    draw_weights(&setup->model.parameters);
}

static void setup_free(Setup *setup)
{
    device_free(setup->inputs);
    device_free(setup->targets);
    device_free(setup->gradients);
    model_free(&setup->model);
    tape_free(&setup->tape);
}

/* The mean loss of the batch; adds its gradient to the (zeroed) gradients. */
static double forward_backward(Setup *setup)
{
    tape_begin(&setup->tape, true);
    parameters_zero_gradients(&setup->model.parameters);
    Tensor *loss = model_loss(&setup->model, &setup->tape, setup->inputs, setup->targets, setup->samples, setup->time);
    int64_t terms = model_loss_terms(&setup->model.spec, setup->samples, setup->time);
    tape_backward(&setup->tape, loss, 1.0f / (float)terms);
    float sum;
    device_to_host(&sum, loss->data, sizeof sum);
    return (double)sum / (double)terms;
}

/* ---- the comparisons ---- */

static void check_one_step(const char *name)
{
    Setup setup;
    char title[160];
    setup_create(&setup, name);
    const Reference *reference = &setup.reference;

    tape_begin(&setup.tape, false);
    Tensor *logits = model_forward(&setup.model, &setup.tape, setup.inputs, setup.samples, setup.time);
    snprintf(title, sizeof title, "%s: logits", name);
    compare_sums(title, logits, logits->data, find(reference, "logits", ""), TOLERANCE,
                 "a layer is missing, in another order, or has other weights");

    float loss = (float)forward_backward(&setup), expected_loss = (float)find(reference, "loss", "")->values[0];
    snprintf(title, sizeof title, "%s: loss", name);
    expect_close(title, &loss, &expected_loss, 1, 0, TOLERANCE, "the loss is a sum, to be divided by its terms once");

    const ParameterList *list = &setup.model.parameters;
    int records = 0;
    for (int i = 0; i < reference->count; i++)
        records += strncmp(reference->records[i].name, "grad/", 5) == 0;
    int trained = 0;
    for (int i = 0; i < list->count; i++) {
        if (list->items[i]->is_buffer)
            continue;
        trained++;
        snprintf(title, sizeof title, "%s: gradient of %s", name, list->items[i]->name);
        const Tensor *tensor = &list->items[i]->tensor;
        compare_sums(title, tensor, tensor->grad, find(reference, "grad/", list->items[i]->name), TOLERANCE,
                     "see test_device_operations first: if it passes, the model wires its operations wrongly");
    }
    assert_int_equal(trained, records);
    Optimizer optimizer;
    optimizer_create(&optimizer, &(OptimizerOptions){.kind = OPTIMIZER_SGD}, &setup.model.parameters);
    clip_grad_norm(&optimizer, INFINITY);
    optimizer_end_step(&optimizer);
    float norm = (float)optimizer.norm;
    float expected_norm = (float)find(reference, "grad_norm", "")->values[0];
    snprintf(title, sizeof title, "%s: norm of all gradients", name);
    expect_close(title, &norm, &expected_norm, 1, 0, TOLERANCE, "one norm over all parameters, not one for each");
    optimizer_free(&optimizer);
    setup_free(&setup);
}

/* Trains on the one batch and compares the loss before every step, and after the last. */
static void check_curve(const char *name, const char *run)
{
    Setup setup;
    char title[160];
    setup_create(&setup, name);
    const double *option = find(&setup.reference, run, "/options")->values;
    const Record *losses = find(&setup.reference, run, "/losses");

    OptimizerOptions options = {.kind = option[0] > 0 ? OPTIMIZER_ADAMW : OPTIMIZER_SGD,
                                .momentum = (float)option[2],
                                .beta1 = (float)option[3],
                                .beta2 = (float)option[4],
                                .eps = (float)option[5],
                                .weight_decay = (float)option[6]};
    Optimizer optimizer;
    optimizer_create(&optimizer, &options, &setup.model.parameters);
    float actual[16], expected[16];
    int every = setup.model.spec.norm == NORM_BATCH ? 5 : 1; /* steps from one record to the next */
    for (int step = 0; step <= (losses->count - 1) * every; step++) {
        float loss = (float)forward_backward(&setup);
        if (step % every == 0)
            actual[step / every] = loss;
        if (option[7] > 0)
            clip_grad_norm(&optimizer, option[7]);
        optimizer_step(&optimizer, (float)option[1]);
    }
    for (int i = 0; i < losses->count; i++)
        expected[i] = (float)losses->values[i];
    snprintf(title, sizeof title, "%s: losses under %s", name, run);
    expect_close(title, actual, expected, losses->count, 0, CURVE_TOLERANCE,
                 "the first loss that is off tells the step after which an update went wrong");
    for (int i = 0; i < setup.model.parameters.count; i++) {
        const Parameter *parameter = setup.model.parameters.items[i];
        char record[80];
        snprintf(record, sizeof record, "/%s", parameter->name);
        if (parameter->is_buffer)
            compare_sums(title, &parameter->tensor, parameter->tensor.data, find(&setup.reference, run, record),
                         CURVE_TOLERANCE, "the running variance takes the unbiased one; both move by 0.1");
    }
    optimizer_free(&optimizer);
    setup_free(&setup);
}

static void check_model(const char *name)
{
    check_one_step(name);
    const char *runs[] = {"sgd", "sgd_momentum", "sgd_clipped", "adamw"};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        check_curve(name, runs[i]);
}

static void test_mlp(void **state)
{
    check_model("mlp");
}

static void test_mlp_with_batch_norm(void **state)
{
    check_model("mlp-norm");
}

static void test_mlp_toy(void **state)
{
    check_model("mlp-toy");
}

static void test_gpt(void **state)
{
    check_model("gpt");
}

int main(void)
{
    device_init(0, 1);
    return run_cases("reference", cmocka_unit_test(test_mlp), cmocka_unit_test(test_mlp_with_batch_norm),
                     cmocka_unit_test(test_mlp_toy),
                     cmocka_unit_test(test_gpt));
}
