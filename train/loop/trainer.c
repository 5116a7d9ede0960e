/* trainer.c: the training loop. Read train_micro_batch() and train_step() first; the rest prepares and reports. */
#include "train/loop/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/rounding.h"
#include "base/check.h"
#include "base/clock.h"
#include "data/loader.h"
#include "device/device.h"
#include "ddp/replicas.h"
#include "ddp/sync_batch_norm.h"
#include "train/guard/guard.h"
#include "train/loop/not_finite.h"
#include "train/report/memory.h"
#include "train/report/output.h"
#include "train/loop/replica.h"
#include "train/loop/report.h"
#include "train/loop/start.h"
#include "train/report/stats.h"
#include "train/report/trace.h"
#include "train/loop/verify.h"

#define LOSS_REPORTS 40 /* about how many times a run computes the mean loss over all ranks */
#define RANDOM_SAMPLES 1000 /* size of the toy regression's data set */

typedef struct Trainer {
    const Options *options;
    ProcessGroup *pg;
    Dataset train_set, eval_set;
    Sampler sampler;
    Loader *loader;
    Replica replica;
    Ddp *ddp;
    int64_t own_terms; /* of this rank's loss, in this step so far */
    Work *counting;    /* with --mask-tokens: the all-reduce of own_terms */
    ProcessGroup *norm_group; /* with --norm: for statistics and buffers; NULL: this process is alone */
    RankGather norm_ranks;    /* --norm sync-batch: what the model hears of that group */
    Progress progress;
    RunRecord record;
    MemoryWatch memory;     /* started with --trace */
    float *initial_weights; /* rank 0, for --verify: the weights after the broadcast; owned */
} Trainer;

/* ---- one step ---- */

/* Waits for the device. Ends the job if the loss is not finite, unless such steps are skipped. */
static double read_loss(const Trainer *trainer, const Tensor *loss, const Batch *batch, const Phases *phases)
{
    float value = 0;
    device_to_host(&value, loss->data, sizeof value);
    if (!trainer->replica.scaler.skip_not_finite)
        not_finite_check_loss(value, batch, now_seconds() - phases->since[PART_FORWARD]);
    return (double)value;
}

/* note: counted-terms
 * With --mask-tokens, one all-reduce per step adds up the ranks' numbers of loss terms. A blocking one would first wait
 * for all that is queued (in stage 5: gathers that forward hides). This one is usually done when backward ends. */
static void count_terms(Trainer *trainer, const Batch *batch, bool last)
{
    trainer->own_terms = batch->terms + (batch->micro_batch > 0 ? trainer->own_terms : 0);
    if (last && trainer->options->mask_tokens > 0)
        trainer->counting = pg_all_reduce_async(trainer->pg, &trainer->own_terms, &trainer->replica.counted_terms, 1,
                                                DTYPE_I64, REDUCE_SUM, "number of loss terms");
}

/* note: train-step
 * The loop's body in ddp.h, call by call: forward and backward of one micro-batch. Returns its summed loss. It is the
 * same for all stages: they differ only inside the three ddp_ calls, and in what they do in the tape's events (from
 * stage 3 on: launch collectives, in backward; stage 5: wait for weights, in forward, too). train_step() calls it K
 * times.
 *
 * note: shadowing
 * A rank that has run out of data (--join) gets micro-batches of 0 samples and treats them as any others: its events
 * are raised, its all-reduces start, its gradients are zero. So no rank waits for it for ever, and all ranks take the
 * same optimizer step. */
