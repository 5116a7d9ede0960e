/* gradient_suspects.h: finds the well-known mistake that explains a wrong gradient.
 *
 * A gradient in DDP is a weighted sum of shares: the contributions of each rank's micro-batches. Most mistakes change
 * the weights. For example, if the all-reduce is missing, the weight of the own share is 1 and all others are 0. A test
 * that has found a wrong gradient recomputes all shares in one process, and looks for the suspect (a set of weights)
 * that reproduces this gradient.
 */
#ifndef LOCKSTEP_TESTS_GRADIENT_SUSPECTS_H
#define LOCKSTEP_TESTS_GRADIENT_SUSPECTS_H

#include "training_pair.h"

/* Compares all gradients of pair->ranks with those of the whole batch. Fails, and names the suspect, if one differs by
 * more than the tolerance. Call it before the optimizer uses the gradients. what: of the training, for messages.
 * pair->whole must hold the weights of before the step; a failure overwrites its gradients. Not collective. */
void expect_right_gradients(Pair *pair, long step, const char *what, double tolerance);

#endif
