/* trial.h: one job of simulated ranks in one mode: the training loop of ddp.h with the toy model, and all comparisons
 * that hold in every mode: the weights at the start, each step's gradients, and the weights at the end. */
#ifndef LOCKSTEP_TESTS_WORLD_TRIAL_H
#define LOCKSTEP_TESTS_WORLD_TRIAL_H

#include "stage5_sharded/sharded.h"
#include "world/model.h"
#include "world/world.h"

/* What a row changes in the loop; each may be NULL. */
typedef struct TrialHooks {
    void (*created)(Toy *toy, Ddp *ddp);             /* after ddp_create() */
    void (*before_create)(Toy *toy);
    void (*after_backward)(Toy *toy, Ddp *ddp, ProcessGroup *pg); /* after the step's last ddp_after_backward() */
    void (*step_over)(Toy *toy, Ddp *ddp, ProcessGroup *pg);      /* after zeroing */
} TrialHooks;

void trial_run(const Mode *mode, const TrialHooks *hooks);
extern const Mode *trial_mode; /* of the trial that runs, for messages; NULL: none */

#endif
