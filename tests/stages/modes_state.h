/* modes_state.h: what a stage must leave alone, and what it says of itself, in a trial (modes_trial.h). Each function
 * fails if that does not hold.
 */
#ifndef LOCKSTEP_TESTS_MODES_STATE_H
#define LOCKSTEP_TESTS_MODES_STATE_H

#include "modes_trial.h"

/* How often each parameter has changed, before ddp_create(); owned by the caller. Afterwards: each one that another rank
 * has sent must be marked, or rounded copies of it would be the old ones. */
long *state_versions(const Trial *trial);
void state_expect_marked(const Trial *trial, const long *versions);
/* After ddp_create(), gradients are zero, whatever they were. */
void state_expect_fresh_gradients(const Trial *trial);
/* Stages 1 to 4, before a micro-batch: weights are those of the update before. */
void state_expect_weights(const Trial *trial, int step, int k);
/* After ddp_destroy() the model has the weights that `whole` has. */
void state_expect_own_weights(const Trial *trial);
/* Slices cover each trained parameter, once in each group of ranks that shares it. Stages 1 to 4 have none.
 * Collective. */
void state_expect_partition(const Trial *trial);
/* After a step, all ranks count a parameter as used if one of them has used it. */
void state_expect_use(const Trial *trial, int i, int step);
/* After backward, nothing is whole that the level divides. */
void state_expect_level(const Trial *trial);

#endif
