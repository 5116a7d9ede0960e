/* test_toys.c: the classical toys: 20 samples, mean squared error, SGD with learning rate 0.1, 5 steps on all samples,
 * in a new order each time. One toy has a frozen bias and a parameter that never gets a gradient. In the other one two
 * layers share one weight. Weights must equal those of one process within 1e-5, and frozen ones must keep every bit.
 * The one process is written out here without optimizer, sampler and DDP, so that no mistake can be in both.
 * Compiled once per stage, run on 1, 2, 3 and 4 ranks (8: slow). */
#include "expect.h"
#include "given.h"
#include "judge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/ops.h"
#include "base/check.h"
#include "base/rng.h"
#include "data/sampler.h"
#include "ddp.h"
#include "ddp/replicas.h"
#include "device/device.h"
#include "mpi_main.h"
#include "optim/optimizer.h"
#include "toy_models.h"

enum { SAMPLES = 20, STEPS = 5, INPUTS = 10, WIDTH = 12, OUTPUTS = 5, MAX_LAYERS = 5 };
static const float learning_rate_of_toys = 0.1f;

static ProcessGroup *pg;
static Options options; /* of the process group and of DDP: each bucket holds one or two parameters */

/* ---- the toys ---- */

/* Layers with ReLU between them. Two layers may have the same weight. */
typedef struct Toy {
    ParameterList parameters;
    Tape tape;
    Parameter *weight[MAX_LAYERS], *bias[MAX_LAYERS]; /* not owned; NULL: no bias */
    int layers;
} Toy;

static Parameter *add(Toy *toy, const char *name, int outputs, int inputs, bool trained)
{
    Parameter *parameter = parameters_add(&toy->parameters, name, inputs > 0 ? 2 : 1, (int64_t[]){outputs, inputs});
    parameter->tensor.requires_grad = trained;
    return parameter;
}

static void add_layer(Toy *toy, Parameter *weight, Parameter *bias)
{
    toy->weight[toy->layers] = weight;
    toy->bias[toy->layers++] = bias;
}

/* Frozen parameters stand between trained ones, to check that they take no space in a bucket. */
static void create_frozen(Toy *toy)
{
    add_layer(toy, add(toy, "fc1.weight", WIDTH, INPUTS, true), NULL);
    add(toy, "never_used", 2, 0, false); /* forward does not use it */
    Parameter *weight = add(toy, "fc2.weight", WIDTH, WIDTH, true);
    add_layer(toy, weight, add(toy, "fc2.bias", WIDTH, 0, false));
    add_layer(toy, add(toy, "fc3.weight", OUTPUTS, WIDTH, true), NULL);
}

/* The shared weight is registered last, so it is in the first bucket. A stage that launches this bucket after the first
 * contribution sends it while layer 2 still adds to it. (test_tied_weight in test_overlap.c checks this without
 * depending on time.) */
static void create_shared(Toy *toy)
{
    Parameter *first = add(toy, "fc1.weight", WIDTH, INPUTS, true), *bias2 = add(toy, "fc2.bias", WIDTH, 0, true);
    Parameter *third = add(toy, "fc3.weight", WIDTH, WIDTH, true), *bias4 = add(toy, "fc4.bias", WIDTH, 0, true);
    add(toy, "never_used", 2, 0, false);
    Parameter *fifth = add(toy, "fc5.weight", OUTPUTS, WIDTH, true);
    Parameter *shared = add(toy, "fc2_and_fc4.weight", WIDTH, WIDTH, true);
    add_layer(toy, first, NULL);
    add_layer(toy, shared, bias2);
    add_layer(toy, third, NULL);
    add_layer(toy, shared, bias4);
    add_layer(toy, fifth, NULL);
}

typedef struct ToyKind {
    const char *name;
    void (*create)(Toy *toy);
} ToyKind;

static Toy *toy_create(const ToyKind *kind, uint64_t seed)
{
    Rng rng;
    rng_seed(&rng, seed);
    Toy *toy = alloc_or_fault(sizeof *toy);
    toy->tape.precision = DTYPE_F32;
    kind->create(toy);
    for (int i = 0; i < toy->parameters.count; i++) {
        float *values = toy->parameters.items[i]->tensor.data;
        for (int64_t k = 0; k < tensor_count(&toy->parameters.items[i]->tensor); k++)
            values[k] = 0.3f * rng_normal(&rng);
    }
    return toy;
}

