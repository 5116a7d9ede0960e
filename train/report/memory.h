/* memory.h: for --trace: what this rank's memory holds, sampled whenever an operation needs parameters, whenever a
 * gradient needs memory or is ready, and before and after the update. Between two samples only activations change. They
 * grow, until a block that is computed again frees its own; in forward, the block's last sample lacks the results of
 * its last operations, which need no parameters.
 */
#ifndef LOCKSTEP_TRAIN_MEMORY_H
#define LOCKSTEP_TRAIN_MEMORY_H

#include "stage5_sharded/sharded.h"

/* Whose memory is reported. Nothing is owned. */
typedef struct MemoryOwners {
    const ProcessGroup *pg;
    const Ddp *ddp;
    const GradientCodec *codec;
    const Optimizer *optimizer;
} MemoryOwners;

/* Weights, gradients and the buffers in which they are sent: by the account of the group that has given the memory. In
 * stage 5, by the stage. */
ShardedMemory memory_in_use(const MemoryOwners *owners);

typedef struct MemoryWatch {
    Tape *tape; /* not owned */
    MemoryOwners owners;
    TapeListener stage; /* who heard the tape's events before, and still does */
} MemoryWatch;

/* Begins to listen to the tape; call it after ddp_create(). The watch must stay where it is while the tape is used. */
void memory_watch_start(MemoryWatch *watch, Tape *tape, const MemoryOwners *owners);
/* Adds a sample to the timeline; nothing if the watch was not started. */
void memory_watch_sample(const MemoryWatch *watch);

#endif
