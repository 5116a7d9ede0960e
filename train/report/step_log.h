/* step_log.h: --log: a CSV file with a row for every step, or every K steps.
 *
 * Interface, on one rank: step_log_open(), step_log_add() after a step, step_log_close() at the end.
 * A row is written at once, so that the file can be read while the run goes on, and lacks nothing if the run is killed.
 */
#ifndef LOCKSTEP_TRAIN_STEP_LOG_H
#define LOCKSTEP_TRAIN_STEP_LOG_H

#include <stdbool.h>

typedef struct StepLog {
    const char *path; /* not copied */
    int file;         /* descriptor */
    long long size;   /* of what is written whole */
    long lost;        /* rows that could not be written */
} StepLog;

typedef struct StepRow {
    long step;            /* steps done: the first one has number 1 */
    double loss;          /* the mean over the global batch */
    double learning_rate, gradient_norm, loss_scale; /* norm: before clipping */
    double seconds, exposed; /* of the step on this rank, and of it waiting for collectives */
    double units;         /* samples or tokens of the global batch */
} StepRow;

/* Begins the file, whole or not at all (files/atomic_file.h): a header, and the rows of an earlier log at this path up
 * to step first_step, which a resumed run goes on from; 0: none. unit: "samples". die()s if a resumed run finds a file
 * that is no such log; faults if the file cannot be written. */
void step_log_open(StepLog *log, const char *path, long first_step, const char *unit);
/* If the row cannot be written, it is left out; a note says so, once. */
void step_log_add(StepLog *log, const StepRow *row);
/* Returns false, and says so, if rows are missing. */
bool step_log_close(StepLog *log);

#endif
