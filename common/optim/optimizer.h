/* optimizer.h: SGD and AdamW over a list of parameters, clipping by the global norm, and the loss scale of fp16.
 *
 * If a parameter has no gradient in this step (has_gradient is false: unused on every rank), neither its value nor its
 * optimizer state changes, as in PyTorch when grad is None.
 */
#ifndef LOCKSTEP_OPTIM_OPTIMIZER_H
#define LOCKSTEP_OPTIM_OPTIMIZER_H

#include "autograd/tensor.h"

/* ---- optimizer and clipping ---- */

typedef enum OptimizerKind { OPTIMIZER_SGD, OPTIMIZER_ADAMW } OptimizerKind;

typedef struct OptimizerOptions {
    OptimizerKind kind;
    float momentum;            /* SGD */
    float beta1, beta2, eps;   /* AdamW */
    float weight_decay;        /* SGD: added to the gradient. AdamW: decoupled, and only for matrices (2-D) */
} OptimizerOptions;

/* The elements of a parameter that this process updates. Without a partition: all. */
typedef struct Slice {
    int64_t begin, count; /* begin is a multiple of SQUARES_BLOCK (device.h), or 0 if there are none */
    float *weight, *grad; /* of element `begin`; device memory */
} Slice;

/* Which slices this process updates, if the optimizer is sharded over processes (stage 5). */
typedef struct Partition {
    const Slice *slices; /* by parameter index */
    /* squares = sum over all processes of `squares` (device memory, `count` numbers). Collective. */
    void (*add_up)(void *owner, double *squares, size_t count);
    /* Puts every process's `slice` of the parameter together in `whole` (device memory). Collective. */
    void (*gather)(void *owner, int parameter, const float *slice, float *whole);
    void *owner; /* the first argument of both */
} Partition;

typedef struct Optimizer {
    OptimizerOptions options;
    ParameterList *parameters; /* not owned */
    const Partition *partition; /* NULL: this process updates everything; not owned */
    bool has_state;            /* false: state1 and state2 are not allocated yet */
    float **state1, **state2;  /* per parameter, of its slice: momentum, or m and v; device memory, NULL if unused */
    long *steps;               /* per parameter: number of updates */
    /* The current step. squares and factor are device memory: kernels read them, so the host need not wait. */
    double *squares; /* of each block of each gradient (device_sum_of_squares()); 0 without a gradient */
    int64_t *first_square; /* per parameter: its first block; one more entry: the number of all blocks */
    float *factor;   /* gradients were multiplied by it to clip them. NaN: a gradient is not finite, skip the step */
    bool *updated;   /* per parameter: steps already counts this step */
    double norm;     /* of all gradients, before clipping; valid after optimizer_end_step() */
} Optimizer;

/* Free with optimizer_free(). The list must outlive the optimizer. State is allocated when it is first needed. */
void optimizer_create(Optimizer *optimizer, const OptimizerOptions *options, ParameterList *parameters);
void optimizer_free(Optimizer *optimizer);

/* Allocates zeroed state, if that has not been done. The first step does this; call it before state is loaded. */
void optimizer_allocate_state(Optimizer *optimizer);
/* From now on this process updates only its slices (NULL: everything, as before) and keeps only their state. The
 * partition must outlive the optimizer. */
void optimizer_set_partition(Optimizer *optimizer, const Partition *partition);
/* Returns state1 or state2 (`states`) as whole tensors, to save them. Without a partition, this is `states` itself.
 * With one, the processes' slices are gathered (collective), and a process whose `keeps` is false gets NULL for each
 * parameter. Free with optimizer_free_gathered(). */
float **optimizer_gather_state(const Optimizer *optimizer, float **states, bool keeps);
void optimizer_free_gathered(const Optimizer *optimizer, float **whole);
size_t optimizer_state_bytes(const Optimizer *optimizer); /* of this process */

/* A step consists of these three calls, in this order. On a GPU, the first two only queue work.
 *
 * Computes the L2 norm of all gradients together, and scales them so that it is at most max_norm; INFINITY: no scaling.
 * Source: Pascanu et al., 2013; the same formula as torch.nn.utils.clip_grad_norm_. */
void clip_grad_norm(Optimizer *optimizer, double max_norm);
/* Updates all parameters; changes nothing if clip_grad_norm() found an infinity or NaN. */
void optimizer_step(Optimizer *optimizer, float lr);
/* Waits for the first two. Returns NULL, or the first parameter whose gradient was not finite: the step was skipped. */
const Parameter *optimizer_end_step(Optimizer *optimizer);

/* ---- dynamic loss scaling for fp16 ---- */

/* Gradients below 6e-8 become 0 in fp16. So the loss is multiplied by a large scale before backward, which multiplies
 * all gradients by it, and afterwards the float32 gradients are divided by the scale. If a gradient overflows, the step
 * is skipped and the scale is halved; after many good steps the scale is doubled, up to LOSS_SCALER_MAX.
 * Source: Micikevicius et al., 2018. Halving and doubling are as in torch.cuda.amp.GradScaler, which doubles after 2000
 * good steps and starts at 65536. Here losses are sums, not means, so gradients are larger: the initial scale is
 * --loss-scale, see train/cli/options_flags.c. */

#define LOSS_SCALER_GROWTH_INTERVAL 200 /* good steps until the scale is doubled */
#define LOSS_SCALER_MIN 0x1p-24f        /* an overflow below this scale is not caused by the scale */

/* note: max-loss-scale
 * Gradients that are all 0 never overflow, so without a limit the scale would double for ever. GradScaler has no
 * limit: at infinity, all gradients become NaN (0 x infinity), and every later step is skipped. NVIDIA's older apex
 * has this limit (max_loss_scale = 2^24). A larger scale would not help: at 2^24, only gradients below 2^-48 become
 * 0 in fp16. */
#define LOSS_SCALER_MAX 0x1p24f

typedef struct LossScaler {
    bool enabled;    /* false: the scale stays 1 */
    bool skip_not_finite; /* true: skip a step whose gradients are not finite; false: the caller must stop there */
    float scale;
    long good_steps; /* since the scale last changed */
    long skipped;    /* steps skipped because a gradient was not finite */
    const Parameter *not_finite; /* its gradient caused the last step to be skipped; NULL: the step was taken */
} LossScaler;

/* enabled implies skip_not_finite. initial_scale: at most LOSS_SCALER_MAX. */
LossScaler loss_scaler_start(bool enabled, float initial_scale, bool skip_not_finite);

/* Adjusts the scale. not_finite: the result of optimizer_end_step(), which reads unscaled, SYNCHRONISED gradients: all
 * ranks see the same infinities, so all decide alike. Returns true if the step was taken. If it was not and
 * skip_not_finite is false, stop training. A scale below LOSS_SCALER_MIN is a fault; PyTorch's scale would fall to 0,
 * and every later step would be skipped. */
bool loss_scaler_update(LossScaler *scaler, const Parameter *not_finite);

#endif