static double train_micro_batch(Trainer *trainer, bool last, Phases *phases)
{
    phase_begin(phases, PART_DATA);
    const Batch *batch = loader_next(trainer->loader);
    phase_end(phases, PART_DATA);

    phase_begin(phases, PART_FORWARD);
    ddp_before_forward(trainer->ddp, last);
    count_terms(trainer, batch, last);
    replica_set_samples(&trainer->replica, batch->step, batch->places, batch->global_samples);
    Tensor *loss = replica_loss(&trainer->replica, &trainer->train_set, batch->inputs, batch->targets, batch->samples);
    if (trainer->norm_group != NULL && trainer->options->model.norm == NORM_BATCH) /* a rank's own samples moved them */
        buffers_broadcast(trainer->norm_group, &trainer->replica.model.parameters, batch->samples > 0);
    double loss_value = read_loss(trainer, loss, batch, phases);
    ddp_before_backward(trainer->ddp, loss);
    phase_end(phases, PART_FORWARD);

    phase_begin(phases, PART_BACKWARD);
    replica_backward(&trainer->replica, loss);
    device_synchronize(); /* a GPU finishes after the calls that started its work have returned */
    phase_end(phases, PART_BACKWARD);

    if (last && trainer->options->mask_tokens > 0)
        work_wait(trainer->counting);
    float gradient_scale = replica_gradient_scale(&trainer->replica, batch->global_samples);
    ddp_after_backward(trainer->ddp, gradient_scale);
    trainer->record.global_samples = batch->global_samples; /* of the whole step; equal in each of its micro-batches */
    return loss_value;
}

/* A gradient was not finite, and such steps are not skipped: ends the job. */
static void end_job(Trainer *trainer, long step)
{
    ddp_gather_weights(trainer->ddp);
    not_finite_name_rank(trainer->pg, &trainer->replica, &trainer->train_set,
                         loader_start(&trainer->train_set, &trainer->sampler, pg_rank(trainer->pg),
                                      trainer->options->accumulate, step));
}

static void begin_step(long step)
{
    job_set_step(step);
    timeline_set_step((int)step);
    device_timeline_begin();
    device_range_begin("step %ld", step);
}

/* A step's communication is what was carried out since the end of the step before: in stage 5, gathers that one step
 * starts are carried out during the next. */
static void record_step(Trainer *trainer, StepTimes *times)
{
    CommCounters comm = pg_counters(trainer->pg);
    if (trainer->norm_group != NULL) { /* its time is part of the step, too; its collectives are counted apart */
        const CommCounters of_norms = pg_counters(trainer->norm_group);
        comm.in_flight += of_norms.in_flight;
        comm.exposed += of_norms.exposed;
    }
    device_range_end();
    device_timeline_end();
    times->seconds[PART_COMM] = comm.in_flight - trainer->record.communication.in_flight;
    times->seconds[PART_EXPOSED] = comm.exposed - trainer->record.communication.exposed;
    const CommCounters *before = &trainer->record.communication;
    const long async_sums = comm.async_sums - before->async_sums;
    trainer->record.buckets = async_sums > 0 ? async_sums : comm.sums - before->sums;
    trainer->record.communication = comm;
    trainer->record.all_samples += trainer->record.global_samples;
    stats_add(&trainer->record.stats, times);
}

/* K micro-batches; then clip, optimizer step, zero gradients. Returns this rank's loss, summed over its samples. */
static double train_step(Trainer *trainer, long step)
{
    const int K = trainer->options->accumulate;
    Phases phases = {0};
    double loss = 0;
    begin_step(step);
    phase_begin(&phases, PART_STEP);
    for (int k = 0; k < K; k++)
        loss += train_micro_batch(trainer, k + 1 == K, &phases);
    memory_watch_sample(&trainer->memory); /* the stage has freed what it needs for backward only */

    phase_begin(&phases, PART_OPTIMIZER);
    if (!replica_try_update(&trainer->replica, step) && !trainer->replica.scaler.skip_not_finite)
        end_job(trainer, step);
    phase_end(&phases, PART_OPTIMIZER);
    phase_end(&phases, PART_STEP);
    record_step(trainer, &phases.times);
    return loss;
}

