/* model.h: a model whose gradients are small integers, known in advance. Their sums are exact in each type, so that a
 * row compares bits with a closed formula. It is a chain of operations on the real tape; operation k reads parameter k,
 * and its backward function contributes the integers. */
#ifndef LOCKSTEP_TESTS_WORLD_MODEL_H
#define LOCKSTEP_TESTS_WORLD_MODEL_H

#include "autograd/tape.h"
#include "world/mode.h"

typedef struct Toy {
    const Mode *mode;
    int rank, step, micro_batch;
    ParameterList list; /* owned */
    Tape tape;          /* owned */
} Toy;

void toy_create(Toy *toy, const Mode *mode, int rank);
void toy_free(Toy *toy);
/* The forward pass of a micro-batch. Returns the loss. */
Tensor *toy_forward(Toy *toy, int step, int micro_batch);

/* Which parameters a pass of this rank uses. */
bool toy_uses(const Mode *mode, int rank, int step, int micro_batch, int parameter);
bool toy_is_trained(const Mode *mode, int parameter);
int toy_always_used(const Mode *mode); /* one parameter is always trained and used, so that there is a loss */
/* True if any rank's pass of this step uses it. */
bool toy_is_used(const Mode *mode, int step, int parameter);

/* What one rank's passes up to `micro_batches` add up to. */
float toy_share(const Mode *mode, int rank, int step, int micro_batches, int parameter, int64_t element);
/* The sum over all ranks and micro-batches, without gradient_scale. */
float toy_sum(const Mode *mode, int step, int parameter, int64_t element);
/* The weights before this step: those of rank 0 at first, then w -= TOY_RATE * TOY_SCALE * sum. */
float toy_weight(const Mode *mode, int step, int parameter, int64_t element);

/* The element to look at after `i`: all of a small parameter, some and the last of a large one. */
int64_t toy_next(int64_t i, int64_t count);

#define TOY_SCALE 0.125f /* gradient_scale: powers of two, so that nothing is ever rounded */
#define TOY_RATE 0.25f

#endif
