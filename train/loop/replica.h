/* replica.h: one copy of the model with all it needs to take training steps: tape, optimizer, loss scaler, buffers.
 *
 * A rank trains one replica together with DDP (trainer.c). Verification trains another one in one process, with the
 * same functions (verify.c), so that the two can differ only by the communication.
 *
 * Interface, per step: replica_loss() and replica_backward() for each micro-batch, then replica_try_update() or
 * replica_update().
 */
#ifndef LOCKSTEP_TRAIN_REPLICA_H
#define LOCKSTEP_TRAIN_REPLICA_H

#include "data/sampler.h"
#include "optim/optimizer.h"
#include "ddp/power_sgd.h"
#include "train/cli/options.h"
#include "train/files/checkpoint.h"

typedef struct Replica {
    const Options *options; /* not owned */
    Model model;
    Tape tape;
    Optimizer optimizer;
    LossScaler scaler;
    long total_steps;     /* of the whole run: the learning rate's schedule needs it */
    int64_t time;         /* tokens per sample, 1 for the MLP */
    int64_t counted_terms; /* of this step's loss, on all ranks; set by the caller, and used with --mask-tokens only */
    void *inputs, *targets; /* the micro-batch on the device; owned */
    int64_t capacity;       /* the number of samples that fit into them; grows when needed */
    uint32_t data_checksum; /* of what is trained on; set by the caller, if the run saves or resumes */
    bool rank_order;        /* sums are added in rank order: see Resolved */
    double best_loss;       /* the lowest on held-out data so far, for checkpoints; INFINITY: none */
    bool resumes_quietly;  /* replica_resume() prints no notes: another replica has read the same file, and did */
    uint64_t resumed_hash; /* of the checkpoint that replica_resume() has read */
    PowerSgd *power_sgd;   /* the codec, with --grad-dtype powersgd; owned; else NULL */
} Replica;

/* The initial weights come from `seed`. The parameters have no gradients yet: ddp_create() or
 * parameters_allocate_gradients() provides them. */
void replica_create(Replica *replica, const Options *options, uint64_t seed, long total_steps);
void replica_free(Replica *replica);

/* --dropout: which samples the next micro-batch has. step counts from 0. places: where each stands in the step's whole
 * batch (sampler_places()); it must stay valid until backward is over. powersgd: global_samples, of the step. */
void replica_set_samples(Replica *replica, long step, const int64_t *places, int64_t global_samples);

/* A codec that has a state gets it, for ranks first to first + count - 1 of world_size. Before replica_resume(). */
void replica_make_codec(Replica *replica, int first, int count, int world_size);
/* The options' codec, or the one that was made. */
const GradientCodec *replica_codec(const Replica *replica);

/* Copies a micro-batch (host memory, shapes as in data/dataset.h) to replica->inputs and ->targets. */
void replica_load(Replica *replica, const Dataset *dataset, const void *inputs, const void *targets, int64_t samples);

/* Does the same, then computes the micro-batch's loss, summed over its terms, on a recording tape. The result (shape
 * [1]) belongs to the tape, and lives until the next micro-batch. */
Tensor *replica_loss(Replica *replica, const Dataset *dataset, const void *inputs, const void *targets,
                     int64_t samples);
/* Adds the gradient of loss * loss scale to the parameters' gradients. */
void replica_backward(Replica *replica, Tensor *loss);

/* The terms of the summed loss of this step's global_samples samples (all ranks): by arithmetic, or counted_terms. */
int64_t replica_terms(const Replica *replica, int64_t global_samples);

/* The factor that turns the sum of all gradients of a step into the gradient of the mean loss: 1 / (terms * loss
 * scale). global_samples: number of samples in this step, on all ranks together. */
float replica_gradient_scale(const Replica *replica, int64_t global_samples);

/* Clips, takes the optimizer's step, sets gradients to zero, and waits for the device. step counts from 0. Returns
 * false, with the weights unchanged, if a gradient was infinite or NaN. replica_update() then faults unless such steps
 * are skipped (--on-nan); after replica_try_update(), check this yourself. */
bool replica_update(Replica *replica, long step);
bool replica_try_update(Replica *replica, long step);

/* The number of the step after the last one: --steps, or where the sampler ends the last of --epochs. */
long run_length(const Options *options, const Sampler *sampler);

/* Reads a checkpoint into the replica; returns the number of the next step (0 if the file has weights only). Lets the
 * sampler go on at the file's place in the data, and sets total_steps by it. Notes say in what this run differs from
 * the one that was saved. die()s if the file does not fit. replica_save() writes one, on rank 0. Call it on all ranks:
 * each may hold a part of the state. pg: NULL if this process is alone. next_step: number of steps done. Returns false
 * on rank 0 if the file could not be written: see OnFailure. */
long replica_resume(Replica *replica, const char *path, Sampler *sampler);
bool replica_save(Replica *replica, const char *path, ProcessGroup *pg, const Sampler *sampler, long next_step,
                  OnFailure on_failure);

const char *precision_name(DType precision); /* "fp32", "bf16" or "fp16", as in --precision */

/* Number of steps over which the learning rate rises: as typed; or else the model's default, but at most a tenth of the
 * run, so that a short run reaches the full rate, too. */
long warmup_steps(const Options *options, long total_steps);
float learning_rate(const Options *options, long step, long total_steps); /* step counts from 0 */

#endif
