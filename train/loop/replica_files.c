/* replica_files.c: the checkpoints of a replica, and notes about resumed runs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "train/files/checkpoint.h"
#include "train/loop/replica.h"

/* Adds the run's settings in words, which --resume compares. */
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
                             .best_loss_samples = replica->options->eval_samples,
                             .place = sampler_place(sampler, next_step)};
    if (next_step > 0)
        state.learning_rate = learning_rate(replica->options, next_step - 1, replica->total_steps);
    if (model->kind == MODEL_GPT) /* shapes show neither heads nor activation */
        snprintf(state.model, sizeof state.model, "--model %s --heads %d --optimizer %s", model->name,
                 model->gpt.heads, optimizer);
    else
        snprintf(state.model, sizeof state.model, "--model %s --activation %s%s --optimizer %s", model->name,
                 activation_name(model->mlp.activation), model->norm != NORM_NONE ? " --norm batch or sync-batch" : "",
                 optimizer);
    const size_t used = strlen(state.model);
    if (replica->power_sgd != NULL) /* each rank has a state of its own */
        snprintf(state.model + used, sizeof state.model - used,
                 " --grad-dtype powersgd --powersgd-rank %d on %d rank(s)", replica->options->power_sgd_rank,
                 sampler->world_size);
    add_settings(replica, sampler, &state);
    return state;
}

/* ours: this run, at the step where it continues. again: samples of this epoch that are trained a second time. */
static void advise_of_differences(const Replica *replica, const char *path, const CheckpointState *saved,
                                  CheckpointState *ours, int64_t again)
{
    static const char *const of_rate[] = {CHECKPOINT_RATE, CHECKPOINT_SCHEDULE};
    const float rate = learning_rate(replica->options, ours->step, replica->total_steps);
    CheckpointSetting *schedule = checkpoint_setting(ours, CHECKPOINT_SCHEDULE);
    for (int i = 0; i < 2 && saved->learning_rate > 0 && rate != saved->learning_rate; i++)
        snprintf(checkpoint_setting(ours, of_rate[i])->effect, sizeof schedule->effect, "the learning rate goes from "
                 "%g in step %ld to %g in the next", (double)saved->learning_rate, saved->step - 1, (double)rate);
    if (saved->place.samples > 0)
        snprintf(checkpoint_setting(ours, CHECKPOINT_SEED)->effect, sizeof schedule->effect,
                 "the rest of the epoch comes in another order: some samples are trained again, and some are left out");
    snprintf(checkpoint_setting(ours, CHECKPOINT_DATA)->effect, sizeof schedule->effect,
             "from here on it trains on other data");
    checkpoint_compare(path, saved, ours);
    if (again > 0)
        advise("%s: was saved after %lld samples of an epoch, which is not a whole number of this run's steps: the "
               "last %lld of them are trained again", path, (long long)saved->place.samples, (long long)again);
}

/* Losses over other samples cannot be compared. */
static void restore_best_loss(Replica *replica, const char *path, CheckpointState *saved, CheckpointState *ours)
{
    const char *was = checkpoint_setting(saved, CHECKPOINT_DATA)->words;
    const char *is = checkpoint_setting(ours, CHECKPOINT_DATA)->words;
    replica->best_loss = saved->best_loss;
    if (!isfinite(saved->best_loss) || saved->best_loss_samples < 0 ||
        (saved->best_loss_samples == ours->best_loss_samples && strcmp(was, is) == 0))
        return;
    replica->best_loss = (double)INFINITY;
    if (!replica->resumes_quietly)
        advise("%s: its best loss, %.6g, was measured on other held-out samples, so it is forgotten: the first "
               "evaluation counts as the best", path, saved->best_loss);
}

long replica_resume(Replica *replica, const char *path, Sampler *sampler)
{
    CheckpointState saved = checkpoint_state(replica, sampler, 0);
    PowerSgd *all = replica->power_sgd != NULL ? power_sgd_for_all(replica->power_sgd) : NULL;
    saved.more = all != NULL ? power_sgd_state(all) : NULL;
    const bool complete = checkpoint_load(path, &replica->optimizer, &saved);
    if (complete && all != NULL)
        power_sgd_take(replica->power_sgd, all);
    power_sgd_free(all);
    replica->resumed_hash = saved.hash;
    if (!complete) {
        if (!replica->resumes_quietly)
            advise("%s: holds parameters only; the optimizer and the step number start from zero", path);
        return 0;
    }
    const int64_t again = saved.place.epoch >= 0 ? sampler_resume(sampler, saved.step, saved.place) : 0;
    replica->total_steps = run_length(replica->options, sampler);
    CheckpointState ours = checkpoint_state(replica, sampler, saved.step);
    if (!replica->resumes_quietly)
        advise_of_differences(replica, path, &saved, &ours, again);
    if (strcmp(checkpoint_setting(&saved, CHECKPOINT_PRECISION)->words,
               checkpoint_setting(&ours, CHECKPOINT_PRECISION)->words) == 0) {
        replica->scaler.scale = fminf(saved.loss_scale, LOSS_SCALER_MAX); /* older versions had no limit */
        replica->scaler.good_steps = saved.good_steps;
    }
    restore_best_loss(replica, path, &saved, &ours);
    return saved.step;
}

/* note: state-of-a-rank
 * The errors that a rank has not sent yet (powersgd) differ from rank to rank, so the file holds them for each rank. On
 * the rank that writes, returns an instance with all of them, owned by the caller. */
static PowerSgd *gather_codec(const Replica *replica, ProcessGroup *pg, CheckpointState *state)
{
    PowerSgd *all = NULL;
    if (replica->power_sgd == NULL)
        return NULL;
    if (pg_rank(pg) == 0) {
        all = power_sgd_for_all(replica->power_sgd);
        state->more = power_sgd_state(all);
    }
    power_sgd_gather(replica->power_sgd, pg, all);
    return all;
}

bool replica_save(Replica *replica, const char *path, ProcessGroup *pg, const Sampler *sampler, long next_step,
                  OnFailure on_failure)
{
    CheckpointState state = checkpoint_state(replica, sampler, next_step);
    PowerSgd *all = gather_codec(replica, pg, &state);
    const bool writes = pg == NULL || pg_rank(pg) == 0;
    const bool written = checkpoint_save(writes ? path : NULL, &replica->optimizer, &state, on_failure);
    power_sgd_free(all);
    return written;
}