/* Returns the mean loss over the step's global batch. Collective; does not count as the step's communication. */
static double global_loss(Trainer *trainer, double loss)
{
    pg_set_measuring(trainer->pg, false);
    pg_all_reduce(trainer->pg, &loss, &loss, 1, DTYPE_F64, REDUCE_SUM, "loss");
    pg_set_measuring(trainer->pg, true);
    return loss / (double)replica_terms(&trainer->replica, trainer->record.global_samples);
}

/* Faults if weights differ between ranks, or if a 16-bit copy is not what its weights round to. Collective. */
static void check_weights(Trainer *trainer)
{
    pg_set_measuring(trainer->pg, false);
    ddp_gather_weights(trainer->ddp);
    if (!trainer->options->ddp.codec->sends_nothing)
        replicas_check_equal(trainer->pg, &trainer->replica.model.parameters);
    const Parameter *stale = parameters_find_stale(&trainer->replica.model.parameters);
    CHECK(stale == NULL, "the 16-bit copy of %s is not what its weights round to: call parameters_changed() after "
          "every change of weights", stale->name);
    pg_set_measuring(trainer->pg, true);
}

/* The mean loss over all ranks, where the progress or the log needs it. loss_scale: with which the step began. */
static void report_loss(Trainer *trainer, long step, double loss, double loss_scale)
{
    const Options *options = trainer->options;
    const Replica *replica = &trainer->replica;
    RunRecord *record = &trainer->record;
    const bool first = step == record->first_step, last = step + 1 == replica->total_steps;
    const bool logged = options->log != NULL && is_due(step, options->log_every);
    if (!first && !last && !logged && !is_due(step, (replica->total_steps - record->first_step) / LOSS_REPORTS + 1))
        return;
    record->final_loss = global_loss(trainer, loss);
    if (first)
        record->first_loss = record->final_loss;
    if (logged)
        way_log(&record->way, step, record->final_loss, loss_scale, record->global_samples, &record->stats.last);
}

static void run_step(Trainer *trainer, long step)
{
    const Options *options = trainer->options;
    RunRecord *record = &trainer->record;
    const bool last = step + 1 == trainer->replica.total_steps;
    const double loss_scale = (double)trainer->replica.scaler.scale;
    report_loss(trainer, step, train_step(trainer, step), loss_scale);
    ddp_after_update(trainer->ddp); /* after the report, which would wait for the gathers that this starts */
    memory_watch_sample(&trainer->memory);
    if (is_due(step, options->eval_every) || (last && options->eval_every > 0))
        record->evaluation = way_evaluate(&record->way, step + 1);
    progress_step(&trainer->progress, step, record->final_loss,
                  (double)(record->global_samples * trainer->replica.time),
                  record->stats.last.seconds[PART_EXPOSED]);
    if (is_due(step, options->check_every))
        check_weights(trainer);
    if (!last && is_due(step, options->save_every))
        way_save(&record->way, step + 1, false);
}

/* Returns the number of steps done. *signal: the one that has stopped the run, or 0. (One that comes in the last step
 * stops nothing: the training is complete.) */
static long run_steps(Trainer *trainer, int *signal)
{
    const long total = trainer->replica.total_steps;
    long step = trainer->record.first_step;
    *signal = 0;
    stop_on_signals(step, trainer->options->group.timeout);
    for (; step < total && (*signal = stop_is_due(step)) == 0; step++)
        run_step(trainer, step);
    pg_set_measuring(trainer->pg, false);
    trainer->record.peak_rss_mb = report_largest_peak_mb(trainer->pg); /* before the check, which gathers in stage 5 */
    progress_end(&trainer->progress);
    job_set_step(-1);
    timeline_set_step(-1);
    check_weights(trainer);
    return step;
}

/* ---- before and after ---- */

