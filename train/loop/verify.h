/* verify.h: two checks of a training: --verify proves that N ranks trained what one process trains; --on-nan stop finds
 * the rank that an infinity or NaN comes from.
 */
#ifndef LOCKSTEP_TRAIN_VERIFY_H
#define LOCKSTEP_TRAIN_VERIFY_H

#include "data/loader.h"
#include "train/loop/replica.h"

/* ---- the proof ---- */

/* A second replica, in one process, starts from the same weights and takes the same steps. VERIFY_WHOLE_BATCH computes
 * the whole global batch at once; the weights agree to rounding (1e-5). VERIFY_EXACT computes the N ranks' shares one
 * after the other and adds their gradients in rank order; with --allreduce ordered, every bit agrees. */

#define VERIFY_TOLERANCE 1e-5 /* largest difference between two weights, whole-batch mode, float32 */
#define VERIFY_TOLERANCE_HALF 1e-4 /* the same for bf16, fp16, TF32: see notes/equality.md */

typedef struct Verification {
    double max_abs_diff;
    char worst_parameter[64];
    int64_t differing; /* number of elements whose bits differ */
    double tolerance;  /* 0 in exact mode */
    bool passed;
} Verification;

/* Trains the reference on rank 0, compares it with `trained` and prints a table; the other ranks wait, without a
 * time-out. `initial`: the weights after the first broadcast (host memory, parameters_total() floats, only needed on
 * rank 0). first_step: 0, or the step at which a resumed run began. Collective; the result is equal on all ranks. */
Verification verify_training(const Options *options, ProcessGroup *pg, const Dataset *dataset, Replica *trained,
                             const float *initial, long first_step);

/* ---- a loss or a gradient that is not finite ---- */

/* note: not-finite
 * A loss belongs to one rank, and is checked before anything is sent, so the rank that finds it is the cause. A
 * gradient is different: after the all-reduce, one rank's NaN is on all ranks. To check every gradient before it is
 * sent would take a pass over memory in every step. Instead, only the failing step is computed again, without sending
 * anything. No copy is needed for this, because a step that is skipped does not change the weights. */

/* Call it before backward; loss: this rank's sum over the micro-batch. Ends the job (status 1) if it is not finite,
 * but first gives the other ranks time to report the same: at least twice forward_seconds, this forward pass's time. */
void not_finite_check_loss(float loss, const Batch *batch, double forward_seconds);

/* Call it when the step was skipped because a gradient was not finite after the all-reduce. The rank that it comes from
 * reports it, and the job ends (status 1). again: a loader that starts at this step. Collective. */
_Noreturn void not_finite_name_rank(ProcessGroup *pg, Replica *replica, const Dataset *dataset, Loader *again);

#endif
