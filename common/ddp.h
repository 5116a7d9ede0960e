/* ddp.h: distributed data parallel (DDP) training. Every stageN_NAME/ddp.c implements these five functions. Stage 5
 * adds some, and keeps sums and weights in slices: stage5_sharded/sharded.h says what differs there.
 *
 * One training step, as train/loop/trainer.c drives it:
 *
 *   for each of the K micro-batches              K is 1, unless stage 4 or 5 gets --accumulate K
 *       ddp_before_forward(ddp, last)
 *       loss = model_loss(...)                   the tape records the operations
 *       ddp_before_backward(ddp, loss)
 *       tape_backward(tape, loss, seed)          raises an event whenever a gradient becomes ready
 *       ddp_after_backward(ddp, gradient_scale)  after the last micro-batch, all ranks have the same gradients
 *   clip, optimizer step, zero the gradients
 *
 * The loss is a SUM over this rank's terms: its samples, or for a GPT its tokens. gradient_scale is 1 / (number of
 * terms of the global batch: all ranks, all micro-batches). So the sum of all ranks' gradients, times gradient_scale,
 * is the gradient of the mean over the global batch, even if ranks have unequal numbers of samples. (With --precision
 * fp16 the seed is the loss scale, and gradient_scale divides by it, too.)
 */
#ifndef LOCKSTEP_DDP_H
#define LOCKSTEP_DDP_H

#include "autograd/tape.h"
#include "comm/process_group.h"
#include "ddp/codec.h"

typedef struct DdpOptions {
    size_t bucket_cap_bytes, first_bucket_cap_bytes; /* stages 2 to 5: a bucket closes when it holds this much */
    bool rebuild_buckets;        /* stages 3, 4: after step 1, refill them in the order of readiness */
    bool find_unused_parameters; /* stages 3 to 5: the loss may depend on only some parameters */
    bool static_graph;           /* with find_unused_parameters: find the unused ones only once */
    const GradientCodec *codec;  /* stages 4, 5: how gradients are encoded to be sent */
    const struct ShardingOptions *sharding; /* stage 5: stage5_sharded/sharded.h */
} DdpOptions;

typedef struct Ddp Ddp; /* each stage has its own */

extern const int ddp_stage_number;       /* 1 to 5 */
extern const char *const ddp_stage_name; /* "naive", ... */

/* Checks that all ranks have the same model, copies rank 0's weights to all ranks, and gives each trained parameter
 * (requires_grad) a zeroed gradient. pg, parameters, tape and the codec must outlive the result; options need not. All
 * ranks must call the functions of this header in the same order. */
Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options);
/* Frees the gradients and all else that ddp_create() allocated. */
void ddp_destroy(Ddp *ddp);

/* A micro-batch begins. last_micro_batch: after it, the step's gradients are summed over the ranks. */
void ddp_before_forward(Ddp *ddp, bool last_micro_batch);
/* Prepares for the gradient-ready events. Finds the parameters that `loss` does not depend on, if the options say so.
 * */
void ddp_before_backward(Ddp *ddp, Tensor *loss);
/* After the last micro-batch: waits until each gradient is the sum over all ranks and micro-batches, and multiplies it
 * by gradient_scale. After an earlier one, gradients stay this rank's own sum. Faults if a trained parameter got no
 * gradient, unless it was found to be unused. */
void ddp_after_backward(Ddp *ddp, float gradient_scale);

#endif
