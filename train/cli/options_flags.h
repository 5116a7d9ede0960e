/* options_flags.h: the table of all flags, for the files that read (options.c) and check (options_check.c) the command
 * line. Do not include it elsewhere.
 *
 * A new flag: add a name to FlagId and a line to flags[] (options_flags.c), then read it in options.c. Defaults are
 * texts, and are read like typed values, so --help prints the actual default.
 */
#ifndef LOCKSTEP_TRAIN_OPTIONS_FLAGS_H
#define LOCKSTEP_TRAIN_OPTIONS_FLAGS_H

#include "train/cli/options.h"

typedef enum FlagId {
    FLAG_MODEL, FLAG_HIDDEN, FLAG_ACTIVATION, FLAG_NORM, FLAG_LAYERS, FLAG_HEADS, FLAG_WIDTH, FLAG_CONTEXT, FLAG_DATA,
    FLAG_BINARY_DATA, FLAG_MASK_TOKENS, FLAG_DROPOUT, FLAG_SKIP_LAYER, FLAG_RECOMPUTE,
    FLAG_STEPS, FLAG_EPOCHS, FLAG_BATCH_SIZE, FLAG_ACCUMULATE, FLAG_DROP_LAST, FLAG_RANK_SAMPLES, FLAG_JOIN,
    FLAG_SEED, FLAG_SAME_INIT,
    FLAG_OPTIMIZER, FLAG_LR, FLAG_LR_SCHEDULE, FLAG_WARMUP_STEPS, FLAG_MOMENTUM, FLAG_WEIGHT_DECAY,
    FLAG_CLIP_GRAD_NORM, FLAG_PRECISION, FLAG_TF32, FLAG_LOSS_SCALE,
    FLAG_SHARE_GPU, FLAG_THREADS, FLAG_BACKEND, FLAG_ALLREDUCE, FLAG_RANKS_PER_HOST, FLAG_WIRE, FLAG_TIMEOUT,
    FLAG_BUCKET_CAP_MB, FLAG_FIRST_BUCKET_MB, FLAG_REBUILD_BUCKETS, FLAG_FIND_UNUSED_PARAMETERS, FLAG_STATIC_GRAPH,
    FLAG_GRAD_DTYPE, FLAG_POWERSGD_RANK, FLAG_ZERO, FLAG_SHARD_RANKS,
    FLAG_VERIFY, FLAG_CHECK_EVERY, FLAG_DEBUG_COLLECTIVES, FLAG_ON_NAN, FLAG_EVAL_SAMPLES, FLAG_EVAL_EVERY, FLAG_SAVE,
    FLAG_SAVE_EVERY, FLAG_SAVE_BEST, FLAG_RESUME, FLAG_GENERATE, FLAG_LOG, FLAG_LOG_EVERY, FLAG_TRACE, FLAG_JSON,
    FLAG_FLIGHT_RECORDER, FLAG_HELP,
    FLAG_COUNT
} FlagId;
_Static_assert((int)FLAG_COUNT <= OPTIONS_MAX_FLAGS, "Options has no room for all flags");

/* A word that a flag accepts, and its value. A list ends with name == NULL, and may begin with "": no value. */
typedef struct Choice {
    const char *name;
    int value;
} Choice;

typedef struct Flag {
    const char *name;          /* without the dashes */
    const char *argument;      /* the value's name in --help; NULL: it takes none, or one of `choices` */
    const Choice *choices;     /* the words that it accepts; NULL: any text, or a number */
    const char *default_value; /* NULL: none, or it depends on the model */
    double low, high;          /* numbers: the range, both ends included */
    int stage;                 /* the first stage that has it */
    const char *feature;       /* completes "stage 1 (naive) has no ..."; NULL if stage is 1 */
    const char *help;
    bool per_rank;             /* ranks may differ in it; all other flags must be typed alike on all ranks */
    bool bits;                 /* a resumed run has other bits with another value: checkpoints hold it */
    const char *title;         /* --help: of the group that begins here; NULL: none does */
} Flag;

extern const Flag flags[FLAG_COUNT];

/* note: scale-on-the-wire
 * The default of --loss-scale with --grad-dtype fp16. Ranks send the gradient of a SUM of losses: the gradient of the
 * mean, times the number of samples or tokens in the global batch. The largest fp16 number is 65504. */
#define LOSS_SCALE_FP16_ON_THE_WIRE "16"

#define MODEL_COUNT 4 /* choices of --model; their values count them from 0 */
#define MODEL_DEFAULT_COUNT 13

/* A default that depends on the model, and perhaps on the optimizer. */
typedef struct ModelDefault {
    FlagId flag;
    const char *optimizer; /* the default holds with this --optimizer only; NULL: with any */
    const char *by_model[MODEL_COUNT]; /* texts, read like the user's; NULL: none */
} ModelDefault;

extern const ModelDefault model_defaults[MODEL_DEFAULT_COUNT]; /* --optimizer comes before what depends on it */

const char *stage_directory(int stage); /* "stage1_naive" */
const char *stage_name(int stage);      /* "naive" */

/* options.c: of --backend, whose default depends on the build. */
BackendKind options_backend(const Options *options);

void options_print_help(int stage);

/* options_check.c: die()s if flags contradict each other, or if a file cannot be read or written. */
void options_check_flags(const Options *options, int stage);
void options_check_files(const Options *options);

#endif
