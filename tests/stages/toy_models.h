/* toy_models.h: small models to train in tests, and small data sets made in memory. */
#ifndef LOCKSTEP_TESTS_TOY_MODELS_H
#define LOCKSTEP_TESTS_TOY_MODELS_H

#include "autograd/tape.h"
#include "train/cli/options.h"

/* ---- the real models, small ---- */

/* Options for the model `name`: "mlp-toy" (regression, 10-20-20-5), "mlp" (images of 64 pixels, 64-48-32-10) or "gpt"
 * (2 layers, 2 heads, width 32, context 16). SGD, learning rate 0.05, no momentum, batch 24. */
Options toy_options(const char *model_name);

/* Makes `samples` samples for these options, the same on every rank. Free with dataset_close(). */
Dataset toy_dataset(const Options *options, int64_t samples);

/* ---- first weights ----
 *
 * A stage that knows the seed could draw rank 0's weights on each rank, and broadcast nothing. So where a grader runs,
 * the judge draws rank 0's seed, one of 16. Otherwise it is 2 more than LOCKSTEP_TEST_SEED (1). */

/* This rank's seed. */
uint64_t toy_seed(ProcessGroup *pg);
/* All ranks' seeds. Call it after ddp_create(). Collective. */
void toy_seeds_of_all(ProcessGroup *pg, uint64_t *seeds);
uint64_t toy_seed_of_rank_0(ProcessGroup *pg); /* the same, of one rank */

/* ---- a model with branches ----
 *
 * Built directly on the tape, for cases that the real models never have: branches that each rank records in a different
 * order, that are left out, or that the loss ignores; and a weight that is used twice.
 *
 *   h = relu(x trunk^T) trunk^T                     trunk: the tied weight; used first, ready last
 *   prediction = sum over k of (h weight_k^T + bias_k)
 *   loss = mean squared error, summed over samples
 */
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

/* The rule of buckets_plan(), again, because students write that one: sizes in bytes, in the order of the plan. */
int planned_buckets(const size_t *sizes, int count, const DdpOptions *caps, int *bucket_of);
/* The number of buckets of these parameters. NULL: of trained parameters. */
int planned_sums(const ParameterList *parameters, const DdpOptions *caps);
const char *precision_name(DType precision); /* "fp32", "bf16" or "fp16", as in --precision */

#endif
