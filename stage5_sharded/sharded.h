/* sharded.h: what stage 5 adds to ddp.h. In stages 1 to 4, every rank holds and updates everything: unsharded.c has
 * these functions for them.
 *
 * In stage 5, ddp_after_backward() leaves the sums in this rank's slices only.
 *
 * Interface: optimizer_set_partition() gets ddp_partition() once. In each step, ddp_after_update() follows the
 * optimizer. ddp_gather_weights() comes before evaluation, checkpoints and comparisons.
 */
#ifndef LOCKSTEP_STAGE5_SHARDED_H
#define LOCKSTEP_STAGE5_SHARDED_H

#include "ddp.h"
#include "optim/optimizer.h"

typedef struct ShardingOptions {
    int level;             /* ZeRO: 1 shards the optimizer's state, 2 also the gradients, 3 also the weights */
    int shard_ranks;       /* ranks that share one set of shards; the other ranks hold copies. 0: all ranks */
    bool bucket_per_layer; /* one bucket for each layer; the caps do not count */
} ShardingOptions;

/* The slices that this rank's optimizer updates; NULL: all. Owned by ddp, valid until ddp_destroy(). */
const Partition *ddp_partition(Ddp *ddp);
/* Call it when the optimizer has updated this rank's slices: starts to send them to the other ranks. */
void ddp_after_update(Ddp *ddp);
/* Returns when every rank holds all weights. They stay until ddp_before_forward(). Collective. */
void ddp_gather_weights(Ddp *ddp);

/* Bytes on this rank. */
typedef struct ShardedMemory {
    size_t weights, gradients; /* always held */
    size_t gathered_weights, whole_gradients; /* held in addition while they are used: now, ... */
    size_t peak_gathered_weights, peak_whole_gradients; /* ... and the peak of the steps so far */
} ShardedMemory;

/* Writes the memory in use to *memory. Returns false and writes nothing in stages 1 to 4. */
bool ddp_sharded_memory(const Ddp *ddp, ShardedMemory *memory);

#endif
