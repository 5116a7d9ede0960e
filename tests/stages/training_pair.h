/* training_pair.h: trains the same model twice: on N ranks with DDP, and in one process on whole batches. Both must
 * give the same weights. Every rank holds both models, so that it can compare them before and after every step.
 *
 * Interface, per step: pair_ranks_gradient(), pair_whole_gradient(), compare, then pair_update().
 */
#ifndef LOCKSTEP_TESTS_TRAINING_PAIR_H
#define LOCKSTEP_TESTS_TRAINING_PAIR_H

#include "data/loader.h"
#include "train/loop/replica.h"

typedef struct Pair {
    ProcessGroup *pg; /* not owned */
    Options options;
    Dataset dataset;
    Sampler sampler;
    Loader *loader;
    Replica *ranks; /* lent (lent.h): this rank's replica, trained with DDP */
    Replica whole; /* trained alone, on whole batches */
    uint64_t *seeds; /* of the ranks' first weights; owned */
    Ddp *ddp;
    void *whole_gradients;
    bool gradients_gathered;
    float *weights_before;   /* stage 5: the whole model's, before its last update; owned */
    void **stages_gradients; /* stage 5, between pair_ranks_gradient() and pair_update(): what tensor.grad was; owned */
    int64_t *indices;      /* room for a global batch */
    void *inputs, *targets;
} Pair;

/* What other ranks than 0 hold before the broadcast may be anything: their parameters end with a NaN. */
void spoil_weights(ParameterList *parameters, int rank);
/* frozen: the name of a parameter that is not trained, or NULL. Free with pair_free(). Both are collective. */
Pair *pair_create(ProcessGroup *pg, const Options *options, int64_t samples, const char *frozen);
void pair_free(Pair *pair);

/* Forward, backward and synchronisation of the next step on all ranks, without the update. Collective. */
void pair_ranks_gradient(Pair *pair);
/* The same of several models at once, at most MOST_PAIRS, with equally many micro-batches. */
enum { MOST_PAIRS = 2 };
void pairs_ranks_gradients(Pair *const *pairs, int count);

/* The optimizer's step in both. Collective. */
void pair_update(Pair *pair, long step);

/* Compares all weights, and fails if one differs by more than the tolerance, with the hint as the usual cause. Returns
 * the largest difference. */
double pair_compare_weights(const Pair *pair, const char *when, const char *what, double tolerance, const char *hint);

/* The same step on the whole batch; puts the mean gradient into pair->whole. */
void pair_whole_gradient(Pair *pair, long step);

/* Puts the contribution of a rank's micro-batch to the step into pair->whole: the gradient of its SUMMED loss. Returns
 * the number of terms in the sum: samples, or tokens. */
int64_t pair_share(Pair *pair, long step, int rank, int micro_batch);

/* The correct divisor of the step's sum of gradients: the terms of the whole batch's loss; with JOIN_INITIAL, those of
 * a full batch. */
int64_t pair_terms(Pair *pair, long step);
double pair_wrong_divisor(Pair *pair, long step); /* the other one of these two numbers */

/* ---- gradient_suspects.c: which well-known mistake makes the wrong gradient that a test has seen ----
 *
 * A gradient in DDP is a weighted sum of shares: what each rank's micro-batches contribute. Most mistakes are another
 * choice of weights: 1 for one's own share and 0 for all others, if the all-reduce is missing, and so on. A test that
 * has found a wrong gradient recomputes all shares in one process, and looks for the suspect whose weights
 * reproduce it.
 */

/* Compares all gradients of pair->ranks with those of the whole batch. Fails, and names the suspect, if one differs by
 * more than the tolerance. Call it before the optimizer uses the gradients. what: of the training, for messages.
 * pair->whole must hold the weights of before the step; a failure overwrites its gradients. Not collective. */
void expect_right_gradients(Pair *pair, long step, const char *what, double tolerance);

/* ---- weight_suspects.c, stage 5 only ---- */

/* After pair_update(), if weights differ by more than the tolerance: writes the usual cause to text if it finds one. */
void explain_wrong_weights(const Pair *pair, double tolerance, char *text, size_t size);

#endif
