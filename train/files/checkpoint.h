/* checkpoint.h: --save and --resume: all that a run needs to go on bit for bit, in one safetensors file.
 *
 * Tensors of the file: every parameter under its own name (float32), and of the optimizer "optimizer.step.NAME" (int64,
 * the number of updates), "optimizer.m.NAME" and "optimizer.v.NAME" (AdamW) or "optimizer.momentum.NAME" (SGD).
 * Metadata: what CheckpointState holds, and a checksum of the whole file: a file whose bits have changed is refused. A
 * file with parameters only, written by any other program, can be resumed from as well: the optimizer then starts
 * afresh.
 *
 * Order of data and learning rate follow from the step and the command line (the seed; under cosine also the number of
 * steps), so that no generator's state has to be stored.
 */
#ifndef LOCKSTEP_TRAIN_CHECKPOINT_H
#define LOCKSTEP_TRAIN_CHECKPOINT_H

#include "optim/optimizer.h"

typedef struct CheckpointState {
    char model[16]; /* as --model names it */
    char beyond_shapes[24]; /* what else the weights' meaning depends on: "--heads 4", "--activation gelu" */
    /* Where the run is. */
    long step;        /* optimizer steps done; the next one has this number, counted from 0 */
    float loss_scale; /* fp16; 1 otherwise */
    long good_steps;  /* fp16: steps since the loss scale changed */
    /* How the run was started. Another seed or batch gives other data, another world size another order of sums. */
    uint64_t seed;
    long batch_size; /* global */
    long accumulate;
    long world_size;
    long drop_last;    /* 0 or 1 */
    long rank_samples; /* a fingerprint of the ranks' own numbers of samples; 0: the data set is dealt out */
    long join;         /* 0: no --join; else its number */
    char precision[16]; /* "fp32", "fp32 --tf32", "bf16", "fp16" */
    /* What else decides about the next update, in words, which are compared. */
    char schedule[128]; /* of the learning rate; under cosine also the steps of the whole run */
    char update[128];   /* momentum and the like, and in how many bits gradients travel */
    uint32_t checksum;  /* on loading: of the tensors that were read */
    bool read_before;   /* on loading: this process has loaded the file before, and the notes have been said */
} CheckpointState;

/* Writes the checkpoint; the old file stays until the new one is complete. Rank 0 alone calls it. */
void checkpoint_save(const char *path, const ParameterList *parameters, const Optimizer *optimizer,
                     const CheckpointState *state);

/* Reads parameters and optimizer state; every rank calls it. `state` comes in as this run would start, and gets step,
 * loss_scale, good_steps and checksum from the file; where the rest differs, a note says that the run will not go on
 * bit for bit. Returns false, after a note, if the file holds parameters only: state then gets the checksum alone.
 * Another model or optimizer, or tensors that are missing, unexpected or of another shape, end the program with
 * die(). Nothing is changed before all of the file has been checked. */
bool checkpoint_load(const char *path, ParameterList *parameters, Optimizer *optimizer, CheckpointState *state);

#endif
