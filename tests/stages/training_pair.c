/* training_pair.c: N ranks and one process, step by step. */
#include "training_pair.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "device/device.h"
#include "expect.h"
#include "given.h"
#include "judge.h"
#include "lent.h"
#include "toy_models.h"

static Parameter *parameter_named(const ParameterList *list, const char *name)
{
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->items[i]->name, name) == 0)
            return list->items[i];
    FAULT("the model has no parameter %s", name);
}

/* A bias becomes a buffer, which is not trained either, and is broadcast, too. */
static void freeze(Parameter *parameter)
{
    parameter->tensor.requires_grad = false;
    if (strstr(parameter->name, ".bias") != NULL)
        parameter_make_buffer(parameter);
}

void spoil_weights(ParameterList *parameters, int rank)
{
    for (int i = 0; i < parameters->count && rank > 0; i++) {
        const Tensor *tensor = &parameters->items[i]->tensor;
        ((float *)tensor->data)[tensor_count(tensor) - 1] = NAN;
    }
}

/* Every rank seeds its weights differently, so that only the broadcast makes them equal. The other model gets rank 0's
 * seed when this has happened. */
Pair *pair_create(ProcessGroup *pg, const Options *options, int64_t samples, const char *frozen)
{
    Pair *pair = alloc_or_fault(sizeof *pair);
    pair->pg = pg;
    pair->options = *options;
    pair->dataset = toy_dataset(&pair->options, samples);
    pair->ranks = replica_lend(&pair->options, toy_seed(pg), options->steps);
    pair->seeds = alloc_or_fault((size_t)pg_world_size(pg) * sizeof *pair->seeds);
    if (frozen != NULL)
        freeze(parameter_named(&pair->ranks->model.parameters, frozen));
    spoil_weights(&pair->ranks->model.parameters, pg_rank(pg));
    pair->options.ddp.sharding = &pair->options.sharding;
    pair->ddp = ddp_create(pg, &pair->ranks->model.parameters, &pair->ranks->tape, &pair->options.ddp);
    CHECK(pair->ddp != NULL, "ddp_create() returned NULL");
    CHECK(LOCKSTEP_STAGE != 5 || in_judge() || ddp_partition(pair->ddp) != NULL,
          "ddp_partition() returns NULL: every rank would update everything, and keep all optimizer state");
    optimizer_set_partition(&pair->ranks->optimizer, ddp_partition(pair->ddp));
    ddp_gather_weights(pair->ddp);
    toy_seeds_of_all(pg, pair->seeds);
    replica_create(&pair->whole, &pair->options, pair->seeds[0], options->steps);
    if (frozen != NULL)
        freeze(parameter_named(&pair->whole.model.parameters, frozen));
    judged_weights(&pair->ranks->model.parameters);
    give_start(&pair->ranks->model.parameters, &pair->whole.model.parameters, ddp_partition(pair->ddp));
    pair->whole_gradients = parameters_allocate_gradients(&pair->whole.model.parameters);
    sampler_create(&pair->sampler, samples, pg_world_size(pg), options->batch_size, options->seed, true, false);
    if (options->rank_samples_count > 0)
        sampler_set_rank_samples(&pair->sampler, options->rank_samples);
    pair->loader = loader_start(&pair->dataset, &pair->sampler, pg_rank(pg), options->accumulate, 0);
    pair->weights_before = alloc_or_fault((size_t)parameters_total(&pair->whole.model.parameters) * sizeof(float));
    pair->stages_gradients = alloc_or_fault((size_t)pair->ranks->model.parameters.count * sizeof(void *));
    pair->indices = alloc_or_fault((size_t)options->batch_size * sizeof *pair->indices);
    pair->inputs = alloc_or_fault((size_t)options->batch_size * pair->dataset.input_bytes);
    pair->targets = alloc_or_fault((size_t)options->batch_size * pair->dataset.target_bytes);
    return pair;
}

