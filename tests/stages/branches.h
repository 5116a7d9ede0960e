/* branches.h: a small model built directly on the tape, for cases that the real models never have: branches that each
 * rank records in a different order, that are left out, or that the loss ignores; and a weight that is used twice.
 *
 *   h = relu(x trunk^T) trunk^T                     trunk: the tied weight; used first, ready last
 *   prediction = sum over k of (h weight_k^T + bias_k)
 *   loss = mean squared error, summed over samples
 */
#ifndef LOCKSTEP_TESTS_BRANCHES_H
#define LOCKSTEP_TESTS_BRANCHES_H

#include "autograd/tape.h"

enum { BRANCHES = 5, BRANCH_WIDTH = 6, BRANCH_SAMPLES = 4 };

typedef struct Branches {
    ParameterList parameters; /* branch0.weight, branch0.bias, branch1.weight, ..., trunk.weight */
    Tape tape;
} Branches;

/* One rank's branches in one step. */
typedef struct BranchPlan {
    int order[BRANCHES]; /* the order in which branches are recorded; backward visits them in reverse */
    bool left_out[BRANCHES]; /* not computed at all */
    bool dead_end[BRANCHES]; /* computed, but the loss does not depend on it */
} BranchPlan;

void branches_create(Branches *branches, uint64_t seed);
void branches_free(Branches *branches);

/* A plan with all branches, in the order of their numbers, rotated by `turn`; reversed if turn is odd. */
BranchPlan branches_plan(int turn);

/* The loss on BRANCH_SAMPLES samples that depend only on rank and step. Call tape_begin() before. */
Tensor *branches_loss(Branches *branches, const BranchPlan *plan, int rank, long step);

#endif
