/* codec.h: how a bucket's gradients become what is sent, and back. For stages 4 and 5; --grad-dtype chooses the codec.
 *
 * A codec is a table of functions. A stage starts a bucket's collective with one of them, and finishes it with another
 * after work_wait(); it does not know what travels. Until then gradients, buffer and shard belong to the communication.
 * To add one, write its functions and add it to the list in codec.c.
 */
#ifndef LOCKSTEP_DDP_CODEC_H
#define LOCKSTEP_DDP_CODEC_H

#include "comm/process_group.h"

typedef struct GradientCodec GradientCodec;
struct GradientCodec {
    const char *name; /* as --grad-dtype says it */
    DType dtype;      /* of what travels */
    bool rounds;      /* the sums differ from those of float32 */
    bool sends_nothing; /* each rank keeps its own gradients */
    bool on_cpu_only; /* it has no kernels for a GPU */
    bool keeps_state; /* it has no functions here: each model needs an instance, from power_sgd_create() */
    size_t state_bytes; /* what an instance keeps from step to step */

    /* Bytes of a buffer for what travels of a bucket of so many elements. 0: nothing is needed. It is memory of its
     * own: it may not lie over the gradients. */
    size_t (*buffer_bytes)(const GradientCodec *codec, size_t elements, int world_size);

    /* Starts the all-reduce of the bucket's gradients; carries: its name. */
    Work *(*start_all_reduce)(const GradientCodec *codec, ProcessGroup *pg, float *gradients, void *buffer,
                              size_t elements, const char *carries);
    /* Writes the sums over the gradients. */
    void (*finish_all_reduce)(const GradientCodec *codec, ProcessGroup *pg, float *gradients, void *buffer,
                              size_t elements);

    /* Starts the reduce-scatter: of world_size * shard_elements gradients each rank gets the sums of its own part. They
     * are written to `shard`, which may be that part of `gradients`. If there is a buffer, it is what travels, and the
     * gradients are not read any more when this returns. */
    Work *(*start_reduce_scatter)(const GradientCodec *codec, ProcessGroup *pg, float *gradients, void *buffer,
                                  float *shard, size_t shard_elements, const char *carries);
    void (*finish_reduce_scatter)(const GradientCodec *codec, ProcessGroup *pg, float *shard, void *buffer,
                                  size_t shard_elements);

    /* What one process does to have the same bits (--verify exact): to the share of each rank, in rank order, before it
     * is added, and to the sum, with rank -1. NULL: nothing. */
    void (*round_share)(const GradientCodec *codec, int rank, float *gradients, int64_t elements);
    void (*round_sum)(const GradientCodec *codec, int rank, float *gradients, int64_t elements);
};

/* The codec of this name; NULL if there is none. */
const GradientCodec *codec_find(const char *name);

#endif
