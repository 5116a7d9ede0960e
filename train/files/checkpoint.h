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

/* Something that a run was started with, as a person would say it. Only words are compared. */
typedef struct CheckpointSetting {
    const char *key; /* in the file's metadata: "seed" */
    char words[128]; /* "--seed 42" */
} CheckpointSetting;

enum { CHECKPOINT_MOST_SETTINGS = 16 };

typedef struct CheckpointState {
    /* Where the run is. */
    long step;        /* optimizer steps done; the next one has this number, counted from 0 */
    float loss_scale; /* fp16; 1 otherwise */
    long good_steps;  /* fp16: steps since the loss scale changed */
    /* What the numbers mean: "--model mlp --activation gelu --optimizer sgd". It must be the same. */
    char model[128];
    /* How the run was started. Where that differs, it goes on, but not bit for bit: another seed or batch gives other
     * data, another number of ranks another order of sums. */
    CheckpointSetting settings[CHECKPOINT_MOST_SETTINGS];
    int setting_count;
    uint64_t hash; /* on loading: of the file */
} CheckpointState;

#define CHECKPOINT_PRECISION "precision" /* the key of the setting without which a file's loss scale means nothing */

void checkpoint_add_setting(CheckpointState *state, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Writes the checkpoint; the old file stays until the new one is complete. Rank 0 alone calls it. */
void checkpoint_save(const char *path, const ParameterList *parameters, const Optimizer *optimizer,
                     const CheckpointState *state);

/* Reads parameters and optimizer state; every rank calls it. `state` comes in as this run would start. It gets the hash
 * and, unless the file holds parameters only, step, loss_scale and good_steps from the file. Unless `quiet`, notes say
 * where the rest differs. Another model or optimizer, or tensors that are missing, unexpected or of another shape, end
 * the program with die(). */
void checkpoint_load(const char *path, ParameterList *parameters, Optimizer *optimizer, CheckpointState *state,
                     bool quiet);

#endif
