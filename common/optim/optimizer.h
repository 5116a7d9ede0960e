/* optimizer.h: SGD and AdamW over a list of parameters, and clipping by the global norm.
 *
 * A parameter without a gradient in this step (has_gradient is false: unused on every rank) is left untouched,
 * its optimizer state too, as PyTorch does with a gradient that is None.
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
    long *steps;               /* per parameter: how many updates it has had */
    /* Of the step at hand. The first two are device memory: kernels read them, and nobody has to wait. */
    double *squares; /* per parameter: the sum of its gradient's squares; 0 where it has none */
    float *factor;   /* what gradients were multiplied by to clip them. NaN: one is not finite, leave the step out */
    bool *updated;   /* per parameter: steps counts this step already */
    double norm;     /* of all gradients before they were clipped; known when the step has ended */
} Optimizer;

void optimizer_create(Optimizer *optimizer, const OptimizerOptions *options, ParameterList *parameters);
void optimizer_free(Optimizer *optimizer);

/* A step is three calls. The first two only queue work, on a GPU.
 *
 * Looks at all gradients, and scales them so that their common L2 norm is at most max_norm; INFINITY: only looks.
 * Source: Pascanu et al., 2013; the same formula as torch.nn.utils.clip_grad_norm_. */
void clip_grad_norm(Optimizer *optimizer, double max_norm);
/* Updates all parameters; or leaves everything as it is, if clip_grad_norm() has found an infinity or NaN. */
void optimizer_step(Optimizer *optimizer, float lr);
/* Waits until all that is done, and says how it went: NULL, or the first parameter whose gradient was not finite. */
const Parameter *optimizer_end_step(Optimizer *optimizer);

#endif
