/* layers.h: private to nn/: the two models' parts. */
#ifndef LOCKSTEP_NN_LAYERS_H
#define LOCKSTEP_NN_LAYERS_H

#include "autograd/ops.h"
#include "base/rng.h"
#include "nn/model.h"

void mlp_create(Model *model, Rng *rng);
Tensor *mlp_forward(Model *model, Tape *tape, void *inputs, int64_t samples);
void gpt_create(Model *model, Rng *rng);
Tensor *gpt_forward(Model *model, Tape *tape, void *inputs, int64_t samples, int64_t time);

#endif
