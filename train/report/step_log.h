/* step_log.h: --log: a CSV file with a row for every step, or every K steps.
 *
 * Interface, on one rank: step_log_open(), step_log_add() after a step, step_log_close() at the end. Each row is
 * written immediately, so the file can be read during the run, and is complete if the run is killed.
 */
#ifndef LOCKSTEP_TRAIN_STEP_LOG_H
#define LOCKSTEP_TRAIN_STEP_LOG_H

#include <stdbool.h>

typedef struct StepLog {
    const char *path; /* not copied */
    int file;         /* descriptor */
    long long size;   /* of the complete rows */
    long lost;        /* rows that could not be written */
} StepLog;

typedef struct StepRow {
    long step;            /* counted from 1 */
    double loss;          /* the mean over the global batch */
    double learning_rate, gradient_norm, loss_scale; /* norm: before clipping */
    double seconds, exposed; /* of the step on this rank; of its waiting for collectives */
    double units;         /* samples or tokens of the global batch */
} StepRow;

/* Creates the file atomically, with a header and, in a resumed run, with the rows of the earlier log up to step
 * first_step (0: not resumed). unit: "samples". die()s if a resumed run finds a file that is not such a log. */
void step_log_open(StepLog *log, const char *path, long first_step, const char *unit);
/* Leaves the row out if it cannot be written; the first time, a note reports it. */
void step_log_add(StepLog *log, const StepRow *row);
/* Returns false, and reports it, if rows are missing. */
bool step_log_close(StepLog *log);

#endif
