/* sharded_run.h: a small model that stage 5 trains on all ranks, with a look at its collectives and events. For
 * test_sharded.c and test_shards.c. */
#ifndef LOCKSTEP_STAGES_SHARDED_RUN_H
#define LOCKSTEP_STAGES_SHARDED_RUN_H

#include <stdatomic.h>

#include "comm/group.h" /* to observe collectives, and to slow them down */
#include "toy_models.h"
#include "train/loop/replica.h"

enum { SAMPLES = 8, LOG_ROOM = 4096 };

/* ---- collectives, as they are carried out ---- */

typedef struct Seen {
    ProcessGroup *pg;
    char log[LOG_ROOM]; /* "AG2 AG1 RS0 ": all_gather of bucket 2, ... */
    size_t gathered, scattered; /* bytes */
    _Atomic double gather_seconds; /* each gather begins so much later */
    /* The hold: this collective does not go on before `released`, and says when it has come. */
    Operation held_operation;
    int held_bucket; /* -1: none */
    atomic_bool has_come, released;
    atomic_bool gave_up;
} Seen;
extern Seen seen;

/* Observes the group, whose communication thread must be idle. */
void seen_start(ProcessGroup *pg);
/* Waits until everything that is under way is over, and empties the log. */
void seen_forget(void);
void seen_hold(Operation operation, int bucket);
/* Waits at most 8 s; then seen.gave_up is true. */
void seen_wait_for(atomic_bool *flag);

/* ---- the model ---- */

typedef struct Run {
    Options options;
    Dataset dataset;
    Replica *replica; /* lent (lent.h) */
    Ddp *ddp;
    unsigned char *inputs, *targets;
    bool in_backward;
} Run;

/* Options with AdamW, a bucket for each layer, and the level `zero`. */
Options run_options(const char *model, int zero);
/* Whether this level is tested: all are, unless LOCKSTEP_TEST_ZERO names one. */
bool run_has_level(int zero);
/* Every rank seeds its weights differently. */
Run *run_create(const Options *options);
void run_free(Run *run);
void run_micro_batch(Run *run, bool last);
void run_update(Run *run, long step);
/* The number of the parameter's bucket if each layer has one. */
int run_bucket(const Run *run, const Parameter *parameter);
/* Every rank's slices together: of the weights, or of the gradients. Device memory of the caller. Collective. */
float *run_whole_weight(Run *run, int parameter);
float *run_whole_gradient(Run *run, int parameter);

/* From now on, these functions are called after the stage has handled an event of the tape: parameters are needed, or a
 * gradient is. Either may be NULL. */
void run_intercept(Run *run, void (*after_needed)(Run *run, Parameter *const *parameters, int count),
                   void (*after_gradient)(Run *run, Parameter *parameter));

#endif
