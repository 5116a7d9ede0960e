/* gathers.h: how a bucket's whole weights travel. For stage 5.
 *
 * note: gathered-types
 * Under --precision bf16 and fp16, a matrix product rounds its weight to 16 bits first. Level 3 drops whole weights after
 * their use. So a weight that only products read travels in 16 bits, and becomes float32 again on arrival: rounding it a
 * second time changes nothing, and the results have the same bits. Biases, norms and embeddings are read as they are, and
 * travel as float32. (An embedding that is the output layer, too, is one of these.) Each owner keeps its shard in float32.
 *
 * Interface: when a micro-batch has shown what reads which weight, and no gather is under way, gathers_choose_types(). From
 * then on, gathers_start() sends each weight in its type, or all as float32 if every_bit: for evaluation and checkpoints.
 */
#ifndef LOCKSTEP_DDP_GATHERS_H
#define LOCKSTEP_DDP_GATHERS_H

#include "ddp/shards.h"

void gathers_choose_types(Shards *shards);

/* Places the bucket's weights, and starts their gather. */
void gathers_start(Shards *shards, ShardedBucket *bucket, bool every_bit);
/* Waits for the gather, if one is under way, and marks the parameters as changed. */
void gathers_finish(Shards *shards, ShardedBucket *bucket);

#endif
