/* ddp.h: distributed data parallel training, the interface that all stages implement (stageN/ddp.c).
 *
 * One step of training, as train/loop/trainer.c drives it:
 *
 *   for each of the K micro-batches                 (K = 1; --accumulate, from stage 3 on)
 *       ddp_before_forward(ddp, it is the last one)
 *       loss = model_loss(...)                      records the tape
 *       ddp_before_backward(ddp, loss)
 *       tape_backward(tape, loss, seed)             raises gradient-ready events, which the stages from 3 on hear
 *       ddp_after_backward(ddp, gradient_scale)     after the last one: gradients are equal on all ranks (stage 5: each
 *                                                   rank has those of its shard)
 *   clip, optimizer step, zero gradients
 *   ddp_after_update(ddp)                         stage 5 alone: each rank has updated only its shard of the weights
 *
 * The loss is a SUM over the terms of this rank's samples. A sample has one term, or, for a GPT, one per token. So the
 * sum of the ranks' gradients, times gradient_scale = 1 / (terms of the global batch), is the gradient of the mean over
 * the global batch, also if ranks have unequal numbers of samples. (fp16 multiplies the loss by a loss scale, so
 * gradient_scale also divides by it.) ddp.c is the only place where the sums are divided. (Clipping comes after it.)
 *
 * Before the last micro-batch a rank's gradients stay its own, and add up. The last one's all-reduce carries the sum of
 * all K. The results of earlier all-reduces are thrown away: stage 3 may leave these out, stage 4 must.
 *
 * To write a stage: in stages 2 to 4, an all-reduce carries a bucket, and is named "bucket N". buckets_plan()
 * (ddp/bucket_plan.h) gets the trained parameters (requires_grad; the others are frozen) in the reverse order of
 * registration. Lay out a bucket's gradients as you like. In stage 5 it is a reduce-scatter: ddp/shards.h.
 * From stage 3 on (skip it at first): launch a bucket in the event after which none of its gradients is pending, but
 * never before all earlier buckets. (If its last pending gradients are of unused parameters, launch it before
 * backward.) Do not wait for another rank in the gradient-ready event or in ddp_before_backward(). (A work_wait() after
 * a work_test() that was true does not wait.) Stage 5, from level 2 on: if backward is faster than the link, it waits
 * in the gradient-needed event, so that only a few buckets have whole gradients.
 */
#ifndef LOCKSTEP_DDP_H
#define LOCKSTEP_DDP_H

#include "autograd/tape.h"
#include "comm/process_group.h"
#include "ddp/codec.h"
#include "optim/optimizer.h"

typedef struct DdpOptions {
    size_t bucket_cap_bytes;       /* from stage 2 on */
    size_t first_bucket_cap_bytes; /* from stage 2 on */
    bool rebuild_buckets;          /* stages 3, 4: reorder after the first step, as gradients became ready */
    bool find_unused_parameters;   /* from stage 3 on, but not at level 3 of stage 5 */
    bool static_graph;             /* from stage 3 on, beside find_unused_parameters: found once (ddp/readiness.h) */
    const GradientCodec *codec;    /* from stage 4 on: what travels of the gradients; others send them as they are */
    int zero;                      /* stage 5: divided are the optimizer's state (1), also gradients (2), weights (3) */
    int shard_ranks;               /* stage 5: groups of so many ranks share the shards, with copies; 0: all ranks */
    bool bucket_per_layer;         /* stage 5: a bucket for each layer, instead of the caps */
} DdpOptions;

typedef struct Ddp Ddp;

extern const int ddp_stage_number;      /* 1 to 5 */
extern const char *const ddp_stage_name; /* "naive", ... */

/* Checks that all ranks have the same model (if not, the run ends with status 2), copies rank 0's weights to all
 * ranks, and gives each trained parameter a zeroed float32 gradient, whatever it had before (stage 5, from level 2 on:
 * only when one is needed). From stage 3 on it begins to listen to the tape; only here, because who listens later
 * passes events on. parameters, tape and pg must outlive the result, but not options: copy them. Of the parameters a
 * stage writes weights and gradients, not the list, shapes, or what is trained. Free with ddp_destroy(), which also
 * frees the gradients. A rank can have several models. Each has its own tape and its own Ddp. All ranks must call
 * these functions in the same order, and tape_backward(), too, because it launches collectives; but not
 * ddp_bucket_count() and ddp_memory(). */
Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options);
void ddp_destroy(Ddp *ddp);

/* The next micro-batch begins; last_micro_batch: it is the last one of its step. A stage must know before backward. */
void ddp_before_forward(Ddp *ddp, bool last_micro_batch);
/* From stage 3 on: resets the counters; find_unused_parameters: marks as ready what `loss` does not depend on. */
void ddp_before_backward(Ddp *ddp, Tensor *loss);
/* After the last micro-batch each gradient (stage 5: in this rank's shard) is the sum over all ranks and micro-batches,
 * times gradient_scale. After the others it is this rank's own sum, unscaled (stages 3 to 5). Faults if a trained
 * parameter got no gradient, and names it. */
void ddp_after_backward(Ddp *ddp, float gradient_scale);

int ddp_bucket_count(const Ddp *ddp); /* all-reduces (stage 5: reduce-scatters) of one backward pass; stage 1: one per
                                       * trained parameter */

/* ---- stage 5: what is divided among the ranks. Stages 1 to 4 divide nothing: ddp_undivided.c ---- */

/* What this rank's optimizer updates; NULL: everything. Owned by ddp, and valid until ddp_destroy(). */
const Partition *ddp_partition(Ddp *ddp);
/* The optimizer has updated this rank's slices: starts to send them to the other ranks. */
void ddp_after_update(Ddp *ddp);
/* Returns when every rank holds all weights, as evaluation and checkpoints need them: until ddp_before_forward(). */
void ddp_gather_weights(Ddp *ddp);

/* Bytes on this rank. */
typedef struct DdpMemory {
    size_t weights, gradients; /* all the time */
    size_t buffers; /* stages 1 to 4: beside gradients, for what is sent or received: all that a step allocates. A
                     * stage may hold more than it needs, if it tells of it here */
    size_t gathered_weights, whole_gradients; /* stage 5: in addition, while they are used: now, ... */
    size_t most_gathered_weights, most_whole_gradients; /* ... and at most so far */
} DdpMemory;
DdpMemory ddp_memory(const Ddp *ddp);

#endif
