/* ddp.h: distributed data parallel training, the interface that all four stages implement (stageN/ddp.c).
 *
 * One step of training, as train/trainer.c drives it:
 *
 *   for each of the K micro-batches                 (K = 1; --accumulate, from stage 3 on)
 *       ddp_before_forward(ddp, it is the last one)
 *       loss = model_loss(...)                      records the tape
 *       ddp_before_backward(ddp, loss)
 *       tape_backward(tape, loss, seed)             raises gradient-ready events, which the stages from 3 on hear
 *       ddp_after_backward(ddp, gradient_scale)     after the last one: gradients are equal on all ranks
 *   clip, optimizer step, zero gradients
 *
 * The loss is a SUM over the terms of this rank's samples: a sample has one, or, for a GPT, one per token. So the sum
 * over ranks, times gradient_scale = 1 / (terms of the global batch), is the gradient of the mean over the global
 * batch, also where ranks have unequal numbers of samples. (fp16 multiplies the loss by a loss scale; gradient_scale
 * divides by it, too.) ddp.c is the only place where gradients are scaled.
 *
 * Only the sums of the step's last micro-batch are kept. Stage 3 may leave those before it out, as stage 4 must.
 * From stage 2 on, an all-reduce carries a bucket, planned by buckets_plan() (ddp/buckets.h), and is named "bucket N".
 * From stage 3 on, a bucket's all-reduce starts in the event that makes it full, or, if that one is unused, before
 * backward; but not before those of all earlier buckets have started. Neither an event nor ddp_before_backward() waits
 * for another rank.
 */
#ifndef LOCKSTEP_DDP_H
#define LOCKSTEP_DDP_H

#include "autograd/tape.h"
#include "comm/process_group.h"

typedef struct DdpOptions {
    size_t bucket_cap_bytes;       /* from stage 2 on */
    size_t first_bucket_cap_bytes; /* from stage 2 on */
    bool rebuild_buckets;          /* from stage 3 on: reorder after the first step, as gradients became ready */
    bool find_unused_parameters;   /* from stage 3 on */
    DType grad_dtype;              /* stage 4: what travels; DTYPE_F32 otherwise */
} DdpOptions;

typedef struct Ddp Ddp;

extern const int ddp_stage_number;      /* 1 to 4 */
extern const char *const ddp_stage_name; /* "naive", ... */

/* Checks that all ranks have the same model, copies rank 0's weights to all, gives the parameters their gradients
 * and listens to the tape. parameters, tape and pg must outlive the result. Free with ddp_destroy(). All of these are
 * collective (tape_backward() as well, which starts all-reduces): every rank calls them, in the same order. */
Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options);
void ddp_destroy(Ddp *ddp);

void ddp_before_forward(Ddp *ddp, bool last_micro_batch);
void ddp_before_backward(Ddp *ddp, Tensor *loss);
void ddp_after_backward(Ddp *ddp, float gradient_scale);

int ddp_bucket_count(const Ddp *ddp); /* all-reduces of one backward pass; stage 1: one per parameter */

#endif
