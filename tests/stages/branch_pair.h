/* branch_pair.h: the branching model (toy_models.h) trained on all ranks with DDP, and beside it in one process, and a
 * Watch on it. For tests of the stages that overlap (3 and 4).
 */
#ifndef LOCKSTEP_TESTS_BRANCH_PAIR_H
#define LOCKSTEP_TESTS_BRANCH_PAIR_H

#include "toy_models.h"
#include "ddp.h"
#include "optim/optimizer.h"
#include "watch.h"

enum { MAX_RANKS = 16, PARAMETERS = 2 * BRANCHES + 1, TRUNK = 2 * BRANCHES };

/* ---- the timeline, to be read while the communication thread has nothing to do ---- */

int timeline_length(void);
/* All-reduces of buckets since event `from`: they must be 0, 1, ..., buckets - 1, one after the other; and the sequence
 * of all collectives must be the same on all ranks. Collective. */
void expect_bucket_order(ProcessGroup *pg, int from, int buckets);

/* ---- the pair ---- */

typedef struct BranchPair {
    ProcessGroup *pg; /* not owned */
    DdpOptions options;
    Branches *ranks, whole; /* ranks: lent (lent.h) */
    Ddp *ddp;
    Watch watch; /* of `ranks` */
    void *whole_gradients;
    Optimizer ranks_optimizer, whole_optimizer; /* SGD with momentum and weight decay */
} BranchPair;

/* Every rank draws other weights, so that only the broadcast can make them equal. frozen: the index of a parameter that
 * is not trained; -1: none. */
BranchPair *branch_pair_create(ProcessGroup *pg, const DdpOptions *options, int frozen);
void branch_pair_free(BranchPair *pair); /* fails if the stage, destroyed, still listens to the tape */

/* This rank's forward and backward pass; last: with the synchronisation of the last micro-batch. Fails if a bucket was
 * started too early, too late or out of turn, and if this rank has not agreed with the others on which parameters were
 * used, where it has to. */
void branch_pair_ranks_gradient(BranchPair *pair, const BranchPlan *plan, long step, bool last);

/* A micro-batch before the last one of a step, on all ranks and in one process, on the samples that `step` names.
 * plans: by rank. */
void branch_pair_accumulate(BranchPair *pair, const BranchPlan *plans, long step);

/* One step on all ranks (after branch_pair_accumulate(): its last micro-batch); the same step in one process, rank
 * after rank; the comparison. plans: by rank. */
void branch_pair_step(BranchPair *pair, const BranchPlan *plans, long step, const char *what);

#endif
