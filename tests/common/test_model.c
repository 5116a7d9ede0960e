/* test_model.c: the models' sizes and layers, their initial weights (and the random numbers behind them), and their
 * depth. Their results: test_reference.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "device/device.h"
#include "expect.h"
#include "nn/model.h"

static ModelSpec spec_of(const char *name)
{
    ModelSpec spec;
    assert_true(model_spec_by_name(name, &spec));
    assert_string_equal(spec.name, name);
    return spec;
}

static int64_t parameters_of(const ModelSpec *spec)
{
    Model model;
    model_create(&model, spec, 1);
    int64_t total = parameters_total(&model.parameters);
    model_free(&model);
    return total;
}

/* ---- random numbers ---- */

/* The generator's first numbers for seed 1, computed from its authors' description. They must not change: a seed stands
 * for the same weights and the same order of samples in every version and on every machine. */
static void test_random_numbers(void **state)
{
    Rng rng;
    rng_seed(&rng, 1);
    assert_true(rng_bits(&rng) == 0xb3f2af6d0fc710c5u);
    assert_true(rng_bits(&rng) == 0x853b559647364ceau);
    assert_true(rng_bits(&rng) == 0x92f89756082a4514u);
    assert_true(rng_uniform(&rng) == 0.3913285732269287f);
    assert_true(fabsf(rng_normal(&rng) - 0.9582971460957354f) <= 1e-7f);
    assert_int_equal(rng_below(&rng, 1000), 286);
}

/* ---- sizes ---- */

static void expect_gpt_sizes(const char *name, GptSizes expected)
{
    GptSizes sizes = spec_of(name).gpt;
    assert_int_equal(spec_of(name).kind, MODEL_GPT);
    assert_int_equal(sizes.layers, expected.layers);
    assert_int_equal(sizes.heads, expected.heads);
    assert_int_equal(sizes.width, expected.width);
    assert_int_equal(sizes.context, expected.context);
    assert_int_equal(sizes.vocabulary, expected.vocabulary);
    assert_int_equal(sizes.padded_vocabulary, expected.padded_vocabulary);
}

static void test_sizes(void **state)
{
    expect_gpt_sizes("gpt", (GptSizes){4, 4, 256, 128, 256, 256});
    expect_gpt_sizes("gpt2", (GptSizes){12, 12, 768, 1024, 50257, 50304});
    ModelSpec mlp = spec_of("mlp"), toy = spec_of("mlp-toy"), none;
    assert_int_equal(parameters_of(&mlp), 784 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10);
    assert_int_equal(parameters_of(&toy), 10 * 20 + 20 + 20 * 20 + 20 + 20 * 5);
    assert_false(model_spec_by_name("gpt3", &none));
}

static void test_no_two_parameters_have_one_name(void **state)
{
    Model model;
    ModelSpec spec = spec_of("mlp-toy");
    model_create(&model, &spec, 1);
    for (int i = 0; i < model.parameters.count; i++)
        for (int k = 0; k < i; k++)
            assert_string_not_equal(model.parameters.items[i]->name, model.parameters.items[k]->name);
    model_free(&model);
}

/* The number of parameters in each layer, which are gathered together in stage 5. */
static void expect_layers(const ModelSpec *spec, int layers, const int *sizes)
{
    Model model;
    model_create(&model, spec, 1);
    int next = 0;
    for (int layer = 0; layer < layers; layer++)
        for (int i = 0; i < sizes[layer]; i++, next++)
            assert_int_equal(model.parameters.items[next]->layer - model.parameters.items[0]->layer, layer);
    assert_int_equal(model.parameters.count, next);
    model_free(&model);
}

static void test_layers(void **state)
{
    ModelSpec toy = spec_of("mlp-toy"), gpt = spec_of("gpt");
    gpt.gpt = (GptSizes){3, 2, 8, 5, 11, 11};
    expect_layers(&toy, 3, (int[]){2, 2, 1});
    expect_layers(&gpt, 4, (int[]){2, 12, 12, 14}); /* the embeddings; the blocks, the last with the last layernorm */
}

/* ---- initial weights ---- */

/* The mean, the root of the mean square, the largest and the smallest size of a parameter's numbers. */
typedef struct Moments {
    double mean, rms, largest, smallest;
} Moments;

