/* modes.h: the ways in which a stage can be used, drawn as one table: type of what is sent, micro-batches, level,
 * number of buckets, unused, frozen and tied parameters, rebuilt buckets, algorithm. For test_modes.c.
 *
 * The model has as many parameters as a mode wants, weights of width x width elements, and in some modes biases:
 *   h = x trunk^T                       registered first, ready last
 *   prediction = h + sum over k of (h branchK^T, with biases + biasK)
 *   loss = mean squared error, summed over samples
 */
#ifndef LOCKSTEP_TESTS_MODES_H
#define LOCKSTEP_TESTS_MODES_H

#include "autograd/tape.h"
#include "stage5_sharded/sharded.h"

enum { MODE_SAMPLES = 4, MOST_MODES = 64 };

typedef struct Mode {
    int branches, width; /* branches + 1 weights */
    bool biases;         /* each branch also has a bias, registered after its weight */
    bool not_finite;     /* in step 2 an element of rank 0's last micro-batch is NaN, and must not be hidden */
    bool large;          /* some gradients of step 2 are: too large for fp16, though not for float32 */
    DdpOptions options; /* .sharding is set when the stage gets them */
    ShardingOptions sharding;
    int micro_batches;       /* at most: see mode_micro_batches() */
    int frozen;    /* index of a parameter that is not trained; -1: none */
    bool tied;     /* one branch also uses the next one's weight */
    bool shuffled; /* each rank records its branches in an order of its own; not at level 3 */
    bool unused;   /* some branches are left out by some ranks, by all, or in one micro-batch only */
    AllReduceAlgorithm algorithm;
    int later;     /* steps after those that every mode has: a stage must not change after a while */
    uint64_t seed; /* of weights, samples, and the branches left out */
    char title[200];
} Mode;

/* What can break a property decides which modes are tried for it. */
typedef struct ModeChoice {
    bool types, micro_batches, unused, rebuilt;
    int many_buckets; /* the first 0 to 3 of the modes of 33, 65 and 1025 buckets */
    bool ordered; /* only algorithms that add in rank order */
    bool large_one; /* one or two ranks: a mode of large buckets has more than 2^21 elements in each */
    bool events;  /* fewer later steps */
    bool grows;   /* later steps in all modes of 8 to 32 branches */
    bool groups;  /* stage 5: on 4 ranks most modes divide the shards among two ranks, on 2 ranks some among one */
    bool several; /* buckets, always */
    bool accumulates; /* several micro-batches, always */
    int width; /* 0: small */
} ModeChoice;

/* Fills modes with a table in which each pair of values of two factors occurs, as far as this stage has them, and each
 * triple of values of the factors that meet in the same few lines of a stage; then with many_buckets modes of 33, 65
 * and 1025 buckets, and with `drawn` modes of any kind: all these are drawn by the seed in LOCKSTEP_TEST_SEED (1). Of the
 * modes with unused parameters, every third has a static graph. More than two ranks take their time on few cores:
 * there it is the beginning of the table, one mode of 33 buckets, and one drawn; elsewhere one of the modes has later
 * steps. With LOCKSTEP_TEST_ZERO, stage 5 has only this level. Returns how many there are. */
int modes_table(Mode modes[MOST_MODES], ModeChoice choice, int ranks, int drawn);

/* K differs from step to step: all of them, 1, all but one. */
int mode_micro_batches(const Mode *mode, int step);

/* ---- the model ---- */

typedef struct Fan {
    ParameterList parameters; /* trunk.weight, branch0.weight, (branch0.bias,) branch1.weight, ... */
    Tape tape;
} Fan;

int fan_weight(const Mode *mode, int branch); /* the index of its parameter */
void fan_create(Fan *fan, const Mode *mode, uint64_t seed);
void fan_free(Fan *fan);
/* The loss of this rank's samples in this micro-batch of this step. Call tape_begin() before. */
Tensor *fan_loss(Fan *fan, const Mode *mode, int rank, int step, int micro_batch);

/* Whether the loss of any rank depends on the parameter in any micro-batch of the step. */
bool fan_uses(const Mode *mode, int ranks, int step, int parameter);

/* Adds to `sum` (by parameter, floats) what all ranks' gradients of the step are together: each rank's own sum over
 * micro-batches, rounded to the type that is sent, added in rank order; the result is rounded, too. `size`: of the
 * same, but of absolute values, by which a tolerance is measured. */
void fan_expected(Fan *fan, const Mode *mode, int ranks, int step, float **sum, float **size);
/* Into the gradients of fan: this rank's own sum after micro-batches 0 to last. */
void fan_own_sum(Fan *fan, const Mode *mode, int rank, int step, int last);

#endif
