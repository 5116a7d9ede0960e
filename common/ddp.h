/* ddp.h: distributed data parallel (DDP) training. Every stageN_NAME/ddp.c implements these five functions. Stage 5
 * adds some. There, a rank may keep only a part of the weights and of the summed gradients: stage5_sharded/sharded.h.
 *
 * One training step, as train/loop/trainer.c drives it:
 *
 *   for each of the K micro-batches              K is 1, unless stage 4 or 5 gets --accumulate K
 *       ddp_before_forward(ddp, last)            last: it is the step's last micro-batch
 *       loss = model_loss(...)                   the tape records the operations
 *       ddp_before_backward(ddp, loss)
 *       tape_backward(tape, loss, seed)          raises an event whenever a gradient becomes ready
 *       ddp_after_backward(ddp, gradient_scale)  after the step's last micro-batch, all ranks have the same gradients
 *   clip, optimizer step, zero the gradients
 *
 * The loss is a SUM over this rank's terms: its samples, or for a GPT its tokens. gradient_scale is 1 / (number of
 * terms of the global batch: all ranks, all micro-batches). Then (the sum of all ranks' gradients) * gradient_scale is
 * the gradient of the mean loss over the global batch. The ranks may have unequal numbers of samples. tape_backward()
 * multiplies all gradients by seed, which is 1. With --precision fp16 it is a large number, so that small gradients do
 * not become 0, and gradient_scale divides by it again.
 */
#ifndef LOCKSTEP_DDP_H
#define LOCKSTEP_DDP_H

#include "autograd/tape.h"
#include "comm/process_group.h"
#include "ddp/codec.h"

typedef struct DdpOptions {
    size_t bucket_cap_bytes, first_bucket_cap_bytes; /* stages 2 to 5: a bucket closes when it holds this much */
    bool rebuild_buckets;        /* stages 3, 4: after the first step, refill them in the order of readiness */
    bool find_unused_parameters; /* stages 3 to 5: the loss may depend on only some parameters */
    bool static_graph;           /* with find_unused_parameters: find the unused ones only once */
    const GradientCodec *codec;  /* stages 4, 5: how gradients are encoded to be sent */
    const struct ShardingOptions *sharding; /* stage 5: stage5_sharded/sharded.h */
} DdpOptions;

typedef struct Ddp Ddp; /* each stage has its own */

extern const int ddp_stage_number;       /* 1 to 5 */
extern const char *const ddp_stage_name; /* "naive", ... */

/* Checks that all ranks have the same model, copies rank 0's weights to all ranks, and gives each trained parameter
 * (requires_grad) zeroed memory for its gradient. pg, parameters, tape and the codec must outlive the result; options
 * need not. All ranks must call the functions of this header in the same order. */
Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options);
/* Frees the gradients and all else that ddp_create() allocated. */
void ddp_destroy(Ddp *ddp);

/* A micro-batch begins. last_micro_batch: true for the step's last one. Only then are the gradients, added up over all
 * micro-batches, summed over the ranks. */
void ddp_before_forward(Ddp *ddp, bool last_micro_batch);
/* Prepares for the gradient-ready events. With find_unused_parameters: parameters that `loss` does not depend on get no
 * event, so this call marks them as ready. */
void ddp_before_backward(Ddp *ddp, Tensor *loss);
/* After the last micro-batch: waits until each gradient is the sum over all ranks and micro-batches, and multiplies it
 * by gradient_scale. After any other micro-batch, each gradient is still the sum over this rank's own micro-batches.
 * All ranks end with a message if backward gave a trained parameter no gradient, unless it was found to be unused. */
void ddp_after_backward(Ddp *ddp, float gradient_scale);

#endif
