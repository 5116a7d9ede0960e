/* verify.h: --verify: proves that N ranks and one process train the same weights. */
#ifndef LOCKSTEP_TRAIN_VERIFY_H
#define LOCKSTEP_TRAIN_VERIFY_H

#include "train/loop/replica.h"

/* The reference is a second replica, in one process, that starts from the same weights and takes the same steps.
 * VERIFY_WHOLE_BATCH computes the whole global batch at once; the weights agree to rounding (1e-5). VERIFY_EXACT
 * computes the ranks' shares one after the other and adds their gradients in rank order; every bit agrees. */

#define VERIFY_TOLERANCE 1e-5 /* largest difference between two weights, whole-batch mode, float32 */
#define VERIFY_TOLERANCE_HALF 1e-4 /* the same for bf16, fp16, TF32: see notes/equality.md */
#define VERIFY_BUFFERS 10 /* factor for running statistics: a mean adds up the differences of up to 784 weights */

typedef struct Verification {
    double max_abs_diff;
    char worst_parameter[64];
    int64_t differing; /* number of elements whose bits differ */
    double tolerance;  /* 0 in exact mode */
    bool passed;
} Verification;

/* Trains the reference on rank 0, compares it with `trained` and prints a table; the other ranks wait, without a
 * time-out. initial: the weights after the first broadcast (host memory, parameters_total() floats, rank 0 only).
 * first_step: 0, or the step at which a resumed run began. Collective; the result is equal on all ranks. */
Verification verify_training(const Options *options, ProcessGroup *pg, const Dataset *dataset, Replica *trained,
                             const float *initial, long first_step);

#endif
