/* layers.h: inside nn/ only: the two models' parts, and how a parameter gets its first values. */
#ifndef LOCKSTEP_NN_LAYERS_H
#define LOCKSTEP_NN_LAYERS_H

#include "autograd/ops.h"
#include "base/rng.h"
#include "nn/model.h"

void mlp_create(Model *model, Rng *rng);
Tensor *mlp_forward(Model *model, Tape *tape, void *inputs, int64_t samples);
void gpt_create(Model *model, Rng *rng);
Tensor *gpt_forward(Model *model, Tape *tape, void *inputs, int64_t samples, int64_t time);
/* All blocks and the last layernorm: x (B, T, C) -> (B, T, C). gpt_blocks.c; a GPU has another one. */
Tensor *gpt_blocks(const Model *model, Tape *tape, Tensor *x);

/* Fill a parameter with numbers drawn from rng, in index order. */
void init_uniform(Parameter *parameter, Rng *rng, float limit); /* in (-limit, limit) */
void init_normal(Parameter *parameter, Rng *rng, float deviation);
void init_constant(Parameter *parameter, float value);

#endif
