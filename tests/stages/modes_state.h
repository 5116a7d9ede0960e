/* modes_state.h: what a stage must leave alone, and what it says of itself, in a trial (modes_trial.h). Each function
 * fails if that does not hold.
 */
#ifndef LOCKSTEP_TESTS_MODES_STATE_H
#define LOCKSTEP_TESTS_MODES_STATE_H

#include "modes_trial.h"

/* Stages 1 to 4, before a micro-batch: weights are those of the update before. */
void state_expect_weights(const Trial *trial, int step, int k);
/* Slices cover each trained parameter, once in each group of ranks that shares it. Stages 1 to 4 have none.
 * Collective. */
void state_expect_partition(const Trial *trial);
/* After a step, all ranks count a parameter as used if one of them has used it. */
void state_expect_use(const Trial *trial, int i, int step);
/* After backward, nothing is whole that the level divides. */
void state_expect_level(const Trial *trial);

#endif
