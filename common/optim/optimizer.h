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
} Optimizer;

void optimizer_create(Optimizer *optimizer, const OptimizerOptions *options, ParameterList *parameters);
void optimizer_step(Optimizer *optimizer, float lr);
void optimizer_free(Optimizer *optimizer);

/* One parameter's update; called by optimizer_step(). i is the parameter's index. */
void sgd_update(Optimizer *optimizer, int i, float lr);
void adamw_update(Optimizer *optimizer, int i, float lr);

/* Scales all gradients so that their common L2 norm is at most max_norm; returns the norm before that.
 * Source: Pascanu et al., 2013; the same formula as torch.nn.utils.clip_grad_norm_. */
double clip_grad_norm(ParameterList *parameters, double max_norm);

#endif
