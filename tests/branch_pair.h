/* branch_pair.h: the branching model (branches.h) trained on all ranks with DDP, and beside it in one process; and what
 * a listener between the tape and the stage hears meanwhile. For tests of the stages that overlap (3 and 4).
 */
#ifndef LOCKSTEP_TESTS_BRANCH_PAIR_H
#define LOCKSTEP_TESTS_BRANCH_PAIR_H

#include "branches.h"
#include "ddp.h"
#include "optim/optimizer.h"

enum { MAX_EVENTS = 64, MAX_RANKS = 16, PARAMETERS = 2 * BRANCHES + 1, TRUNK = 2 * BRANCHES };

/* ---- a listener between the tape and the stage ---- */

typedef struct Watch {
    ProcessGroup *pg;    /* not owned */
    GradientReady inner; /* the stage's own */
    void *inner_listener;
    int count;
    int order[MAX_EVENTS];        /* parameter indices, as their events came */
    float *gradient[MAX_EVENTS];  /* this rank's gradient when its event came, if `copying`; owned */
    long collectives[MAX_EVENTS]; /* how many were done when the event came, before the stage heard of it */
    bool copying;
    int hold_at;  /* at this event, hold backward until a collective is done; -1: never */
    bool gave_up; /* none was */
} Watch;

/* Steps in between the tape and the stage that listens to it. Fails if none does. */
void watch_start(Watch *watch, ProcessGroup *pg, Tape *tape);
void watch_forget(Watch *watch); /* the events so far */

/* ---- the timeline, to be read while the communication thread has nothing to do ---- */

int timeline_length(void);
/* All-reduces of buckets since event `from`: they must be 0, 1, ..., buckets - 1, one after the other; and the sequence
 * of all collectives must be the same on all ranks. Collective. */
void expect_bucket_order(ProcessGroup *pg, int from, int buckets);

/* ---- the pair ---- */

typedef struct BranchPair {
    ProcessGroup *pg; /* not owned */
    Branches ranks, whole;
    Ddp *ddp;
    Watch watch; /* of `ranks` */
    void *whole_gradients;
    Optimizer ranks_optimizer, whole_optimizer; /* SGD with momentum and weight decay */
} BranchPair;

/* Every rank draws other weights, so that only the broadcast can make them equal. */
BranchPair *branch_pair_create(ProcessGroup *pg, const DdpOptions *options);
void branch_pair_free(BranchPair *pair);

/* This rank's forward and backward pass; last: with the synchronisation of the last micro-batch. */
void branch_pair_ranks_gradient(BranchPair *pair, const BranchPlan *plan, long step, bool last);

/* A micro-batch before the last one of a step, on all ranks and in one process, on the samples that `step` names.
 * plans: by rank. */
void branch_pair_accumulate(BranchPair *pair, const BranchPlan *plans, long step);

/* One step on all ranks (after branch_pair_accumulate(): its last micro-batch); the same step in one process, rank
 * after rank; the comparison. plans: by rank. */
void branch_pair_step(BranchPair *pair, const BranchPlan *plans, long step, const char *what);

#endif