/* Stage 5: each rank has the sums of its slices only. Puts them together, so that they can be compared. */
static void gather_gradients(Pair *pair)
{
    const Partition *partition = ddp_partition(pair->ddp);
    ParameterList *parameters = &pair->ranks->model.parameters;
    for (int i = 0; i < parameters->count && partition != NULL; i++) {
        Tensor *tensor = &parameters->items[i]->tensor;
        if (!tensor->requires_grad)
            continue;
        float *whole = device_alloc((size_t)tensor_count(tensor) * sizeof *whole);
        partition->gather(partition->owner, i, partition->slices[i].grad, whole);
        pair->stages_gradients[i] = tensor->grad;
        tensor->grad = whole;
    }
    pair->gradients_gathered = partition != NULL;
}

static void forget_gathered_gradients(Pair *pair)
{
    ParameterList *parameters = &pair->ranks->model.parameters;
    for (int i = 0; i < parameters->count && pair->gradients_gathered; i++) {
        Tensor *tensor = &parameters->items[i]->tensor;
        if (!tensor->requires_grad)
            continue;
        device_free(tensor->grad);
        tensor->grad = pair->stages_gradients[i];
    }
    pair->gradients_gathered = false;
}

void pair_free(Pair *pair)
{
    forget_gathered_gradients(pair);
    loader_stop(pair->loader);
    ddp_destroy(pair->ddp);
    device_free(pair->whole_gradients);
    replica_take_back(pair->ranks);
    replica_free(&pair->whole);
    sampler_free(&pair->sampler);
    dataset_close(&pair->dataset);
    free(pair->seeds);
    free(pair->weights_before);
    free(pair->stages_gradients);
    free(pair->indices);
    free(pair->inputs);
    free(pair->targets);
    free(pair);
}

/* Nothing whole is left after backward of what the level divides. Which mistake keeps a part of it: test_sharded.c. */
static void expect_level(const Pair *pair)
{
    const ParameterList *parameters = &pair->ranks->model.parameters;
    int trained = 0, gradients = 0, weights = 0;
    for (int i = 0; i < parameters->count; i++) {
        const Tensor *tensor = &parameters->items[i]->tensor;
        trained += tensor->requires_grad;
        gradients += tensor->requires_grad && tensor->grad != NULL;
        weights += tensor->requires_grad && tensor->data != NULL;
    }
    const int zero = pg_world_size(pair->pg) > 1 ? pair->options.sharding.level : 1;
    if ((zero >= 2 && gradients == trained) || (zero == 3 && weights == trained))
        fail_msg("--zero %d: after backward, all parameters still have whole %s, as at a lower level", zero,
                 zero == 3 && weights == trained ? "weights" : "gradients");
}

/* Each call is made for all models, then the next one: so what a stage keeps from call to call must be each Ddp's
 * own. */
static void micro_batch(Pair *const *pairs, int count, bool last)
{
    Tensor *loss[MOST_PAIRS];
    int64_t samples[MOST_PAIRS];
    for (int i = 0; i < count; i++) {
        const Batch *batch = loader_next(pairs[i]->loader);
        ddp_before_forward(pairs[i]->ddp, last);
        loss[i] = replica_loss(pairs[i]->ranks, &pairs[i]->dataset, batch->inputs, batch->targets, batch->samples);
        samples[i] = batch->global_samples;
    }
    for (int i = 0; i < count; i++)
        ddp_before_backward(pairs[i]->ddp, loss[i]);
    for (int i = 0; i < count; i++)
        replica_backward(pairs[i]->ranks, loss[i]);
    for (int i = 0; i < count; i++)
        ddp_after_backward(pairs[i]->ddp, replica_gradient_scale(pairs[i]->ranks, samples[i]));
}

void pairs_ranks_gradients(Pair *const *pairs, int count)
{
    for (int k = 0; k < pairs[0]->options.accumulate && !in_judge(); k++)
        micro_batch(pairs, count, k + 1 == pairs[0]->options.accumulate);
    for (int i = 0; i < count; i++) {
        if (!in_judge()) {
            if (LOCKSTEP_STAGE == 5)
                expect_level(pairs[i]);
            gather_gradients(pairs[i]);
            ddp_gather_weights(pairs[i]->ddp);
        }
        judged_gradients(&pairs[i]->ranks->model.parameters);
        judged_weights(&pairs[i]->ranks->model.parameters);
    }
}

