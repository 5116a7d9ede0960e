/* checkpoint.h: --save and --resume: one safetensors file from which a run continues with the same bits.
 *
 * Tensors of the file: every parameter under its own name (float32), and of the optimizer "optimizer.step.NAME" (int64,
 * the number of updates), "optimizer.m.NAME" and "optimizer.v.NAME" (AdamW) or "optimizer.momentum.NAME" (SGD); and
 * those of CheckpointState.more. Metadata: the values of CheckpointState, and a checksum of the whole file; a damaged
 * file is rejected. A run can also resume from another program's file that holds only parameters. The optimizer then
 * starts from zero.
 *
 * The order of data and the learning rate follow from the step, the place in the data and the command line (the seed;
 * under cosine also the number of steps), so no random generator's state has to be stored.
 */
#ifndef LOCKSTEP_TRAIN_CHECKPOINT_H
#define LOCKSTEP_TRAIN_CHECKPOINT_H

#include "data/sampler.h"
#include "optim/optimizer.h"
#include "train/files/atomic_file.h"

/* One setting of a run. Runs are compared by the words of their settings. */
typedef struct CheckpointSetting {
    const char *key; /* in the file's metadata: "seed" */
    char words[128]; /* "--seed 42"; "": unknown, in a file of an older version */
    char effect[128]; /* of other words: "the weights will not be the same to the bit" */
} CheckpointSetting;

enum { CHECKPOINT_MAX_SETTINGS = 24 };

typedef struct CheckpointState {
    long step;        /* optimizer steps done; the next one has this number, counted from 0 */
    float loss_scale; /* fp16; 1 otherwise */
    long good_steps;  /* fp16: steps since the loss scale changed */
    float learning_rate; /* of the last step; 0: none yet */
    double best_loss; /* the lowest on held-out data so far (--eval-every); INFINITY: none */
    long best_loss_samples; /* over which it was computed; 0: all; -1: unknown, in a file of an older version */
    DataPlace place;  /* at which the next step begins; epoch -1: unknown, in a file of an older version */
    char model[192];  /* must not differ: "--model mlp --activation gelu --optimizer sgd" */
    /* If a setting differs, such as the seed or the number of ranks, the run continues with other bits. */
    CheckpointSetting settings[CHECKPOINT_MAX_SETTINGS];
    int setting_count;
    ParameterList *more; /* tensors beside the optimizer's, all float32; NULL: none; not owned */
    uint64_t hash; /* set on loading: hash of the file */
} CheckpointState;

/* Keys of settings; others are the names of flags (options_setting()). If the words of a key change, rename the key. */
#define CHECKPOINT_PRECISION "precision" /* the file's loss scale is used only if this setting is equal */
#define CHECKPOINT_RATE "lr"
#define CHECKPOINT_SCHEDULE "lr_schedule" /* of the learning rate */
#define CHECKPOINT_SEED "seed"            /* of the order of samples */
#define CHECKPOINT_DATA "data"            /* size and checksum of what is trained on */

/* key: not copied. Faults if there are more than CHECKPOINT_MAX_SETTINGS. */
void checkpoint_add_setting(CheckpointState *state, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Writes the optimizer's parameters and state; the old file stays until the new one is complete. Call it on rank 0
 * alone; but if the state is sharded (Partition), on all ranks, with path NULL on all but rank 0. All weights must be
 * whole there. Faults if a number is infinite or NaN. Returns false, on the rank that writes, if this failed. RESCUE
 * writes to another directory, and then faults: [note: saved-elsewhere]. */
bool checkpoint_save(const char *path, Optimizer *optimizer, const CheckpointState *state, OnFailure on_failure);

/* Reads the optimizer's parameters and state; call it on every rank. *state must have this run's model and settings;
 * the file's values replace all others, and the settings' words. Returns false, and sets only the hash, if the file
 * holds parameters only. die()s if the model, the optimizer or the list of tensors and shapes differs. */
bool checkpoint_load(const char *path, Optimizer *optimizer, CheckpointState *state);

/* The setting of this key, which must be there. */
CheckpointSetting *checkpoint_setting(CheckpointState *state, const char *key);
/* Prints a note for each setting in which this run differs from the one that saved the file `path`. */
void checkpoint_compare(const char *path, const CheckpointState *saved, const CheckpointState *ours);

#endif
