/* ddp.h: distributed data parallel (DDP) training. Every stageN_NAME/ddp.c implements these five functions.
 *
 * One training step, as train/loop/trainer.c drives it:
 *
 *   for each of the K micro-batches              K is 1, unless stage 4 or 5 gets --accumulate K
 *       ddp_before_forward(ddp, last)
 *       loss = model_loss(...)                   the tape records the operations
 *       ddp_before_backward(ddp, loss)
 *       tape_backward(tape, loss, seed)          raises an event for each gradient that is ready
 *       ddp_after_backward(ddp, gradient_scale)  after the last micro-batch, all ranks have the same gradients
 *   clip, optimizer step, zero the gradients
 *
 * The loss is a SUM over this rank's samples (for a GPT, over their tokens), and gradient_scale is 1 / (samples or
 * tokens of the global batch). So the sum of all ranks' gradients, times gradient_scale, is the gradient of the mean
 * over the global batch, even if ranks have unequal numbers of samples. Only ddp.c multiplies by this factor.
 */
#ifndef LOCKSTEP_DDP_H
#define LOCKSTEP_DDP_H

#include "autograd/tape.h"
#include "comm/process_group.h"
#include "ddp/codec.h"

typedef struct DdpOptions {
    size_t bucket_cap_bytes, first_bucket_cap_bytes; /* stages 2 to 5: a bucket closes when it holds this much */
    bool rebuild_buckets;        /* stages 3, 4: after the first step, reorder as gradients became ready */
    bool find_unused_parameters; /* stages 3 to 5: the loss may depend on a part of the parameters */
    bool static_graph;           /* stages 3 to 5: find that part once (stage3_overlap/readiness.h) */
    const GradientCodec *codec;  /* stages 4, 5: how gradients are encoded to be sent */
    const struct ShardingOptions *sharding; /* stage 5: stage5_sharded/sharded.h */
} DdpOptions;

typedef struct Ddp Ddp; /* each stage has its own */

extern const int ddp_stage_number;       /* 1 to 5 */
extern const char *const ddp_stage_name; /* "naive", ... */

/* Checks that all ranks have the same model, copies rank 0's weights to all ranks, and gives each trained parameter
 * (requires_grad) a zeroed gradient. pg, parameters and tape must outlive the result; options need not. All ranks must
 * call the functions of this header in the same order. */
Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options);
/* Frees the gradients and all else that ddp_create() allocated. */
void ddp_destroy(Ddp *ddp);

/* A micro-batch begins. last_micro_batch: it is the last one of its step, so its gradients will be synchronised. */
void ddp_before_forward(Ddp *ddp, bool last_micro_batch);
/* Prepares for the gradient-ready events. Finds the parameters that `loss` does not depend on, if the options say so. */
void ddp_before_backward(Ddp *ddp, Tensor *loss);
/* After the last micro-batch: waits until each gradient is the sum over all ranks and micro-batches, and multiplies it
 * by gradient_scale. After the others, gradients stay this rank's own sum. Faults if a trained parameter got none. */
void ddp_after_backward(Ddp *ddp, float gradient_scale);

#endif
