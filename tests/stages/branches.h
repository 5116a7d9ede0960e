/* branches.h: a small model built directly on the tape, for what the real models never do: branches that are
 * recorded in another order on each rank, that are left out, or that lead nowhere; and a weight that is used twice.
 *
 *   h = relu(x trunk^T) trunk^T                     trunk: the tied weight, first used, last complete
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

/* What one rank does in one step. */
typedef struct BranchPlan {
    int order[BRANCHES]; /* in which the branches are recorded; backward meets them in reverse */
    bool left_out[BRANCHES]; /* not computed at all */
    bool dead_end[BRANCHES]; /* computed, but the loss does not depend on it */
} BranchPlan;

void branches_create(Branches *branches, uint64_t seed);
void branches_free(Branches *branches);

/* All branches, in the order of their numbers, `turn` places further round; odd turns go backwards. */
BranchPlan branches_plan(int turn);

/* The loss on BRANCH_SAMPLES samples that depend on rank and step only. Start with tape_begin(). */
Tensor *branches_loss(Branches *branches, const BranchPlan *plan, int rank, long step);

#endif
