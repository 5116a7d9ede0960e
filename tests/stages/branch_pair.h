/* branch_pair.h: trains the branching model (branches.h) on all ranks with DDP, and a copy of it in one process, with a
 * Watch on the first. For tests of the stages that overlap (3 and 4).
 */
#ifndef LOCKSTEP_TESTS_BRANCH_PAIR_H
#define LOCKSTEP_TESTS_BRANCH_PAIR_H

#include "branches.h"
#include "ddp.h"
#include "optim/optimizer.h"
#include "watch.h"

enum { MAX_RANKS = 16, PARAMETERS = 2 * BRANCHES + 1, TRUNK = 2 * BRANCHES };

/* ---- the timeline: read it only while the communication thread is idle ---- */

int timeline_length(void);
/* Fails unless the all-reduces of buckets since event `from` are 0, 1, ..., buckets - 1, one after the other, and the
 * sequence of all collectives is the same on all ranks. Collective. */
void expect_bucket_order(ProcessGroup *pg, int from, int buckets);

/* ---- the pair ---- */

typedef struct BranchPair {
    ProcessGroup *pg; /* not owned */
    DdpOptions options;
    Branches ranks, whole;
    Ddp *ddp;
    Watch watch; /* of `ranks` */
    void *whole_gradients;
    Optimizer ranks_optimizer, whole_optimizer; /* SGD with momentum and weight decay */
} BranchPair;

/* Every rank draws different weights, so that only the broadcast makes them equal. frozen: the index of a parameter
 * that is not trained; -1: none. Collective. Free with branch_pair_free(). */
BranchPair *branch_pair_create(ProcessGroup *pg, const DdpOptions *options, int frozen);
void branch_pair_free(BranchPair *pair); /* fails if the destroyed stage still listens to the tape */

/* This rank's forward and backward pass. last: synchronised as the last micro-batch. Fails if a bucket was launched too
 * early, too late or out of order, and if the ranks had to agree on the used parameters but this rank did not. */
void branch_pair_ranks_gradient(BranchPair *pair, const BranchPlan *plan, long step, bool last);

/* Trains a micro-batch that is not its step's last one, on all ranks and in one process, on the samples that `step`
 * selects. plans: by rank. */
void branch_pair_accumulate(BranchPair *pair, const BranchPlan *plans, long step);

/* Trains one step on all ranks (after branch_pair_accumulate(): its last micro-batch), the same step in one process,
 * rank after rank, and compares the weights. plans: by rank. what: of the test, for messages. */
void branch_pair_step(BranchPair *pair, const BranchPlan *plans, long step, const char *what);

#endif
