/* memory.h: for --trace: what this rank's memory holds, sampled whenever an operation needs parameters, whenever a
 * gradient needs memory or is ready, and before and after the update. Between two samples only activations change. They
 * grow, until a block that is computed again frees its own; in forward, the block's last sample lacks the results of
 * its last operations, which need no parameters.
 */
#ifndef LOCKSTEP_TRAIN_MEMORY_H
#define LOCKSTEP_TRAIN_MEMORY_H

#include "ddp.h"
#include "optim/optimizer.h"

typedef struct MemoryWatch {
    Tape *tape; /* these three are not owned */
    const Ddp *ddp;
    const Optimizer *optimizer;
    TapeListener stage; /* who heard the tape's events before, and still does */
} MemoryWatch;

/* Begins to listen to the tape; call it after ddp_create(). The watch must stay where it is while the tape is used. */
void memory_watch_start(MemoryWatch *watch, Tape *tape, const Ddp *ddp, const Optimizer *optimizer);
/* Adds a sample to the timeline; nothing if the watch was not started. */
void memory_watch_sample(const MemoryWatch *watch);

#endif
