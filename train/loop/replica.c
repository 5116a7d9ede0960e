/* replica.c: see replica.h. */
#include "train/loop/replica.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "device/device.h"
#include "train/files/checkpoint.h"

void replica_create(Replica *replica, const Options *options, uint64_t seed, long total_steps)
{
    *replica = (Replica){.options = options, .total_steps = total_steps, .best_loss = (double)INFINITY};
    model_create(&replica->model, &options->model, seed);
    replica->tape.precision = options->precision;
    replica->tape.dropout = (DropoutMask){.probability = options->dropout, .seed = options->seed};
    optimizer_create(&replica->optimizer, &options->optimizer, &replica->model.parameters);
    replica->scaler = loss_scaler_start(options->precision == DTYPE_F16, options->initial_loss_scale,
                                         options->on_nan == ON_NAN_SKIP);
    replica->time = options->model.kind == MODEL_GPT ? options->model.gpt.context : 1;
}

void replica_free(Replica *replica)
{
    optimizer_free(&replica->optimizer);
    tape_free(&replica->tape);
    device_free(replica->inputs);
    device_free(replica->targets);
    model_free(&replica->model);
}

void replica_load(Replica *replica, const Dataset *dataset, const void *inputs, const void *targets, int64_t samples)
{
    if (samples > replica->capacity || replica->inputs == NULL) {
        replica->capacity = samples > 0 ? samples : 1;
        device_free(replica->inputs);
        device_free(replica->targets);
        replica->inputs = device_alloc((size_t)replica->capacity * dataset->input_bytes);
        replica->targets = device_alloc((size_t)replica->capacity * dataset->target_bytes);
    }
    device_from_host(replica->inputs, inputs, (size_t)samples * dataset->input_bytes);
    device_from_host(replica->targets, targets, (size_t)samples * dataset->target_bytes);
}

void replica_set_samples(Replica *replica, long step, const int64_t *places)
{
    replica->tape.dropout.step = (uint32_t)step;
    replica->tape.dropout.places = places;
}

Tensor *replica_loss(Replica *replica, const Dataset *dataset, const void *inputs, const void *targets,
                     int64_t samples)
{
    replica_load(replica, dataset, inputs, targets, samples);
    tape_begin(&replica->tape, true);
    return model_loss(&replica->model, &replica->tape, replica->inputs, replica->targets, samples, replica->time);
}

void replica_backward(Replica *replica, Tensor *loss)
{
    tape_backward(&replica->tape, loss, replica->scaler.scale);
}

int64_t replica_terms(const Replica *replica, int64_t global_samples)
{
    if (replica->options->mask_tokens > 0)
        return replica->counted_terms;
    return model_loss_terms(&replica->model.spec, global_samples, replica->time);
}

/* note: gradient-scale
 * The divisor is the number of the loss's terms in this step: of its samples, or tokens. With --join initial it is that
 * of the full batch, so that a sample also weighs the same in a step in which some ranks have no data. */
float replica_gradient_scale(const Replica *replica, int64_t global_samples)
{
    const Options *options = replica->options;
    int64_t divisor = options->join == JOIN_INITIAL ? options->batch_size : global_samples;
    double terms = (double)replica_terms(replica, divisor);
    return (float)(1 / (terms * (double)replica->scaler.scale));
}

/* note: update-order
 * Gradients are already synchronised and unscaled here. Clipping earlier would measure the norm of this rank's share,
 * or of gradients that are multiplied by the loss scale. The device decides whether it skips the step. The host learns
 * this at the end, where it must wait for a GPU in any case. */
bool replica_try_update(Replica *replica, long step)
{
    const double max_norm = replica->options->clip_grad_norm;
    clip_grad_norm(&replica->optimizer, max_norm > 0 ? max_norm : (double)INFINITY);
    optimizer_step(&replica->optimizer, learning_rate(replica->options, step, replica->total_steps));
    parameters_zero_gradients(&replica->model.parameters);
    return loss_scaler_update(&replica->scaler, optimizer_end_step(&replica->optimizer));
}

bool replica_update(Replica *replica, long step)
{
    const bool taken = replica_try_update(replica, step);
    const LossScaler *scaler = &replica->scaler;
    CHECK(taken || scaler->skip_not_finite, "step %ld: the gradient of %s is not finite", step,
          scaler->not_finite->name);
    return taken;
}

/* Adds how the run was started, in words: --resume compares these. Two ranks add in any order: a + b = b + a. */
static void add_settings(const Replica *replica, const Sampler *sampler, CheckpointState *state)
{
    const Options *options = replica->options;
    const long warmup = warmup_steps(options, replica->total_steps);
    char words[sizeof state->settings[0].words];
    const char *flag;
    for (int i = 0; (flag = options_setting(options, i, words, sizeof words)) != NULL; i++)
        checkpoint_add_setting(state, flag, "%s", words);
    checkpoint_add_setting(state, CHECKPOINT_DATA, "data of %lld samples, checksum %08x",
                           (long long)sampler->dataset_size, replica->data_checksum);
    checkpoint_add_setting(state, "ranks", "%d rank(s)", sampler->world_size);
    checkpoint_add_setting(state, "order", "gradients added in %s order", replica->rank_order ? "rank" : "another");
    if (options->lr_schedule == LR_CONSTANT)
        checkpoint_add_setting(state, CHECKPOINT_SCHEDULE, "lr constant after %ld steps of warm-up", warmup);
    else
        checkpoint_add_setting(state, CHECKPOINT_SCHEDULE, "lr cosine over %ld steps, %ld of them warm-up",
                               replica->total_steps, warmup);
}

