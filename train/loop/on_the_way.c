/* on_the_way.c: see on_the_way.h. */
#include "train/loop/on_the_way.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/observer.h"

bool is_due(long step, long every)
{
    return every > 0 && (step + 1) % every == 0;
}

/* The lowest loss so far is that of --save-best's file. If a resumed run finds none there, because it was removed or is
 * to have another name, the next evaluation's state is the best one that there is. */
static void forget_missing_best(OnTheWay *way)
{
    if (way->options->save_best == NULL)
        return;
    int32_t is_there = access(way->options->save_best, F_OK) == 0;
    pg_broadcast(way->pg, &is_there, 1, DTYPE_I32, 0, "is there a best state?");
    if (!is_there)
        way->replica->best_loss = (double)INFINITY;
}

void way_begin(OnTheWay *way, long first_step)
{
    const char *unit = way->options->model.kind == MODEL_GPT ? "tokens" : "samples";
    progress_start(way->progress, first_step, way->replica->total_steps, unit);
    if (way->options->log != NULL && pg_rank(way->pg) == 0)
        step_log_open(&way->log, way->options->log, first_step, unit);
    forget_missing_best(way);
}

void way_log(OnTheWay *way, long step, double loss, double loss_scale, int64_t global_samples, const StepTimes *times)
{
    const Replica *replica = way->replica;
    if (pg_rank(way->pg) != 0)
        return;
    step_log_add(&way->log, &(StepRow){.step = step + 1, .loss = loss,
                                       .learning_rate = (double)learning_rate(way->options, step, replica->total_steps),
                                       .gradient_norm = replica->optimizer.norm, .loss_scale = loss_scale,
                                       .seconds = times->seconds[PART_STEP], .exposed = times->seconds[PART_EXPOSED],
                                       .units = (double)(global_samples * replica->time)});
}

/* Keeps the curve's points in memory that doubles when it is full. */
static void add_point(OnTheWay *way, long done, Evaluation evaluation)
{
    if ((way->count & (way->count - 1)) == 0) { /* 0, 1, 2, 4, ... */
        const size_t room = way->count > 0 ? 2 * (size_t)way->count : 1;
        way->evaluations = realloc(way->evaluations, room * sizeof *way->evaluations);
        way->steps = realloc(way->steps, room * sizeof *way->steps);
        CHECK(way->evaluations != NULL && way->steps != NULL, "out of memory for %zu evaluations", room);
    }
    way->evaluations[way->count] = evaluation;
    way->steps[way->count++] = done;
}

/* If the file cannot be written, it still holds an earlier state, and the next evaluation is compared with that one. All
 * ranks must know, because in stage 5 they all take part in a save. */
static void save_best(OnTheWay *way, long done, double loss)
{
    const double before = way->replica->best_loss;
    const char *path = way->options->save_best;
    way->replica->best_loss = loss;
    if (path == NULL)
        return;
    int32_t written = replica_try_save(way->replica, path, way->pg, way->sampler, done, way->best_is_missing);
    pg_broadcast(way->pg, &written, 1, DTYPE_I32, 0, "is the best state saved?");
    way->best_is_missing = !written;
    if (!written)
        way->replica->best_loss = before;
}

/* note: evaluation-on-the-way
 * It reads weights and data, and writes only what a step overwrites before it reads it: the tape, and the micro-batch's
 * memory on the device. It draws no samples from the loader, and no random numbers. In stage 5 every rank needs whole
 * weights, which the next ddp_before_forward() gives up again. */
Evaluation way_evaluate(OnTheWay *way, long done)
{
    const double since = now_seconds();
    const bool measured = pg_is_measuring(way->pg), gpt = way->options->model.kind == MODEL_GPT;
    pg_set_measuring(way->pg, false);
    ddp_gather_weights(way->ddp);
    const Evaluation evaluation = evaluate(way->replica, way->eval_set, way->pg, way->options->eval_samples);
    add_point(way, done, evaluation);
    if (evaluation.loss < way->replica->best_loss)
        save_best(way, done, evaluation.loss);
    pg_set_measuring(way->pg, measured);
    progress_evaluated(way->progress, evaluation.loss, gpt ? (double)NAN : evaluation.accuracy, now_seconds() - since);
    return evaluation;
}

void way_save(OnTheWay *way, long done, bool last)
{
    const char *path = way->options->save;
    const bool measured = pg_is_measuring(way->pg);
    if (path == NULL)
        return;
    pg_set_measuring(way->pg, false);
    ddp_gather_weights(way->ddp);
    if (last)
        replica_save(way->replica, path, way->pg, way->sampler, done);
    else
        way->save_is_missing = !replica_try_save(way->replica, path, way->pg, way->sampler, done,
                                                 way->save_is_missing);
    pg_set_measuring(way->pg, measured);
}

cJSON *way_curve(const OnTheWay *way)
{
    if (way->options->eval_every == 0)
        return cJSON_CreateNull();
    cJSON *curve = cJSON_CreateArray();
    for (int i = 0; i < way->count; i++) {
        cJSON *point = cJSON_CreateObject();
        summary_add_number(point, "step", (double)way->steps[i]);
        summary_add_number(point, "eval_loss", way->evaluations[i].loss);
        summary_add_number(point, "eval_accuracy",
                           way->options->model.kind == MODEL_GPT ? (double)NAN : way->evaluations[i].accuracy);
        cJSON_AddItemToArray(curve, point);
    }
    return curve;
}

bool way_end(OnTheWay *way)
{
    bool good = !way->best_is_missing;
    free(way->evaluations);
    free(way->steps);
    if (way->best_is_missing && pg_rank(way->pg) == 0)
        job_say_fault("--save-best: the best state of this run could not be written to %s", way->options->save_best);
    if (way->options->log != NULL && pg_rank(way->pg) == 0)
        good &= step_log_close(&way->log);
    return good;
}
