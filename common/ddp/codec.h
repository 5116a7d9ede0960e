/* codec.h: how gradients are encoded to be sent, and decoded. For stages 4 and 5; --grad-dtype chooses the codec.
 *
 * A codec is a table of functions. A stage starts a bucket's collective with start_...(), calls work_wait(), and then
 * finish_...(). Between start and finish, do not touch the gradients, the buffer or the shard. To add a codec, write
 * its functions and add it to the list in codec.c.
 */
#ifndef LOCKSTEP_DDP_CODEC_H
#define LOCKSTEP_DDP_CODEC_H

#include "comm/process_group.h"

typedef struct GradientCodec GradientCodec;
struct GradientCodec {
    const char *name;   /* for --grad-dtype */
    DType dtype;        /* of the payload; chooses the algorithm that adds it, also for --verify exact */
    bool rounds;        /* the sums differ from those of float32 */
    bool sends_nothing; /* each rank keeps its own gradients */
    bool on_cpu_only;   /* it has no kernels for a GPU */
    bool keeps_state;   /* it has no functions here: each model needs an instance, from power_sgd_create() */
    size_t state_bytes; /* that an instance keeps from step to step */

    /* Bytes of the buffer that encodes a bucket of `elements` float32 numbers, a multiple of 16. 0: no buffer is
     * needed. world_size: of the group that is given to start_...(). The buffer must not overlap the gradients. */
    size_t (*buffer_bytes)(const GradientCodec *codec, size_t elements, int world_size);

    /* Encodes the bucket's gradients and starts their all-reduce. carries: the bucket's name. */
    Work *(*start_all_reduce)(const GradientCodec *codec, ProcessGroup *pg, float *gradients, void *buffer,
                              size_t elements, const char *carries);
    /* Writes the sums over the gradients. */
    void (*finish_all_reduce)(const GradientCodec *codec, ProcessGroup *pg, float *gradients, void *buffer,
                              size_t elements);

    /* Encodes world_size * shard_elements gradients and starts their reduce-scatter: each rank gets the sums of its own
     * part in `shard`, which may be that part of `gradients`. With a buffer, the gradients are not needed any more when
     * this returns. */
    Work *(*start_reduce_scatter)(const GradientCodec *codec, ProcessGroup *pg, float *gradients, void *buffer,
                                  float *shard, size_t shard_elements, const char *carries);
    void (*finish_reduce_scatter)(const GradientCodec *codec, ProcessGroup *pg, float *shard, void *buffer,
                                  size_t shard_elements);

    /* --verify exact computes the same bits in one process. It calls round_share for each rank's share, in rank order,
     * before it adds the share, and round_sum for the sum, with rank -1. NULL: do nothing. */
    void (*round_share)(const GradientCodec *codec, int rank, float *gradients, int64_t elements);
    void (*round_sum)(const GradientCodec *codec, int rank, float *gradients, int64_t elements);
};

/* The codec of this name; NULL if there is none. */
const GradientCodec *codec_find(const char *name);

#endif
