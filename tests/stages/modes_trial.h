/* modes_trial.h: a stage trains modes.h's model on all ranks, and beside it the test computes in one process what each
 * rank must get. For test_mode*.c.
 */
#ifndef LOCKSTEP_TESTS_MODES_TRIAL_H
#define LOCKSTEP_TESTS_MODES_TRIAL_H

#include "modes.h"
#include "optim/optimizer.h"

typedef struct Trial {
    ProcessGroup *pg; /* not owned */
    const Mode *mode; /* not owned */
    Fan *ranks; /* lent (lent.h) */
    Fan whole;  /* rank 0's weights, and the gradients that are expected */
    void *whole_gradients;
    Ddp *ddp;
    bool exact;  /* gradients must have the expected bits */
    bool others_send; /* the second model's micro-batches also come in stage 3, which may send their sums */
    bool begins_as_rank_0; /* it has the same weights before ddp_create(); some other ranks may have them, too */
    bool keeps_weights; /* trial_free(): the model must have its last weights after ddp_destroy() */
    float **size; /* by parameter: sums of absolute gradients; owned */
    void (*before_backward)(bool begins); /* called around ddp_before_backward(); may be NULL */
    void (*after_events)(void);           /* called between backward and ddp_after_backward(); may be NULL */
} Trial;

/* Calls check() with each mode of the table, and with MODES_DRAWN that are drawn. There is a second model: a
 * micro-batch of it, never its last one, comes in the middle of the first one's, and with others_send, from stage 4 on,
 * a last one while the first one's sums are under way. A third one comes and goes before the first one's first step. */
enum { MODES_DRAWN = 2 };
void trial_modes(ProcessGroup *pg, ModeChoice choice, void (*check)(const Mode *mode));

/* latency > 0: each message takes so long that a stage that does not wait for it meets the old contents of a buffer, and
 * that backward leaves gradients waiting to be sent; where buckets are rebuilt, ranks' calls are compared. */
void trial_set_link(ProcessGroup *pg, const Mode *mode, double latency);

/* Every rank draws other weights, so that only the broadcast can make them equal. The first function makes the models,
 * whose tapes have all their memory then, the second the stage, the third both. */
Trial *trial_prepare(ProcessGroup *pg, const Mode *mode);
void trial_start(Trial *trial);
Trial *trial_create(ProcessGroup *pg, const Mode *mode);
void trial_free(Trial *trial);

/* Forward, backward, and what the stage does around them. */
void trial_micro_batch(Trial *trial, int step, int k);
/* Compares gradients with this rank's own sum (before the last micro-batch), or with those of all ranks. */
void trial_expect_gradients(Trial *trial, int step, int k);
/* Weights get a part of their gradients, each rank those that it owns; the stage's ddp_after_update(); then gradients
 * are zero. The next step's gradients depend on these weights. */
void trial_update(Trial *trial);
void trial_end_step(Trial *trial); /* the same without an update */
extern const char trial_weights[]; /* what the collective of trial_update() carries that is not the stage's */
/* How many buckets there are, by the caps; bytes: of the gradients in each one, at most one for each parameter. Stage 1
 * has none: each parameter counts as one, in the order of registration. Not after a rebuild. */
int trial_plan(const Trial *trial, size_t *bytes);
/* Bytes of all trained weights. */
size_t trial_bytes(const Trial *trial);
const Tensor *trial_tensor(const Trial *trial, int i); /* parameter i, as the stage has it */
int trial_trained(const Trial *trial); /* how many parameters are trained */

#endif