static CheckpointState checkpoint_state(const Replica *replica, const Sampler *sampler, long next_step)
{
    const ModelSpec *model = &replica->options->model;
    const char *optimizer = replica->options->optimizer.kind == OPTIMIZER_ADAMW ? "adamw" : "sgd";
    CheckpointState state = {.step = next_step,
                             .loss_scale = replica->scaler.scale,
                             .good_steps = replica->scaler.good_steps,
                             .best_loss = replica->best_loss,
                             .place = sampler_place(sampler, next_step)};
    if (next_step > 0)
        state.learning_rate = learning_rate(replica->options, next_step - 1, replica->total_steps);
    if (model->kind == MODEL_GPT) /* shapes show neither heads nor activation */
        snprintf(state.model, sizeof state.model, "--model %s --heads %d --optimizer %s", model->name,
                 model->gpt.heads, optimizer);
    else
        snprintf(state.model, sizeof state.model, "--model %s --activation %s --optimizer %s", model->name,
                 activation_name(model->mlp.activation), optimizer);
    add_settings(replica, sampler, &state);
    return state;
}

/* ours: this run, where it goes on. again: samples of this epoch that are trained a second time. */
static void tell_differences(const Replica *replica, const char *path, const CheckpointState *saved,
                             CheckpointState *ours, int64_t again)
{
    static const char *const of_rate[] = {CHECKPOINT_RATE, CHECKPOINT_SCHEDULE};
    const float rate = learning_rate(replica->options, ours->step, replica->total_steps);
    CheckpointSetting *schedule = checkpoint_setting(ours, CHECKPOINT_SCHEDULE);
    for (int i = 0; i < 2 && saved->learning_rate > 0 && rate != saved->learning_rate; i++)
        snprintf(checkpoint_setting(ours, of_rate[i])->effect, sizeof schedule->effect, "the learning rate goes from %g "
                 "in step %ld to %g in the next", (double)saved->learning_rate, saved->step - 1, (double)rate);
    if (saved->place.samples > 0)
        snprintf(checkpoint_setting(ours, CHECKPOINT_SEED)->effect, sizeof schedule->effect,
                 "the rest of the epoch comes in another order: some samples are trained again, and some are left out");
    snprintf(checkpoint_setting(ours, CHECKPOINT_DATA)->effect, sizeof schedule->effect,
             "from here on it trains on other data");
    checkpoint_compare(path, saved, ours);
    if (again > 0)
        advise("%s: was saved after %lld samples of an epoch, which are no whole number of this run's steps: the last "
               "%lld of them are trained again", path, (long long)saved->place.samples, (long long)again);
}

long run_length(const Options *options, const Sampler *sampler)
{
    if (options->steps > 0)
        return options->steps;
    return options->epochs * (long)sampler_steps_per_epoch(sampler) - (long)sampler->batch_offset;
}

long replica_resume(Replica *replica, const char *path, Sampler *sampler)
{
    CheckpointState saved = checkpoint_state(replica, sampler, 0);
    const bool complete = checkpoint_load(path, &replica->optimizer, &saved);
    replica->resumed_hash = saved.hash;
    if (!complete) {
        if (!replica->resumes_quietly)
            advise("%s: holds parameters only; the optimizer and the step number start from zero", path);
        return 0;
    }
    const int64_t again = saved.place.epoch >= 0 ? sampler_go_on(sampler, saved.step, saved.place) : 0;
    replica->total_steps = run_length(replica->options, sampler);
    CheckpointState ours = checkpoint_state(replica, sampler, saved.step);
    if (!replica->resumes_quietly)
        tell_differences(replica, path, &saved, &ours, again);
    if (strcmp(checkpoint_setting(&saved, CHECKPOINT_PRECISION)->words,
               checkpoint_setting(&ours, CHECKPOINT_PRECISION)->words) == 0) {
        replica->scaler.scale = fminf(saved.loss_scale, LOSS_SCALER_MOST); /* older versions had no limit */
        replica->scaler.good_steps = saved.good_steps;
    }
    replica->best_loss = saved.best_loss;
    return saved.step;
}

void replica_save(Replica *replica, const char *path, int rank, const Sampler *sampler, long next_step)
{
    CheckpointState state = checkpoint_state(replica, sampler, next_step);
    checkpoint_save(rank == 0 ? path : NULL, &replica->optimizer, &state);
}

bool replica_try_save(Replica *replica, const char *path, int rank, const Sampler *sampler, long next_step,
                      bool quiet)
{
    CheckpointState state = checkpoint_state(replica, sampler, next_step);
    return checkpoint_try_save(rank == 0 ? path : NULL, &replica->optimizer, &state, quiet);
}

const char *precision_name(DType precision)
{
    return precision == DTYPE_F32 ? "fp32" : precision == DTYPE_BF16 ? "bf16" : "fp16";
}

long warmup_steps(const Options *options, long total_steps)
{
    bool short_run = options->warmup_steps > total_steps / 10;
    return short_run && !options->warmup_given ? total_steps / 10 : options->warmup_steps;
}

/* note: learning-rate
 * Rises linearly to lr over the warm-up steps. Then it stays, or falls as half a cosine to lr / 10 at the last step. */
float learning_rate(const Options *options, long step, long total_steps)
{
    long warmup = warmup_steps(options, total_steps);
    if (step < warmup)
        return options->lr * (float)(step + 1) / (float)warmup;
    long last = total_steps - 1;
    if (options->lr_schedule == LR_CONSTANT || last <= warmup)
        return options->lr;
    double progress = (double)(step - warmup) / (double)(last - warmup);
    return options->lr * (float)(0.55 + 0.45 * cos(progress * M_PI));
}