void pair_ranks_gradient(Pair *pair)
{
    pairs_ranks_gradients(&pair, 1);
}

void pair_update(Pair *pair, long step)
{
    forget_gathered_gradients(pair);
    parameters_to_host(&pair->whole.model.parameters, pair->weights_before);
    replica_update(pair->ranks, step);
    ddp_after_update(pair->ddp);
    ddp_gather_weights(pair->ddp);
    judged_weights(&pair->ranks->model.parameters);
    replica_update(&pair->whole, step);
}

double pair_compare_weights(const Pair *pair, const char *when, const char *what, double tolerance, const char *hint)
{
    double worst = 0;
    for (int i = 0; i < pair->ranks->model.parameters.count; i++) {
        const Parameter *got = pair->ranks->model.parameters.items[i], *want = pair->whole.model.parameters.items[i];
        const float *a = got->tensor.data, *b = want->tensor.data;
        char name[200];
        snprintf(name, sizeof name, "%s %s of %s on %d ranks", got->name, when, what, pg_world_size(pair->pg));
        expect_close(name, a, b, tensor_count(&got->tensor), tolerance, 0, hint);
        for (int64_t k = 0; k < tensor_count(&got->tensor); k++)
            worst = fmax(worst, fabs((double)a[k] - (double)b[k]));
    }
    return worst;
}

/* Terms of a loss: samples, or tokens. */
static int64_t terms_of(const Pair *pair, int64_t samples)
{
    return pair->options.model.kind == MODEL_GPT ? samples * pair->options.model.gpt.context : samples;
}

/* Replaces the gradient by that of the summed loss of the samples in pair->indices; returns the number of terms. */
static int64_t gradient_of_samples(Pair *pair, int64_t count)
{
    parameters_zero_gradients(&pair->whole.model.parameters);
    dataset_get(&pair->dataset, pair->sampler.epoch, pair->indices, count, pair->inputs, pair->targets);
    replica_backward(&pair->whole, replica_loss(&pair->whole, &pair->dataset, pair->inputs, pair->targets, count));
    return terms_of(pair, count);
}

/* Sets the sampler to the step's epoch; returns the number of the step in this epoch. */
static int64_t step_of_epoch(Pair *pair, long step)
{
    int64_t steps_per_epoch = sampler_steps_per_epoch(&pair->sampler);
    sampler_set_epoch(&pair->sampler, (long)(step / steps_per_epoch));
    return step % steps_per_epoch;
}

/* The scaling is written out here, so that the test does not use DDP's arithmetic. */
void pair_whole_gradient(Pair *pair, long step)
{
    int64_t count = sampler_whole_batch(&pair->sampler, step_of_epoch(pair, step), pair->indices);
    gradient_of_samples(pair, count);
    int64_t terms = pair_terms(pair, step);
    ParameterList *parameters = &pair->whole.model.parameters;
    for (int i = 0; i < parameters->count; i++)
        if (parameters->items[i]->tensor.requires_grad)
            device_scale(parameters->items[i]->tensor.grad, 1.0f / ((float)terms * pair->whole.scaler.scale),
                         tensor_count(&parameters->items[i]->tensor));
}

int64_t pair_share(Pair *pair, long step, int rank, int micro_batch)
{
    return gradient_of_samples(pair, sampler_indices(&pair->sampler, step_of_epoch(pair, step), rank, micro_batch,
                                                     pair->options.accumulate, pair->indices));
}

int64_t pair_terms(Pair *pair, long step)
{
    bool full = pair->options.join == JOIN_INITIAL;
    int64_t present = sampler_whole_batch(&pair->sampler, step_of_epoch(pair, step), pair->indices);
    return terms_of(pair, full ? pair->options.batch_size : present);
}

double pair_wrong_divisor(Pair *pair, long step)
{
    bool full = pair->options.join == JOIN_INITIAL;
    int64_t present = sampler_whole_batch(&pair->sampler, step_of_epoch(pair, step), pair->indices);
    return (double)terms_of(pair, full ? present : pair->options.batch_size);
}
