/* test_equivalence.c: N ranks with DDP train what one process trains on whole batches, compared after EVERY step.
 * Compiled once per stage, run on 1, 2, 3 and 4 ranks. */
#include "expect.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "data/loader.h"
#include "ddp/replicas.h"
#include "device/device.h"
#include "mpi_main.h"
#include "toy_data.h"
#include "train/replica.h"

static ProcessGroup *pg;

/* A rank's training, and beside it the same training in one process. Both are on every rank. */
typedef struct Pair {
    Options options;
    Dataset dataset;
    Sampler sampler;
    Loader *loader;
    Replica ranks, whole;
    Ddp *ddp;
    void *whole_gradients;
    int64_t *indices;
    float *inputs_and_targets;
} Pair;

/* Every rank seeds its weights differently: only the broadcast can make them equal. */
static Pair *pair_create(Options options, int64_t samples, const char *frozen)
{
    Pair *pair = alloc_or_fault(sizeof *pair);
    pair->options = options;
    pair->dataset = toy_dataset(&pair->options, samples);
    replica_create(&pair->ranks, &pair->options, options.seed + (uint64_t)pg_rank(pg), options.steps);
    replica_create(&pair->whole, &pair->options, options.seed, options.steps); /* as rank 0 */
    if (frozen != NULL) {
        parameters_find(&pair->ranks.model.parameters, frozen)->tensor.requires_grad = false;
        parameters_find(&pair->whole.model.parameters, frozen)->tensor.requires_grad = false;
    }
    pair->ddp = ddp_create(pg, &pair->ranks.model.parameters, &pair->ranks.tape, &pair->options.ddp);
    pair->whole_gradients = parameters_allocate_gradients(&pair->whole.model.parameters);
    sampler_create(&pair->sampler, samples, pg_world_size(pg), options.batch_size, options.seed, true, false);
    pair->loader = loader_start(&pair->dataset, &pair->sampler, pg_rank(pg), options.accumulate, 0);
    pair->indices = alloc_or_fault((size_t)(options.batch_size + pg_world_size(pg)) * sizeof *pair->indices);
    pair->inputs_and_targets = alloc_or_fault((size_t)options.batch_size *
                                              (pair->dataset.input_bytes + pair->dataset.target_bytes));
    return pair;
}

static void pair_free(Pair *pair)
{
    loader_stop(pair->loader);
    ddp_destroy(pair->ddp);
    device_free(pair->whole_gradients);
    replica_free(&pair->ranks);
    replica_free(&pair->whole);
    sampler_free(&pair->sampler);
    dataset_close(&pair->dataset);
    free(pair->indices);
    free(pair->inputs_and_targets);
    free(pair);
}

/* Forward, backward and synchronisation of one step, without the update. */
static void ranks_gradient(Pair *pair)
{
    for (int k = 0; k < pair->options.accumulate; k++) {
        const Batch *batch = loader_next(pair->loader);
        ddp_before_forward(pair->ddp, k + 1 == pair->options.accumulate);
        Tensor *loss = replica_loss(&pair->ranks, &pair->dataset, batch->inputs, batch->targets, batch->samples);
        ddp_before_backward(pair->ddp, loss);
        replica_backward(&pair->ranks, loss);
        ddp_after_backward(pair->ddp, replica_gradient_scale(&pair->ranks, batch->global_samples));
    }
}

/* The same step on the whole batch. The scaling is written out here, so that the test shares no arithmetic with DDP:
 * mean over the samples (and tokens) of the global batch. */
static void whole_gradient(Pair *pair, long step)
{
    int64_t steps_per_epoch = sampler_steps_per_epoch(&pair->sampler);
    sampler_set_epoch(&pair->sampler, (long)(step / steps_per_epoch));
    int64_t count = sampler_whole_batch(&pair->sampler, step % steps_per_epoch, pair->indices);
    unsigned char *inputs = (unsigned char *)pair->inputs_and_targets;
    unsigned char *targets = inputs + (size_t)pair->options.batch_size * pair->dataset.input_bytes;
    dataset_get(&pair->dataset, pair->sampler.epoch, pair->indices, count, inputs, targets);
    replica_backward(&pair->whole, replica_loss(&pair->whole, &pair->dataset, inputs, targets, count));
    int64_t terms = pair->options.model.kind == MODEL_GPT ? count * pair->options.model.gpt.context : count;
    ParameterList *parameters = &pair->whole.model.parameters;
    for (int i = 0; i < parameters->count; i++)
        if (parameters->items[i]->tensor.requires_grad)
            device_scale(parameters->items[i]->tensor.grad, 1.0f / ((float)terms * pair->whole.scaler.scale),
                         tensor_count(&parameters->items[i]->tensor));
}