static void toy_free(Toy *toy)
{
    tape_free(&toy->tape);
    parameters_free(&toy->parameters);
    free(toy);
}

/* ---- the samples ---- */

static float inputs_of[SAMPLES][INPUTS], targets_of[SAMPLES][OUTPUTS];

static void draw_samples(void)
{
    Rng rng;
    rng_seed(&rng, 20);
    for (int i = 0; i < SAMPLES; i++) {
        for (int k = 0; k < INPUTS; k++)
            inputs_of[i][k] = rng_normal(&rng);
        for (int k = 0; k < OUTPUTS; k++)
            targets_of[i][k] = rng_normal(&rng);
    }
}

/* The summed loss of `count` samples, possibly of none. Starts a new tape. */
static Tensor *toy_loss(Toy *toy, const int64_t *indices, int64_t count)
{
    tape_begin(&toy->tape, true);
    Tensor *x = tape_tensor(&toy->tape, 2, (int64_t[]){count, INPUTS}, false);
    Tensor *targets = tape_tensor(&toy->tape, 2, (int64_t[]){count, OUTPUTS}, false);
    for (int64_t i = 0; i < count; i++) {
        memcpy((float *)x->data + i * INPUTS, inputs_of[indices[i]], sizeof inputs_of[0]);
        memcpy((float *)targets->data + i * OUTPUTS, targets_of[indices[i]], sizeof targets_of[0]);
    }
    for (int layer = 0; layer < toy->layers; layer++) {
        Parameter *bias = toy->bias[layer];
        x = op_linear(&toy->tape, layer > 0 ? op_relu(&toy->tape, x) : x, &toy->weight[layer]->tensor,
                      bias != NULL ? &bias->tensor : NULL);
    }
    return op_mse(&toy->tape, x, targets->data);
}

/* ---- one step, on all ranks and in one process ---- */

static void gradient_of_ranks(Toy *toy, Ddp *ddp, const Sampler *sampler)
{
    int64_t indices[SAMPLES];
    int64_t count = sampler_indices(sampler, 0, pg_rank(pg), 0, 1, indices);
    ddp_before_forward(ddp, true);
    Tensor *loss = toy_loss(toy, indices, count);
    ddp_before_backward(ddp, loss);
    tape_backward(&toy->tape, loss, 1);
    ddp_after_backward(ddp, 1.0f / SAMPLES);
}

