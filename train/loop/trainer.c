/* trainer.c: the training loop. Read train_micro_batch() and train_step() first: they show one training step and
 * nothing else. Then come the parts of a step, with what some flags and the records need, and the loop over all steps.
 */
#include "train/loop/trainer.h"

#include "autograd/rounding.h"
#include "base/check.h"
#include "base/clock.h"
#include "ddp/replicas.h"
#include "device/device.h"
#include "train/guard/guard.h"

#define LOSS_REPORTS 40 /* about how many times a run computes the mean loss over all ranks */

/* ---- one training step ---- */

/* The parts of a step, defined below. They also contain code for some flags and for the measurements. */
static const Batch *next_batch(Trainer *trainer);
static Tensor *forward(Trainer *trainer, const Batch *batch);
static void backward(Trainer *trainer, Tensor *loss);
static float gradient_scale(Trainer *trainer, const Batch *batch);
static void update(Trainer *trainer, long step);

/* note: train-step
 * These are the calls that ddp.h shows, for one micro-batch. All stages share this code. The stages differ in the three
 * ddp_ calls and in their event functions, which the tape calls. From stage 3 on, an event function starts
 * communication during backward. In stage 5, another one runs before an operation reads weights, and waits for them. */
static void train_micro_batch(Trainer *trainer, bool last)
{
    const Batch *batch = next_batch(trainer);
    ddp_before_forward(trainer->ddp, last);
    Tensor *loss = forward(trainer, batch);
    ddp_before_backward(trainer->ddp, loss);
    backward(trainer, loss);
    ddp_after_backward(trainer->ddp, gradient_scale(trainer, batch));
}

/* K micro-batches; then clip, optimizer step, zero gradients. ddp_after_update() (stage5_sharded/sharded.h) does
 * nothing in stages 1 to 4; in stage 5 it starts to gather the updated weights. */
static void train_step(Trainer *trainer, long step)
{
    const int K = trainer->options->accumulate;
    for (int k = 0; k < K; k++)
        train_micro_batch(trainer, k + 1 == K);
    update(trainer, step);
    ddp_after_update(trainer->ddp);
}

/* ---- the parts of a step, with what some flags and the records need ---- */

static void begin_step(Trainer *trainer, long step)
{
    job_set_step(step);
    timeline_set_step((int)step);
    device_timeline_begin();
    device_range_begin("step %ld", step);
    trainer->loss = 0;
    trainer->loss_scale = (double)trainer->replica.scaler.scale;
    trainer->phases = (Phases){0};
    phase_begin(&trainer->phases, PART_STEP);
}

/* Forward is timed from here until backward() begins, so its time includes the two ddp_ calls around it. */
static const Batch *next_batch(Trainer *trainer)
{
    phase_begin(&trainer->phases, PART_DATA);
    const Batch *batch = loader_next(trainer->loader);
    phase_end(&trainer->phases, PART_DATA);
    trainer->record.global_samples = batch->global_samples;
    phase_begin(&trainer->phases, PART_FORWARD);
    return batch;
}

/* note: counted-terms
 * With --mask-tokens, one all-reduce per step adds up the ranks' numbers of loss terms. A blocking all-reduce would
 * first wait for everything in the queue (in stage 5: for gathers that run during forward). This one is usually done by
 * the end of backward. */
static void count_terms(Trainer *trainer, const Batch *batch)
{
    const bool last = batch->micro_batch + 1 == trainer->options->accumulate;
    trainer->own_terms = batch->terms + (batch->micro_batch > 0 ? trainer->own_terms : 0);
    if (last && trainer->options->mask_tokens > 0)
        trainer->counting = pg_all_reduce_async(trainer->pg, &trainer->own_terms, &trainer->replica.counted_terms, 1,
                                                DTYPE_I64, REDUCE_SUM, "number of loss terms");
}