static void open_dataset(Dataset *dataset, const Options *o, DatasetSplit split)
{
    const ModelSpec *model = &o->model;
    switch (o->dataset) {
    case DATASET_IMAGES:
        dataset_open_images(dataset, o->data, split, model->mlp.inputs, model->mlp.outputs);
        break;
    case DATASET_TEXT:
        dataset_open_text(dataset, o->data, split, model->gpt.context, o->seed, o->binary_data);
        dataset->mask = split == SPLIT_TRAIN ? o->mask_tokens : 0;
        break;
    case DATASET_RANDOM:
        dataset_open_random(dataset, RANDOM_SAMPLES, model->mlp.inputs, model->mlp.outputs,
                            o->seed + (split == SPLIT_EVAL));
        break;
    }
}

/* The replica stands where the checkpoint was saved, if there is one.
 *
 * note: same-start
 * Ranks draw different weights (seed + rank), so that only the broadcast in ddp_create() can make them equal. */
static void create_replica(Trainer *trainer, const Options *options, const Resolved *resolved)
{
    Replica *replica = &trainer->replica;
    const uint64_t seed = options->seed + (options->same_seed ? 0 : (uint64_t)pg_rank(trainer->pg));
    replica_create(replica, options, seed, run_length(options, &trainer->sampler));
    replica->rank_order = resolved->rank_order;
    replica_make_codec(replica, pg_rank(trainer->pg), 1, pg_world_size(trainer->pg));
    own_work_begin("reads", options->resume != NULL ? options->resume : "its data");
    if (pg_world_size(trainer->pg) > 1 || options->save != NULL || options->resume != NULL)
        replica->data_checksum = dataset_checksum(&trainer->train_set);
    if (options->resume != NULL)
        trainer->record.first_step = replica_resume(replica, options->resume, &trainer->sampler);
    own_work_end();
    if (options->warmup_given && options->warmup_steps > replica->total_steps)
        die("--warmup-steps: %ld is more than the run's %ld steps; give fewer", options->warmup_steps,
            replica->total_steps);
    start_check_same_files(trainer->pg, replica, &trainer->train_set, &trainer->eval_set, trainer->record.first_step);
    start_check_even_end(trainer->pg, replica, &trainer->sampler);
    start_check_norm(replica, &trainer->sampler, trainer->record.first_step);
    if (trainer->record.first_step >= replica->total_steps)
        die("--resume: %s was saved after %ld steps, and the run ends there: ask for more --steps or --epochs",
            options->resume, trainer->record.first_step);
}

static void join_norm_group(Trainer *trainer, Norm norm)
{
    if (norm == NORM_NONE || pg_world_size(trainer->pg) == 1)
        return;
    trainer->norm_group = pg_split(trainer->pg, 0);
    trainer->norm_ranks = sync_batch_norm_ranks(trainer->norm_group);
    if (norm == NORM_SYNC_BATCH)
        trainer->replica.model.norm_ranks = &trainer->norm_ranks;
}

static void set_up(Trainer *trainer, const Options *options, const Resolved *resolved)
{
    const int world_size = pg_world_size(trainer->pg);
    own_work_begin("reads", "its data");
    open_dataset(&trainer->train_set, options, SPLIT_TRAIN);
    open_dataset(&trainer->eval_set, options, SPLIT_EVAL);
    own_work_end();
    trainer->record.base_rss_mb = report_resident_mb();
    sampler_create(&trainer->sampler, trainer->train_set.size, world_size, options->batch_size, options->seed, true,
                   options->drop_last);
    if (options->rank_samples_count > 0)
        sampler_set_rank_samples(&trainer->sampler, options->rank_samples);
    if (sampler_steps_per_epoch(&trainer->sampler) == 0)
        die("--drop-last leaves nothing of %lld samples on %d ranks", (long long)trainer->train_set.size, world_size);
    create_replica(trainer, options, resolved);
    join_norm_group(trainer, options->model.norm);
    DdpOptions ddp_options = options->ddp;
    ddp_options.codec = replica_codec(&trainer->replica);
    ddp_options.sharding = &options->sharding;
    trainer->ddp = ddp_create(trainer->pg, &trainer->replica.model.parameters, &trainer->replica.tape, &ddp_options);
    trainer->loader = loader_start(&trainer->train_set, &trainer->sampler, pg_rank(trainer->pg), options->accumulate,
                                   trainer->record.first_step);
    optimizer_set_partition(&trainer->replica.optimizer, ddp_partition(trainer->ddp));
}