/* Of all samples, in the order of their numbers. */
static void gradient_of_one_process(Toy *toy)
{
    int64_t indices[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        indices[i] = i;
    tape_backward(&toy->tape, toy_loss(toy, indices, SAMPLES), 1);
    for (int i = 0; i < toy->parameters.count; i++) {
        Tensor *tensor = &toy->parameters.items[i]->tensor;
        float *sum = tensor->grad;
        for (int64_t k = 0; tensor->requires_grad && k < tensor_count(tensor); k++)
            sum[k] /= SAMPLES;
    }
}

/* The update, written out. */
static void update_of_one_process(Toy *toy)
{
    for (int i = 0; i < toy->parameters.count; i++) {
        Tensor *tensor = &toy->parameters.items[i]->tensor;
        float *value = tensor->data;
        const float *mean = tensor->grad;
        for (int64_t k = 0; tensor->requires_grad && k < tensor_count(tensor); k++)
            value[k] -= learning_rate_of_toys * mean[k];
    }
    parameters_changed(&toy->parameters);
    parameters_zero_gradients(&toy->parameters);
}

/* ---- comparisons ---- */

/* initial: rank 0's weights before the first step, in list order. */
static void compare(const ToyKind *kind, const Toy *ranks, const Toy *whole, const float *initial, int step)
{
    for (int i = 0; i < ranks->parameters.count; i++) {
        const Parameter *got = ranks->parameters.items[i], *want = whole->parameters.items[i];
        int64_t count = tensor_count(&got->tensor);
        char name[200];
        snprintf(name, sizeof name, "the %s toy's %s after step %d on %d ranks", kind->name, got->name, step,
                 pg_world_size(pg));
        if (!got->tensor.requires_grad)
            expect_bits_equal(name, got->tensor.data, initial, count,
                              "it is frozen: it is broadcast before the first step, and must not change after that");
        else
            expect_close(name, got->tensor.data, want->tensor.data, count, 1e-5, 0, step == 0 ?
                         "ddp_create() must broadcast EVERY parameter from rank 0, frozen ones, too" :
                         "its gradient must be the sum over ALL ranks, divided by the samples of the global batch, "
                         "once. A weight that two layers share has two contributions, and is sent after the second");
        initial += count;
    }
}

/* versions: of the weights before they became rank 0's. */
static void expect_marked(const ToyKind *kind, const Toy *ranks, const long *versions)
{
    for (int i = 0; i < ranks->parameters.count && pg_rank(pg) > 0; i++)
        if (ranks->parameters.items[i]->version == versions[i])
            fail_msg("%s: %s was written from rank 0, but parameter_changed() or parameters_changed() (tensor.h) was "
                     "not called: a product in 16 bits may read an old copy", kind->name,
                     ranks->parameters.items[i]->name);
}

static Ddp *create_marked(const ToyKind *kind, Toy *ranks)
{
    long versions[16];
    CHECK(ranks->parameters.count <= 16, "a toy has more than 16 parameters");
    for (int i = 0; i < ranks->parameters.count; i++)
        versions[i] = ranks->parameters.items[i]->version;
    options.ddp.sharding = &options.sharding;
    Ddp *ddp = ddp_create(pg, &ranks->parameters, &ranks->tape, &options.ddp);
    CHECK(ddp != NULL, "ddp_create() returned NULL");
    if (!in_judge())
        expect_marked(kind, ranks, versions);
    return ddp;
}

static void train_toy(const ToyKind *kind)
{
    const OptimizerOptions sgd = {.kind = OPTIMIZER_SGD};
    Toy *ranks = toy_create(kind, toy_seed(pg));
    Optimizer optimizer;
    optimizer_create(&optimizer, &sgd, &ranks->parameters);
    Ddp *ddp = create_marked(kind, ranks);
    optimizer_set_partition(&optimizer, ddp_partition(ddp));
    ddp_gather_weights(ddp);
    Toy *whole = toy_create(kind, toy_seed_of_rank_0(pg)); /* now that all ranks have rank 0's weights */
    float *initial = alloc_or_fault((size_t)parameters_total(&whole->parameters) * sizeof *initial);
    parameters_to_host(&whole->parameters, initial);
    judged_weights(&ranks->parameters);
    give_start(&ranks->parameters, &whole->parameters, ddp_partition(ddp));
    void *gradients = parameters_allocate_gradients(&whole->parameters);
    Sampler sampler;
    sampler_create(&sampler, SAMPLES, pg_world_size(pg), SAMPLES, 5, true, false);
    compare(kind, ranks, whole, initial, 0);
    for (int step = 1; step <= STEPS; step++) {
        sampler_set_epoch(&sampler, step); /* a new order: each rank gets other samples */
        if (!in_judge())
            gradient_of_ranks(ranks, ddp, &sampler);
        gradient_of_one_process(whole);
        if (ddp_partition(ddp) == NULL) /* stage 5 has its sums in slices */
            give_factor(&ranks->parameters, &whole->parameters, NULL);
        optimizer_step(&optimizer, learning_rate_of_toys);
        parameters_zero_gradients(&ranks->parameters);
        ddp_after_update(ddp);
        ddp_gather_weights(ddp);
        judged_weights(&ranks->parameters);
        update_of_one_process(whole);
        compare(kind, ranks, whole, initial, step);
        replicas_check_equal(pg, &ranks->parameters);
    }
    sampler_free(&sampler);
    ddp_destroy(ddp);
    device_free(gradients);
    optimizer_free(&optimizer);
    free(initial);
    toy_free(ranks);
    toy_free(whole);
}

/* ---- the cases ---- */

static void test_frozen_bias_and_parameter_without_gradient(void **state)
{
    train_toy(&(ToyKind){"frozen", create_frozen});
}

static void test_two_layers_share_a_weight(void **state)
{
    train_toy(&(ToyKind){"shared", create_shared});
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frozen_bias_and_parameter_without_gradient),
        cmocka_unit_test(test_two_layers_share_a_weight),
    };
    judge_runs_cases = true;
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    options = toy_options("mlp-toy");
    pg = tests_start_group(&argc, &argv, &options.group);
    draw_samples();
    int failures = cmocka_run_group_tests_name("toys", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
