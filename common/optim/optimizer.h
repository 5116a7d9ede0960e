/* optimizer.h: SGD and AdamW over a list of parameters, and clipping by the global norm.
 *
 * If a parameter has no gradient in this step (has_gradient is false: unused on every rank), neither its value nor its
 * optimizer state changes, as in PyTorch if grad is None.
 */
#ifndef LOCKSTEP_OPTIM_OPTIMIZER_H
#define LOCKSTEP_OPTIM_OPTIMIZER_H

#include "autograd/parameter.h"

typedef enum OptimizerKind { OPTIMIZER_SGD, OPTIMIZER_ADAMW } OptimizerKind;

typedef struct OptimizerOptions {
    OptimizerKind kind;
    float momentum;            /* SGD */
    float beta1, beta2, eps;   /* AdamW */
    float weight_decay;        /* SGD: added to the gradient. AdamW: decoupled, and only for matrices (2-D) */
} OptimizerOptions;

typedef struct Optimizer {
    OptimizerOptions options;
    ParameterList *parameters; /* not owned */
    float **state1, **state2;  /* per parameter: momentum buffer, or m and v; device memory, NULL if not needed */
    long *steps;               /* per parameter: number of updates */
    /* About the current step. The first two are device memory: kernels read them, so the host need not wait. */
    double *squares; /* per parameter: the sum of its gradient's squares; 0 if it has none */
    float *factor;   /* gradients were multiplied by it to clip them. NaN: a gradient is not finite, skip the step */
    bool *updated;   /* per parameter: steps counts this step already */
    double norm;     /* of all gradients, before clipping; valid after optimizer_end_step() */
} Optimizer;

/* Allocates zeroed state; free it with optimizer_free(). The list must outlive the optimizer. */
void optimizer_create(Optimizer *optimizer, const OptimizerOptions *options, ParameterList *parameters);
void optimizer_free(Optimizer *optimizer);

/* A step consists of these three calls, in this order. On a GPU, the first two only queue work.
 *
 * Computes the L2 norm of all gradients together, and scales them so that it is at most max_norm; INFINITY: no scaling.
 * Source: Pascanu et al., 2013; the same formula as torch.nn.utils.clip_grad_norm_. */
void clip_grad_norm(Optimizer *optimizer, double max_norm);
/* Updates all parameters; changes nothing if clip_grad_norm() found an infinity or NaN. */
void optimizer_step(Optimizer *optimizer, float lr);
/* Waits for the first two. Returns NULL, or the first parameter whose gradient was not finite: the step was skipped. */
const Parameter *optimizer_end_step(Optimizer *optimizer);

#endif
