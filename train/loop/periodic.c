/* periodic.c: what a run does after some of its steps: evaluation, checkpoints and the log; declared in trainer.h. */
#include "train/loop/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/observer.h"

bool is_due(long step, long every)
{
    return every > 0 && (step + 1) % every == 0;
}

void periodic_begin(Trainer *trainer)
{
    const long first_step = trainer->record.first_step;
    const char *unit = trainer->options->model.kind == MODEL_GPT ? "tokens" : "samples";
    progress_start(&trainer->progress, first_step, trainer->replica.total_steps, unit);
    if (trainer->options->log != NULL && pg_rank(trainer->pg) == 0)
        step_log_open(&trainer->log, trainer->options->log, first_step, unit);
    if (trainer->options->save_best == NULL)
        return;
    /* If a resumed run finds no such file, the next evaluation's state is the best one. */
    int32_t is_there = access(trainer->options->save_best, F_OK) == 0;
    pg_broadcast(trainer->pg, &is_there, 1, DTYPE_I32, 0, "is there a best state?");
    if (!is_there)
        trainer->replica.best_loss = (double)INFINITY;
}

void periodic_log(Trainer *trainer, long step)
{
    const Replica *replica = &trainer->replica;
    const RunRecord *record = &trainer->record;
    const double *seconds = record->stats.last.seconds;
    if (pg_rank(trainer->pg) != 0)
        return;
    step_log_add(&trainer->log,
                 &(StepRow){.step = step + 1, .loss = record->final_loss,
                            .learning_rate = (double)learning_rate(trainer->options, step, replica->total_steps),
                            .gradient_norm = replica->optimizer.norm, .loss_scale = trainer->loss_scale,
                            .seconds = seconds[PART_STEP], .exposed = seconds[PART_EXPOSED],
                            .units = (double)(record->global_samples * replica->time)});
}

static void add_point(RunRecord *record, long done)
{
    const int count = record->evaluation_count++;
    if ((count & (count - 1)) == 0) { /* full at 0, 1, 2, 4, ... */
        const size_t room = count > 0 ? 2 * (size_t)count : 1;
        record->evaluations = realloc(record->evaluations, room * sizeof *record->evaluations);
        CHECK(record->evaluations != NULL, "out of memory for %zu evaluations", room);
    }
    record->evaluations[count] = (EvaluationPoint){done, record->evaluation};
}

/* If the file cannot be written, it still holds an earlier state, and the next evaluation is compared with that one.
 * All ranks must know, because in stage 5 they all take part in a save. */
static void save_best(Trainer *trainer, long done, double loss)
{
    Replica *replica = &trainer->replica;
    const double before = replica->best_loss;
    const char *path = trainer->options->save_best;
    replica->best_loss = loss;
    if (path == NULL)
        return;
    int32_t written = replica_save(replica, path, trainer->pg, &trainer->sampler, done,
                                   trainer->best_is_missing ? BE_QUIET : ADVISE);
    pg_broadcast(trainer->pg, &written, 1, DTYPE_I32, 0, "is the best state saved?");
    trainer->best_is_missing = !written;
    if (!written)
        replica->best_loss = before;
}

/* note: periodic-evaluation
 * An evaluation reads weights and data. It writes only to memory that a step overwrites before reading: the tape, and
 * the micro-batch on the device. It draws no samples from the loader, and no random numbers. In stage 5 every rank
 * needs whole weights, which the next ddp_before_forward() gives up again. */
void periodic_evaluate(Trainer *trainer, long done)
{
    const double since = now_seconds();
    const bool measured = pg_is_measuring(trainer->pg), gpt = trainer->options->model.kind == MODEL_GPT;
    pg_set_measuring(trainer->pg, false);
    ddp_gather_weights(trainer->ddp);
    const Evaluation now = evaluate(&trainer->replica, &trainer->eval_set, trainer->pg, trainer->options->eval_samples);
    trainer->record.evaluation = now;
    add_point(&trainer->record, done);
    if (now.loss < trainer->replica.best_loss)
        save_best(trainer, done, now.loss);
    pg_set_measuring(trainer->pg, measured);
    progress_evaluated(&trainer->progress, now.loss, gpt ? (double)NAN : now.accuracy, now_seconds() - since);
}

void periodic_save(Trainer *trainer, long done, OnFailure on_failure)
{
    const bool measured = pg_is_measuring(trainer->pg);
    if (trainer->options->save == NULL)
        return;
    pg_set_measuring(trainer->pg, false);
    ddp_gather_weights(trainer->ddp);
    trainer->save_is_missing = !replica_save(&trainer->replica, trainer->options->save, trainer->pg,
                                             &trainer->sampler, done, on_failure);
    pg_set_measuring(trainer->pg, measured);
}

bool periodic_end(Trainer *trainer)
{
    const Options *options = trainer->options;
    const bool is_writer = pg_rank(trainer->pg) == 0;
    if (trainer->best_is_missing && is_writer)
        job_say_fault("--save-best: the best state of this run could not be written to %s", options->save_best);
    const bool log_is_whole = options->log == NULL || !is_writer || step_log_close(&trainer->log);
    return log_is_whole && !trainer->best_is_missing;
}