static void keep_initial_weights(Trainer *trainer)
{
    const ParameterList *parameters = &trainer->replica.model.parameters;
    if (trainer->options->verify == VERIFY_NONE)
        return;
    ddp_gather_weights(trainer->ddp);
    if (pg_rank(trainer->pg) != 0)
        return;
    trainer->initial_weights = alloc_or_fault((size_t)parameters_total(parameters) * sizeof(float));
    parameters_to_host(parameters, trainer->initial_weights);
}

static void tear_down(Trainer *trainer)
{
    loader_stop(trainer->loader);
    ddp_destroy(trainer->ddp);
    if (trainer->norm_group != NULL)
        pg_destroy(trainer->norm_group);
    replica_free(&trainer->replica);
    sampler_free(&trainer->sampler);
    dataset_close(&trainer->train_set);
    dataset_close(&trainer->eval_set);
    stats_free(&trainer->record.stats);
    free(trainer->initial_weights);
}

/* The training is done: all other outputs and checks. Returns the status. */
static int finish(Trainer *trainer, const Resolved *resolved)
{
    const Options *options = trainer->options;
    RunRecord *record = &trainer->record;
    stop_no_more();
    if (options->trace != NULL)
        trace_write(trainer->pg, options->trace);
    if (options->eval_every == 0) /* else the last step was evaluated */
        record->evaluation = way_evaluate(&record->way, trainer->replica.total_steps);
    if (options->verify != VERIFY_NONE)
        record->verification = verify_training(options, trainer->pg, &trainer->train_set, &trainer->replica,
                                               trainer->initial_weights, record->first_step);
    report_end(resolved, trainer->pg, &trainer->replica, trainer->ddp, record);
    if (options->generate > 0 && pg_rank(trainer->pg) == 0)
        generate_text(&trainer->replica, options->generate, options->seed);
    return report_success(&trainer->replica, record) ? 0 : 1;
}

int train(const Options *options, const Resolved *resolved, ProcessGroup *pg)
{
    Trainer trainer = {.options = options, .pg = pg};
    RunRecord *record = &trainer.record;
    int signal;
    set_up(&trainer, options, resolved);
    keep_initial_weights(&trainer);
    report_start(resolved, pg, &trainer.replica, &trainer.train_set, &trainer.sampler, record->first_step);
    if (options->trace != NULL) {
        const MemoryOwners owners = {.pg = pg, .ddp = trainer.ddp, .codec = replica_codec(&trainer.replica),
                                     .optimizer = &trainer.replica.optimizer};
        memory_watch_start(&trainer.memory, &trainer.replica.tape, &owners);
        trace_start(pg);
    }
    record->way = (OnTheWay){.options = options, .pg = pg, .ddp = trainer.ddp, .replica = &trainer.replica,
                             .eval_set = &trainer.eval_set, .sampler = &trainer.sampler,
                             .progress = &trainer.progress};
    way_begin(&record->way, record->first_step);
    pg_reset_counters(pg);
    const long done = run_steps(&trainer, &signal);
    if (trainer.norm_group != NULL)
        record->norm_collectives = pg_counters(trainer.norm_group).collectives;
    pg_set_measuring(pg, false); /* check_weights() has switched it on again */
    /* Write this before all other outputs: if one of those fails, the training is not lost. */
    way_save(&record->way, done, true);
    const int status = signal != 0 ? report_stopped(&trainer.replica, done, signal) : finish(&trainer, resolved);
    const bool good = way_end(&record->way);
    tear_down(&trainer);
    return status == 0 && !good ? 1 : status;
}
