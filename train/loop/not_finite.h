/* not_finite.h: --on-nan stop: which rank an infinity or NaN comes from. */
#ifndef LOCKSTEP_TRAIN_NOT_FINITE_H
#define LOCKSTEP_TRAIN_NOT_FINITE_H

#include "data/loader.h"
#include "train/loop/replica.h"

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