static Moments moments_of(const Parameter *parameter)
{
    int64_t count = tensor_count(&parameter->tensor);
    float *values = alloc_or_fault((size_t)count * sizeof *values);
    Moments moments = {.smallest = INFINITY};
    device_to_host(values, parameter->tensor.data, (size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++) {
        moments.mean += (double)values[i] / (double)count;
        moments.rms += (double)values[i] * (double)values[i] / (double)count;
        moments.largest = fmax(moments.largest, fabs((double)values[i]));
        moments.smallest = fmin(moments.smallest, fabs((double)values[i]));
    }
    moments.rms = sqrt(moments.rms);
    free(values);
    return moments;
}

static void expect_about(const char *name, const char *what, double actual, double expected, double allowed)
{
    if (!(fabs(actual - expected) <= allowed))
        fail_msg("%s: expected %s of %g, got %g", name, what, expected, actual);
}

/* At least 4,000 normal numbers: 5 % is more than four standard deviations of their root mean square. */
static void expect_normal(const Parameter *parameter, double deviation)
{
    Moments moments = moments_of(parameter);
    expect_about(parameter->name, "a deviation", moments.rms, deviation, 0.05 * deviation);
    expect_about(parameter->name, "a mean", moments.mean, 0, 0.08 * deviation);
    assert_true(moments.smallest > 0); /* every number was drawn */
    expect_about(parameter->name, "a largest number", moments.largest, 4.2 * deviation, 1.2 * deviation);
}

static void expect_constant(const Parameter *parameter, double value)
{
    Moments moments = moments_of(parameter);
    expect_about(parameter->name, "a mean", moments.mean, value, 0);
    expect_about(parameter->name, "a size", moments.largest, value, 0);
}

static void test_first_weights_of_gpt(void **state)
{
    for (int layers = 1; layers <= 8; layers += 7) {
        ModelSpec spec = spec_of("gpt");
        spec.gpt = (GptSizes){layers, 2, 64, 64, 100, 128};
        Model model;
        model_create(&model, &spec, 3);
        const GptBlock *last = &model.blocks[layers - 1];
        const double residual = 0.02 / sqrt(2.0 * layers);
        const Parameter *normal[] = {model.wte, model.wpe, last->c_attn_weight, last->c_fc_weight};
        const Parameter *zeros[] = {last->ln_1_bias,      last->c_attn_bias, last->attn_proj_bias, last->ln_2_bias,
                                    last->c_fc_bias, last->mlp_proj_bias, model.ln_f_bias};
        for (int i = 0; i < 4; i++)
            expect_normal(normal[i], 0.02);
        expect_normal(last->attn_proj_weight, residual);
        expect_normal(last->mlp_proj_weight, residual);
        for (int i = 0; i < 7; i++)
            expect_constant(zeros[i], 0);
        expect_constant(last->ln_1_weight, 1);
        expect_constant(last->ln_2_weight, 1);
        expect_constant(model.ln_f_weight, 1);
        model_free(&model);
    }
}

static void test_first_weights_of_mlp(void **state)
{
    ModelSpec spec = spec_of("mlp");
    Model model;
    model_create(&model, &spec, 3);
    const int inputs[] = {784, 512, 512};
    for (int layer = 0; layer < 3; layer++) {
        const double limit = 1 / sqrt(inputs[layer]);
        Moments weight = moments_of(model.fc_weight[layer]), bias = moments_of(model.fc_bias[layer]);
        expect_about(model.fc_weight[layer]->name, "a mean", weight.mean, 0, 0.05 * limit);
        expect_about(model.fc_weight[layer]->name, "a deviation", weight.rms, limit / sqrt(3), 0.02 * limit);
        assert_true(weight.smallest > 0);
        expect_about(model.fc_weight[layer]->name, "a largest number", weight.largest, limit, 0.01 * limit);
        expect_about(model.fc_bias[layer]->name, "a largest number", bias.largest, 0.75 * limit, 0.25 * limit);
    }
    model_free(&model);
}

/* ---- depth ---- */

/* Many layers have more operations than the tape's first arrays hold: it must grow and keep its nodes. */
static void test_deep_gpt(void **state)
{
    enum { TIME = 5 };
    ModelSpec spec = spec_of("gpt");
    spec.gpt = (GptSizes){24, 2, 8, TIME, 11, 11};
    Model model;
    Tape tape = {0};
    int32_t tokens[TIME] = {3, 1, 4, 1, 5}, targets[TIME] = {1, 4, 1, 5, 9};
    model_create(&model, &spec, 1);
    void *gradients = parameters_allocate_gradients(&model.parameters);
    void *inputs = device_alloc(sizeof tokens), *wanted = device_alloc(sizeof targets);
    device_from_host(inputs, tokens, sizeof tokens);
    device_from_host(wanted, targets, sizeof targets);
    for (int step = 0; step < 2; step++) { /* the second step needs no new memory */
        parameters_zero_gradients(&model.parameters);
        tape_begin(&tape, true);
        tape_backward(&tape, model_loss(&model, &tape, inputs, wanted, 1, TIME), 1);
        assert_true(tape.count > 128);
        for (int i = 0; i < model.parameters.count; i++)
            if (!model.parameters.items[i]->has_gradient)
                fail_msg("%s has no gradient", model.parameters.items[i]->name);
    }
    device_free(inputs);
    device_free(wanted);
    device_free(gradients);
    model_free(&model);
    tape_free(&tape);
}

/* A name has 63 characters at most. */
static void add_a_parameter(void *name)
{
    ParameterList list = {0};
    parameters_add(&list, name, 1, (int64_t[]){1});
    parameters_free(&list);
    exit(0);
}

static void test_the_longest_name(void **state)
{
    char name[65] = "";
    memset(name, 'x', 63);
    expect_dies(add_a_parameter, name, 0, "");
    name[63] = 'x';
    expect_dies(add_a_parameter, name, 1, "is too long");
}

int main(void)
{
    device_init(0, 1);
    return run_cases("model", cmocka_unit_test(test_random_numbers), cmocka_unit_test(test_sizes),
                     cmocka_unit_test(test_no_two_parameters_have_one_name), cmocka_unit_test(test_layers),
                     cmocka_unit_test(test_first_weights_of_gpt), cmocka_unit_test(test_first_weights_of_mlp),
                     cmocka_unit_test(test_deep_gpt), cmocka_unit_test(test_the_longest_name));
}