/* Returns the loss of the micro-batch, summed over its terms. It belongs to the tape. */
static Tensor *forward(Trainer *trainer, const Batch *batch)
{
    Replica *replica = &trainer->replica;
    count_terms(trainer, batch);
    replica_set_samples(replica, batch->step, batch->places, batch->global_samples);
    Tensor *loss = replica_loss(replica, &trainer->train_set, batch->inputs, batch->targets, batch->samples);
    /* --norm batch: each rank's own samples have changed its running statistics. */
    if (trainer->norm_group != NULL && trainer->options->model.norm == NORM_BATCH)
        buffers_broadcast(trainer->norm_group, &replica->model.parameters, batch->samples > 0);
    float value = 0;
    device_to_host(&value, loss->data, sizeof value); /* waits for the device */
    if (!replica->scaler.skip_not_finite)
        not_finite_check_loss(value, batch, now_seconds() - trainer->phases.since[PART_FORWARD]);
    trainer->loss += (double)value;
    return loss;
}

static void backward(Trainer *trainer, Tensor *loss)
{
    phase_end(&trainer->phases, PART_FORWARD);
    phase_begin(&trainer->phases, PART_BACKWARD);
    replica_backward(&trainer->replica, loss);
    device_synchronize(); /* a GPU finishes after the calls that started its work have returned */
    phase_end(&trainer->phases, PART_BACKWARD);
}

/* The factor that turns sums of gradients into the gradient of the mean over the global batch. With --mask-tokens,
 * waits until the number of terms is known. */
static float gradient_scale(Trainer *trainer, const Batch *batch)
{
    if (trainer->counting != NULL)
        work_wait(trainer->counting);
    trainer->counting = NULL;
    return replica_gradient_scale(&trainer->replica, batch->global_samples);
}

