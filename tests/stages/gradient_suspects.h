/* gradient_suspects.h: which well-known mistake makes the wrong gradient that a test has seen.
 *
 * A gradient in DDP is a weighted sum of shares: what each rank's micro-batches contribute. Most mistakes are another
 * choice of weights: 1 for one's own share and 0 for all others, if the all-reduce is missing, and so on. A test that
 * has found a wrong gradient recomputes all shares in one process, and looks for the suspect whose weights
 * reproduce it.
 */
#ifndef LOCKSTEP_TESTS_GRADIENT_SUSPECTS_H
#define LOCKSTEP_TESTS_GRADIENT_SUSPECTS_H

#include "training_pair.h"

/* Compares all of pair->ranks' gradients with those of the whole batch, before the optimizer has used them, and fails
 * with the suspect if one is off by more than the tolerance. what: of the training, for messages. The weights of
 * pair->whole must be those of before the step; a failure overwrites its gradients. Not collective. */
void expect_right_gradients(Pair *pair, long step, const char *what, double tolerance);

#endif
