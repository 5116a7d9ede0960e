/* contract.h: the rows of a stage's contract. A row is a sentence of what must hold, the modes that it samples, and a
 * function that looks whether it holds. A row that does not hold ends its process with a message and status 1. */
#ifndef LOCKSTEP_TESTS_WORLD_CONTRACT_H
#define LOCKSTEP_TESTS_WORLD_CONTRACT_H

#include "world/trial.h"

typedef struct Row {
    const char *name;     /* for the command line and the points files */
    const char *sentence;
    int first_stage, last_stage;
    int times;            /* how many modes are drawn */
    void (*fix)(Mode *mode); /* fixes a part of the drawn mode; NULL: nothing */
    void (*run)(const Mode *mode);
} Row;

/* Each list ends with a row without a name. */
extern const Row rows_all[];     /* rows.c: what holds in all stages */
extern const Row rows_faults[];  /* rows_faults.c: what ends the job, and how */
extern const Row rows_buckets[]; /* rows_buckets.c: buckets, overlap, no_sync */
extern const Row rows_sharded[]; /* rows_sharded.c: stage 5 */

/* Runs function(mode) in a separate process, and writes what it printed to text. Returns its exit status, or 128 and
 * the number of the signal that ended it. */
int run_apart(void (*function)(const Mode *mode), const Mode *mode, char *text, size_t size);

/* Ends a row that this build cannot run. */
_Noreturn void row_not_run(void);

#endif