/* A step's communication: all that has run since the step before. In stage 5, gathers run during the next step. */
static void record_step(Trainer *trainer)
{
    StepTimes *times = &trainer->phases.times;
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

/* Computes the mean loss over the step's global batch, if the progress or the log needs it. */
static void report_loss(Trainer *trainer, long step)
{
    const Options *options = trainer->options;
    RunRecord *record = &trainer->record;
    const long total = trainer->replica.total_steps;
    const bool first = step == record->first_step, last = step + 1 == total;
    const bool logged = options->log != NULL && is_due(step, options->log_every);
    if (!first && !last && !logged && !is_due(step, (total - record->first_step) / LOSS_REPORTS + 1))
        return;
    double sum = trainer->loss;
    pg_set_measuring(trainer->pg, false);
    pg_all_reduce(trainer->pg, &sum, &sum, 1, DTYPE_F64, REDUCE_SUM, "loss");
    pg_set_measuring(trainer->pg, true);
    record->final_loss = sum / (double)replica_terms(&trainer->replica, record->global_samples);
    if (first)
        record->first_loss = record->final_loss;
    if (logged)
        periodic_log(trainer, step);
}

/* Clips, takes the optimizer's step, and zeroes the gradients. Reports the loss here: after ddp_after_update(), the
 * all-reduce of the loss would wait for the gathers. */
static void update(Trainer *trainer, long step)
{
    memory_watch_sample(&trainer->memory); /* the stage has freed what it needs for backward only */
    phase_begin(&trainer->phases, PART_OPTIMIZER);
    if (!replica_try_update(&trainer->replica, step) && !trainer->replica.scaler.skip_not_finite)
        not_finite_report_rank(trainer, step);
    phase_end(&trainer->phases, PART_OPTIMIZER);
    phase_end(&trainer->phases, PART_STEP);
    record_step(trainer);
    report_loss(trainer, step);
}

/* ---- all steps ---- */

/* Faults if weights differ between ranks, or if a 16-bit copy differs from its rounded weights. Collective. */
static void check_weights(Trainer *trainer)
{
    pg_set_measuring(trainer->pg, false);
    ddp_gather_weights(trainer->ddp);
    if (!trainer->options->ddp.codec->sends_nothing)
        replicas_check_equal(trainer->pg, &trainer->replica.model.parameters);
    const Parameter *stale = parameters_find_stale(&trainer->replica.model.parameters);
    CHECK(stale == NULL, "the 16-bit copy of %s differs from its rounded weights: call parameters_changed() after "
          "every change of weights", stale->name);
    pg_set_measuring(trainer->pg, true);
}

static void run_step(Trainer *trainer, long step)
{
    const Options *options = trainer->options;
    RunRecord *record = &trainer->record;
    const bool last = step + 1 == trainer->replica.total_steps;
    begin_step(trainer, step);
    train_step(trainer, step);
    memory_watch_sample(&trainer->memory);
    if (is_due(step, options->eval_every) || (last && options->eval_every > 0))
        periodic_evaluate(trainer, step + 1);
    progress_step(&trainer->progress, step, record->final_loss,
                  (double)(record->global_samples * trainer->replica.time), record->stats.last.seconds[PART_EXPOSED]);
    if (is_due(step, options->check_every))
        check_weights(trainer);
    if (!last && is_due(step, options->save_every))
        periodic_save(trainer, step + 1, trainer->save_is_missing ? BE_QUIET : ADVISE);
}

/* Returns the number of steps done. *signal: the signal that has stopped the run, or 0. */
static long run_steps(Trainer *trainer, int *signal)
{
    const long total = trainer->replica.total_steps;
    long step = trainer->record.first_step;
    *signal = 0;
    stop_on_signals(step, trainer->options->group.timeout);
    for (; step < total && (*signal = stop_is_due(step)) == 0; step++)
        run_step(trainer, step);
    pg_set_measuring(trainer->pg, false);
    trainer->record.peak_rss_mb = report_peak_rss_mb(trainer->pg); /* before the check, which gathers in stage 5 */
    progress_end(&trainer->progress);
    job_set_step(-1);
    timeline_set_step(-1);
    check_weights(trainer);
    return step;
}

static int finish(Trainer *trainer)
{
    const Options *options = trainer->options;
    RunRecord *record = &trainer->record;
    stop_restore_signals();
    if (options->trace != NULL)
        trace_write(trainer->pg, options->trace);
    if (options->eval_every == 0) /* else the last step was evaluated */
        periodic_evaluate(trainer, trainer->replica.total_steps);
    if (options->verify != VERIFY_NONE)
        record->verification = verify_training(options, trainer->pg, &trainer->train_set, &trainer->replica,
                                               trainer->initial_weights, record->first_step);
    report_end(trainer);
    if (options->generate > 0 && pg_rank(trainer->pg) == 0)
        generate_text(&trainer->replica, options->generate, options->seed);
    return report_success(&trainer->replica, record) ? 0 : 1;
}

int train(const Options *options, const Resolved *resolved, ProcessGroup *pg)
{
    Trainer trainer = {.options = options, .resolved = resolved, .pg = pg};
    int signal;
    set_up_run(&trainer);
    report_start(&trainer);
    if (options->trace != NULL) {
        memory_watch_start(&trainer.memory, &trainer.replica.tape);
        trace_start(pg);
    }
    periodic_begin(&trainer);
    pg_reset_counters(pg);
    const long done = run_steps(&trainer, &signal);
    if (trainer.norm_group != NULL)
        trainer.record.norm_collectives = pg_counters(trainer.norm_group).collectives;
    pg_set_measuring(pg, false); /* check_weights() has switched it on again */
    /* Write this before all other outputs: if one of those fails, the training is not lost. */
    periodic_save(&trainer, done, RESCUE);
    const int status = signal != 0 ? report_stopped(&trainer.replica, done, signal) : finish(&trainer);
    const bool good = periodic_end(&trainer);
    tear_down_run(&trainer);
    return status == 0 && !good ? 1 : status;
}
