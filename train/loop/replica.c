/* replica.c: see replica.h. */
#include "train/loop/replica.h"

#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "device/device.h"

void replica_create(Replica *replica, const Options *options, uint64_t seed, long total_steps)
{
    *replica = (Replica){.options = options, .total_steps = total_steps, .best_loss = (double)INFINITY};
    model_create(&replica->model, &options->model, seed);
    replica->tape.precision = options->precision;
    replica->tape.recompute = options->recompute;
    replica->tape.dropout = (DropoutMask){.probability = options->dropout, .seed = options->seed};
    optimizer_create(&replica->optimizer, &options->optimizer, &replica->model.parameters);
    replica->scaler = loss_scaler_start(options->precision == DTYPE_F16, options->initial_loss_scale,
                                        options->on_nan == ON_NAN_SKIP);
    replica->time = options->model.kind == MODEL_GPT ? options->model.gpt.context : 1;
}

void replica_make_codec(Replica *replica, int first, int count, int world_size)
{
    const Options *options = replica->options;
    if (options->ddp.codec->keeps_state)
        replica->power_sgd = power_sgd_create(&replica->model.parameters, options->power_sgd_rank, first, count,
                                              world_size);
}

const GradientCodec *replica_codec(const Replica *replica)
{
    return replica->power_sgd != NULL ? power_sgd_codec(replica->power_sgd) : replica->options->ddp.codec;
}

void replica_free(Replica *replica)
{
    power_sgd_free(replica->power_sgd);
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

/* The number of samples that divides a step's gradients. With --join initial it is the full batch's, so that a sample
 * has the same weight in a step in which some ranks have no data. */
static int64_t step_divisor(const Replica *replica, int64_t global_samples)
{
    return replica->options->join == JOIN_INITIAL ? replica->options->batch_size : global_samples;
}

void replica_set_samples(Replica *replica, long step, const int64_t *places, int64_t global_samples)
{
    if (replica->power_sgd != NULL)
        power_sgd_set_samples(replica->power_sgd, step_divisor(replica, global_samples));
    replica->tape.dropout.step = (uint32_t)step;
    replica->tape.dropout.places = places;
}

Tensor *replica_loss(Replica *replica, const Dataset *dataset, const void *inputs, const void *targets, int64_t samples)
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
 * The divisor is the number of terms in this step's loss: its samples, or tokens. */
float replica_gradient_scale(const Replica *replica, int64_t global_samples)
{
    double terms = (double)replica_terms(replica, step_divisor(replica, global_samples));
    return (float)(1 / (terms * (double)replica->scaler.scale));
}

/* note: update-order
 * Gradients are already synchronised and unscaled here. Clipping earlier would measure the norm of this rank's share,
 * or of gradients that are multiplied by the loss scale. The device decides whether to skip the step. The host learns
 * this at the end, where it waits for the device anyway. */
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

long run_length(const Options *options, const Sampler *sampler)
{
    if (options->steps > 0)
        return options->steps;
    return options->epochs * (long)sampler_steps_per_epoch(sampler) - (long)sampler->batch_offset;
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
