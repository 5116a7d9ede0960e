/* gradient_suspects.h: which well-known mistake makes the wrong gradient that a test has seen.
 *
 * A gradient in DDP is a weighted sum of shares: what each rank's micro-batches contribute. Most mistakes are another
 * choice of weights: 1 for one's own share and 0 for all others, if the all-reduce is missing, and so on. A test that
 * has found a wrong gradient recomputes all shares in one process, and looks for the suspect whose weights
 * reproduce it.
 */
#ifndef LOCKSTEP_TESTS_GRADIENT_SUSPECTS_H
#define LOCKSTEP_TESTS_GRADIENT_SUSPECTS_H

#include <stdbool.h>
#include <stddef.h>

#include "training_pair.h"

/* Writes into text what is wrong with pair->ranks' gradient of the parameter; false if no suspect fits. The weights
 * of pair->whole must be those of before the step; its gradients are overwritten. Not collective.
 * all_are_wrong: whether the other parameters' gradients are wrong, too: then none can have been left out alone. */
bool suspects_explain(Pair *pair, long step, int parameter, bool all_are_wrong, char *text, size_t size);

#endif
