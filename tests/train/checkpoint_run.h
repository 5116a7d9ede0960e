/* checkpoint_run.h: a small model with its optimizer, saved and loaded; for the tests of checkpoints.
 *
 * Interface: checkpoint_tests_start() makes a directory of the tests' own under $TMPDIR or /tmp, and
 * checkpoint_tests_end() removes it with all files of test_path(). An error in these functions ends the process.
 */
#ifndef LOCKSTEP_TESTS_CHECKPOINT_RUN_H
#define LOCKSTEP_TESTS_CHECKPOINT_RUN_H

#include "train/files/checkpoint.h"

enum { MATRIX = 6, VECTOR = 3, VALUES = MATRIX + VECTOR };

/* fc1.weight (2, 3) and fc1.bias (3). */
typedef struct Run {
    ParameterList parameters;
    Optimizer optimizer;
    CheckpointState state;
} Run;

extern const OptimizerOptions adamw, sgd, sgd_momentum;

void run_create(Run *run, const OptimizerOptions *options); /* state at the start of a run: everything is zero */
void run_train(Run *run); /* state after some steps: all numbers differ, with special values among them */
void run_free(Run *run);

void save(const char *path, const OptimizerOptions *options); /* a trained run */
void load(void *path);                                        /* into a new run with AdamW; for expect_dies() */

int checkpoint_tests_start(void **unused);
int checkpoint_tests_end(void **unused);
/* The name's path in the tests' directory; "" is the directory. Valid until the second call after this one. */
char *test_path(const char *name);
void write_file(const char *path, const void *bytes, size_t count);
unsigned char *read_file(const char *path, size_t *count); /* the whole file; free() it */

/* A safetensors file with this header, and floats 0, 1, 2, ... for data. */
void write_hand_made(const char *path, const char *header, size_t data_bytes);
#define WEIGHT "\"fc1.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define BIAS "\"fc1.bias\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[24,36]}"

#endif
