/* replica.h: one copy of the model with all that a training step needs: tape, optimizer, loss scaler, buffers.
 *
 * Each rank trains one replica, with DDP (trainer.c). Verification trains a second replica in one process, with the
 * same functions (verify.c), so that the two can differ only in the communication.
 *
 * Interface, per step: replica_loss() and replica_backward() for each micro-batch, then replica_update().
 */
#ifndef LOCKSTEP_TRAIN_REPLICA_H
#define LOCKSTEP_TRAIN_REPLICA_H

#include "data/sampler.h"
#include "optim/optimizer.h"
#include "ddp/power_sgd.h"
#include "train/cli/options.h"
#include "train/files/atomic_file.h"

typedef struct Replica {
    const Options *options; /* not owned */
    Model model;
    Tape tape;
    Optimizer optimizer;
    LossScaler scaler;
    long total_steps;     /* of the whole run: the learning rate's schedule needs it */
    int64_t time;         /* tokens per sample, 1 for the MLP */
    int64_t counted_terms; /* with --mask-tokens: of this step's loss, on all ranks; set by the caller */
    void *inputs, *targets; /* the micro-batch on the device; owned */
    int64_t capacity;       /* the number of samples that fit into them; grows when needed */
    uint32_t data_checksum; /* of the training set; set by the caller if the run saves or resumes */
    bool rank_order;        /* gradients are added in rank order: see Resolved */
    double best_loss;       /* the lowest on held-out data so far, for checkpoints; INFINITY: none */
    bool resumes_quietly;  /* replica_resume() prints no notes, because another replica has printed them */
    uint64_t resumed_hash; /* of the checkpoint that replica_resume() has read */
    PowerSgd *power_sgd;   /* the codec of --grad-dtype powersgd, owned; NULL: another codec */
} Replica;

/* seed: of the initial weights. ddp_create() or parameters_allocate_gradients() must provide the gradients. */
void replica_create(Replica *replica, const Options *options, uint64_t seed, long total_steps);
void replica_free(Replica *replica);

/* Names the samples of the next micro-batch, for --dropout: step counts from 0; places are their positions in the
 * step's whole batch (sampler_places()), and must stay valid until backward ends. global_samples: of the step. */
void replica_set_samples(Replica *replica, long step, const int64_t *places, int64_t global_samples);

/* Creates the codec's state, if any, of ranks first to first + count - 1. Call it before replica_resume(). */
void replica_make_codec(Replica *replica, int first, int count, int world_size);
const GradientCodec *replica_codec(const Replica *replica);

/* Copies a micro-batch (host memory, shapes as in data/dataset.h) to replica->inputs and ->targets. */
void replica_load(Replica *replica, const Dataset *dataset, const void *inputs, const void *targets, int64_t samples);

/* Loads a micro-batch, and computes its loss, summed over its terms, on a recording tape. The result (shape [1])
 * belongs to the tape, and is valid until the next micro-batch. */
Tensor *replica_loss(Replica *replica, const Dataset *dataset, const void *inputs, const void *targets,
                     int64_t samples);
/* Adds the gradient of loss * loss scale to the parameters' gradients. */
void replica_backward(Replica *replica, Tensor *loss);

/* The number of terms in the loss of this step's global_samples samples (all ranks). */
int64_t replica_terms(const Replica *replica, int64_t global_samples);

/* The factor that turns the sum of a step's gradients into the gradient of the mean loss: 1 / (terms * loss scale). */
float replica_gradient_scale(const Replica *replica, int64_t global_samples);

/* Clips, takes the optimizer's step, sets gradients to zero, and waits for the device. step counts from 0. Returns
 * false, with the weights unchanged, if a gradient was infinite or NaN. replica_update() then faults, except with
 * --on-nan skip. */
bool replica_update(Replica *replica, long step);
bool replica_try_update(Replica *replica, long step);

/* The number of the step after the last one: --steps, or the end of the last epoch. */
long run_length(const Options *options, const Sampler *sampler);

/* Reads a checkpoint into the replica; returns the number of the next step (0 if the file has weights only). Moves the
 * sampler to the file's place in the data, and sets total_steps accordingly. Prints notes about the differences between
 * this run and the saved one. die()s if the file does not fit. */
long replica_resume(Replica *replica, const char *path, Sampler *sampler);
/* Writes a checkpoint on rank 0. Call it on all ranks: each may hold a part of the state. pg: NULL if this process is
 * alone. next_step: number of steps done. Returns false on rank 0 if the file could not be written. */
bool replica_save(Replica *replica, const char *path, ProcessGroup *pg, const Sampler *sampler, long next_step,
                  OnFailure on_failure);


/* The number of steps over which the learning rate rises; by default at most a tenth of the run. */
long warmup_steps(const Options *options, long total_steps);
float learning_rate(const Options *options, long step, long total_steps); /* step counts from 0 */

#endif
