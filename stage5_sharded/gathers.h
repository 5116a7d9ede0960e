/* gathers.h: sends and receives a bucket's whole weights.
 *
 * note: gathered-types
 * Under --precision bf16 and fp16, a matrix product rounds its weight to 16 bits first. At level 3, nothing else needs
 * the whole weight, which is dropped after its use. So it is sent in 16 bits, and widened to float32 on arrival. A
 * second rounding changes nothing, so results have the same bits. Biases, norms and embeddings are read in float32, so
 * they are sent in float32, and so is an embedding that is also the output layer. Owners keep float32.
 *
 * Interface: gathers_forget_reads() before each micro-batch. Once one has shown what reads which weight, and no gather
 * is under way, gathers_choose_types(). Before that, everything is sent as float32. After each later micro-batch,
 * gathers_check_types(). For evaluation and checkpoints, everything is sent as float32, too: every_bit.
 */
#ifndef LOCKSTEP_STAGE5_GATHERS_H
#define LOCKSTEP_STAGE5_GATHERS_H

#include "stage5_sharded/shards.h"

void gathers_forget_reads(Shards *shards);
void gathers_choose_types(Shards *shards);
/* Faults if another operation than a matrix product has read a weight that was sent in 16 bits. */
void gathers_check_types(const Shards *shards);

/* Places the bucket's weights, and starts their gather. */
void gathers_start(Shards *shards, ShardedBucket *bucket, bool every_bit);
/* Waits for the gather, if one is under way, and marks the parameters as changed. */
void gathers_finish(Shards *shards, ShardedBucket *bucket);

#endif
