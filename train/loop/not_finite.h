/* not_finite.h: a loss or a gradient is infinite or NaN, and the run is to stop there (--on-nan stop): which rank does
 * it come from?
 *
 * note: not-finite
 * The loss is each rank's own, and is looked at before anything is sent: whoever finds it is the one. A gradient is
 * not: after the all-reduce, one rank's NaN is on all. To look at every gradient before it is sent would be a pass over
 * memory in every step. Nothing has to be kept for it either, as a step that is left out leaves the weights as they
 * were: the failing step alone is computed once more, and this time nothing is sent.
 */
#ifndef LOCKSTEP_TRAIN_NOT_FINITE_H
#define LOCKSTEP_TRAIN_NOT_FINITE_H

#include "data/loader.h"
#include "comm/process_group.h"
#include "train/loop/replica.h"

/* A micro-batch's summed loss on this rank, before backward. Ends the job if it is not finite, once the other ranks
 * have had time to find the same: forward_seconds is how long this one's forward pass has taken. */
void not_finite_check_loss(float loss, const Batch *batch, double forward_seconds);

/* The step was left out, as `parameter`'s gradient was not finite after the all-reduce: finds the rank that it comes
 * from, which says so, and ends the job. again: gives the micro-batches of this step. Collective. */
_Noreturn void not_finite_name_rank(ProcessGroup *pg, Replica *replica, const Parameter *parameter,
                                    const Dataset *dataset, Loader *again);

#endif