static double compare(Pair *pair, const char *what, long step, double tolerance)
{
    double worst = 0;
    for (int i = 0; i < pair->ranks.model.parameters.count; i++) {
        const Parameter *got = pair->ranks.model.parameters.items[i], *want = pair->whole.model.parameters.items[i];
        const float *a = got->tensor.data, *b = want->tensor.data;
        char name[160];
        snprintf(name, sizeof name, "%s after step %ld of %s on %d ranks", got->name, step + 1, what,
                 pg_world_size(pg));
        expect_close(name, a, b, tensor_count(&got->tensor), tolerance, 0,
                     "a gradient that was not reduced, not averaged over the GLOBAL batch, sent before it was complete, "
                     "or changed while it was being sent; or ranks that did not start from rank 0's weights");
        for (int64_t k = 0; k < tensor_count(&got->tensor); k++)
            worst = fabs((double)a[k] - (double)b[k]) > worst ? fabs((double)a[k] - (double)b[k]) : worst;
    }
    return worst;
}

static void train_and_compare(Options options, int64_t samples, const char *frozen, const char *what,
                              double tolerance)
{
    Pair *pair = pair_create(options, samples, frozen);
    double worst = compare(pair, "the broadcast: step 0", -1, 0.5e-30); /* equal before the first step */
    for (long step = 0; step < options.steps; step++) {
        ranks_gradient(pair);
        whole_gradient(pair, step);
        replica_update(&pair->ranks, step);
        replica_update(&pair->whole, step);
        double difference = compare(pair, what, step, tolerance);
        worst = difference > worst ? difference : worst;
        replicas_check_equal(pg, &pair->ranks.model.parameters);
    }
    print_message("  stage %d, %d ranks, %s: largest difference %.2e in %ld steps\n", ddp_stage_number,
                  pg_world_size(pg), what, worst, options.steps);
    pair_free(pair);
}

static void test_sgd(void **state)
{
    (void)state;
    const char *models[] = {"mlp-toy", "mlp", "gpt"};
    for (int i = 0; i < 3; i++)
        train_and_compare(toy_options(models[i]), 240, NULL, models[i], 1e-5);
}

static void test_sgd_with_momentum_and_decay(void **state)
{
    (void)state;
    const char *models[] = {"mlp-toy", "mlp", "gpt"};
    for (int i = 0; i < 3; i++) {
        Options options = toy_options(models[i]);
        options.optimizer.momentum = 0.9f;
        options.optimizer.weight_decay = 0.01f;
        train_and_compare(options, 240, NULL, models[i], 1e-5);
    }
}

/* 10 samples in the batch and 25 in the epoch: ranks have unequal shares (on 3 or 4 ranks), and the epoch's last batch
 * is shorter. A mean of per-rank means fails here. */
static void test_uneven_batches(void **state)
{
    (void)state;
    Options options = toy_options("mlp");
    options.batch_size = 10;
    options.steps = 9;
    train_and_compare(options, 25, NULL, "mlp with uneven batches", 1e-5);
}

/* A batch with fewer samples than ranks: some ranks have nothing to contribute, and still take part. */
static void test_empty_share(void **state)
{
    (void)state;
    Options options = toy_options("gpt");
    options.batch_size = 5;
    options.steps = 8;
    train_and_compare(options, 6, NULL, "gpt with an empty share", 1e-5);
}

static void test_frozen_parameter(void **state)
{
    (void)state;
    Options options = toy_options("gpt");
    train_and_compare(options, 240, "transformer.h.0.attn.c_attn.weight", "gpt with a frozen weight", 1e-5);
}

static void test_accumulation(void **state)
{
    (void)state;
    const char *models[] = {"mlp", "gpt"};
    for (int i = 0; i < 2; i++) {
        Options options = toy_options(models[i]);
        options.accumulate = 3;
        train_and_compare(options, 240, NULL, "3 micro-batches", 1e-5);
    }
}

static void test_clipping(void **state)
{
    (void)state;
    Options options = toy_options("mlp");
    options.clip_grad_norm = 0.05; /* small enough to clip every step */
    train_and_compare(options, 240, NULL, "mlp with clipped gradients", 1e-5);
}

/* As in the notes on naive DDP: batch 100, learning rate 0.01, 10 epochs of 1000 samples. */
static void test_toy_of_the_notes(void **state)
{
    (void)state;
    if (pg_world_size(pg) != 2)
        return;
    Options options = toy_options("mlp-toy");
    options.batch_size = 100;
    options.lr = 0.01f;
    options.steps = 100;
    train_and_compare(options, 1000, NULL, "mlp-toy, 10 epochs", 1e-7);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_sgd_with_momentum_and_decay),
        cmocka_unit_test(test_uneven_batches),
        cmocka_unit_test(test_empty_share),
        cmocka_unit_test(test_frozen_parameter),
        cmocka_unit_test(test_accumulation),
        cmocka_unit_test(test_clipping),
        cmocka_unit_test(test_toy_of_the_notes),
    };
    Options options = toy_options("mlp");
    pg_initialize(&argc, &argv);
    pg = pg_create(&options.group);
    device_init(pg_local_rank(pg), 1);
    tests_run_as_rank(pg_rank(pg));
    int failures = cmocka_run_group_tests_name("equivalence", tests, NULL, NULL);
    pg_destroy(pg);
    return failures != 0;
}
