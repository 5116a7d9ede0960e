/* replica.h: one copy of the model with all it needs to take training steps: tape, optimizer, loss scaler, buffers.
 *
 * A rank trains one replica together with DDP (trainer.c). Verification trains another one all by itself, with
 * the same functions (verify.c), so that the two can differ in nothing but the communication.
 *
 * Interface, per step: replica_loss() and replica_backward() for each micro-batch, then replica_try_update()
 * (or replica_update(), which faults where --on-nan says that no step may be left out).
 */
#ifndef LOCKSTEP_TRAIN_REPLICA_H
#define LOCKSTEP_TRAIN_REPLICA_H

#include "optim/loss_scaler.h"
#include "train/cli/options.h"

typedef struct Replica {
    const Options *options; /* not owned */
    Model model;
    Tape tape;
    Optimizer optimizer;
    LossScaler scaler;
    long total_steps;     /* of the whole run: the learning rate's schedule needs it */
    int64_t time;         /* tokens per sample, 1 for the MLP */
    void *inputs, *targets; /* the micro-batch on the device; owned */
    int64_t capacity;       /* samples that they have room for; grows when needed */
    bool resumes_quietly;  /* another replica has gone on from the same file, and has said how the runs differ */
    uint64_t resumed_hash; /* of the checkpoint it goes on from */
} Replica;

/* The initial weights come from `seed`. The parameters have no gradients yet: ddp_create() or
 * parameters_allocate_gradients() provides them. */
void replica_create(Replica *replica, const Options *options, uint64_t seed, long total_steps);
void replica_free(Replica *replica);

/* Copies a micro-batch (host memory, shapes as in data/dataset.h) to the device. */
void replica_load(Replica *replica, const Dataset *dataset, const void *inputs, const void *targets, int64_t samples);

/* The same, and computes the summed loss on a recording tape. */
Tensor *replica_loss(Replica *replica, const Dataset *dataset, const void *inputs, const void *targets,
                     int64_t samples);
/* Adds the gradient of loss * loss scale to the parameters' gradients. */
void replica_backward(Replica *replica, Tensor *loss);

/* What turns the sum of all gradients of a step into the gradient of the mean loss: 1 / (terms * loss scale).
 * global_samples: what all ranks together have in this step. */
float replica_gradient_scale(const Replica *replica, int64_t global_samples);

/* Clipping, optimizer step, zeroing of gradients; waits until that is done. step counts from 0. Returns false if the
 * step was left out, as a gradient was infinite or NaN; a fault where steps may not be left out (--on-nan). _try_: the
 * caller sees to that. */
bool replica_update(Replica *replica, long step);
bool replica_try_update(Replica *replica, long step);

/* Reads a checkpoint into the replica; returns the number of the next step (0 if the file has weights only).
 * replica_save() writes one; next_step is the number of steps done. */
long replica_resume(Replica *replica, const char *path, int world_size);
void replica_save(const Replica *replica, const char *path, int world_size, long next_step);

const char *precision_name(DType precision); /* "fp32", "bf16", "fp16", as --precision has it */

/* Steps over which the rate rises: the model's own number is cut to a tenth of the run, so that a short run sees the full
 * rate, too; a number that was typed is taken as it is. */
long warmup_steps(const Options *options, long total_steps);
float learning_rate(const Options *options, long step, long total_steps);

#endif
