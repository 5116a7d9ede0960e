/* options.h: the command line of every stage's `train`, checked and with defaults filled in. */
#ifndef LOCKSTEP_TRAIN_OPTIONS_H
#define LOCKSTEP_TRAIN_OPTIONS_H

#include "data/dataset.h"
#include "ddp.h"
#include "nn/model.h"
#include "optim/optimizer.h"

typedef enum VerifyMode { VERIFY_NONE, VERIFY_WHOLE_BATCH, VERIFY_EXACT } VerifyMode;
typedef enum OnNan { ON_NAN_STOP, ON_NAN_SKIP } OnNan;
/* --join: ranks that run out of data before others shadow them. What the step's sum of gradients is divided by: */
typedef enum JoinMode {
    JOIN_NONE,    /* no --join: ranks that would run out at different steps are a mistake */
    JOIN_ACTUAL,  /* the samples that took part in the step */
    JOIN_INITIAL, /* the full global batch, whoever has run out */
} JoinMode;
typedef enum LrSchedule { LR_CONSTANT, LR_COSINE } LrSchedule;

enum { OPTIONS_MAX_RANKS = 256 }; /* that --rank-samples can list */
enum { OPTIONS_MAX_FLAGS = 64 };

typedef struct Options {
    ModelSpec model;
    DatasetKind dataset;
    const char *data; /* --data; NULL: the distribution's package. Strings here point into argv */

    long steps;  /* to train; 0: train `epochs` epochs */
    long epochs; /* 0: train `steps` steps. Exactly one of the two is not 0 */
    int64_t batch_size; /* global: all ranks, all micro-batches */
    int accumulate;     /* micro-batches per step */
    uint64_t seed;
    bool drop_last;
    int64_t rank_samples[OPTIONS_MAX_RANKS]; /* of an epoch, each rank's own; see options_rank_samples() */
    int rank_samples_count; /* 0: the sampler deals the data set out, equally many for every rank */
    JoinMode join;

    float lr;
    LrSchedule lr_schedule; /* cosine: down to a tenth of lr at the last step */
    long warmup_steps;      /* lr rises linearly over these; see warmup_steps() in replica.h */
    bool warmup_given;      /* --warmup-steps was typed; else it is the model's default */
    OptimizerOptions optimizer;
    double clip_grad_norm; /* 0: off */

    const char *backend;   /* "mpi" or "nccl" */
    bool share_gpu;        /* two ranks may compute on one GPU */
    int threads;           /* BLAS threads per rank */
    ProcessGroupOptions group;
    const char *allreduce; /* the algorithm's name, for the summary; NCCL chooses by itself: "nccl" */
    DdpOptions ddp;
    DType precision;       /* DTYPE_F32, DTYPE_BF16, DTYPE_F16 */
    bool tf32;             /* float32 matrix products may round what they multiply to TF32 (CUDA) */
    float initial_loss_scale; /* fp16 only */

    OnNan on_nan; /* what to do about a loss or gradient that is not finite */
    VerifyMode verify;
    const char *save;  /* safetensors file, or NULL */
    long save_every;   /* 0: only at the end */
    const char *resume;
    const char *trace; /* Chrome trace file, or NULL */
    const char *json;  /* summary file, or NULL */
    long generate;     /* bytes of sample text at the end */
    bool same_seed;    /* --same-init: every rank draws the same initial weights (default: seed + rank) */
    long eval_samples; /* look at this many held-out samples at the end; 0: all */
    long check_every;  /* compare the ranks' weights every this many steps; 0: only at the end */
    const char *typed[OPTIONS_MAX_FLAGS]; /* by FlagId: a flag's value as it was typed; NULL: it was not given */
} Options;

/* Fills options from the command line. Anything wrong ends the program with die() (status 2), naming the flag and
 * what would be right; a flag that this stage does not have names the stage that does. --help prints every flag
 * with its default (rank 0 only) and returns false: the caller leaves with status 0. */
bool options_parse(Options *options, int argc, char **argv, int stage);

/* 0 without --rank-samples; else a number that most likely differs where the lists do. */
uint32_t options_rank_samples_fingerprint(const Options *options);

/* What sampler_set_rank_samples() wants: the numbers of --rank-samples, or NULL. */
const int64_t *options_rank_samples(const Options *options);

/* The checks that need the number of ranks: die()s if the global batch has not a sample for every rank and
 * micro-batch, if --rank-samples does not fit the ranks, or if --verify exact asks for what MPI's own all-reduce does
 * not promise. */
void options_check_world(const Options *options, int world_size);

/* die()s, showing both sides, where ranks were started with different programs or flags: of all flags, what was typed
 * must be the same, except for those that --help calls "per rank". Collective. */
void options_check_agreement(const Options *options, ProcessGroup *pg);

/* After device_init(): die()s if two ranks compute on one GPU, unless --share-gpu allows it. Collective. */
void options_check_devices(const Options *options, ProcessGroup *pg);

#endif
