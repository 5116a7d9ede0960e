/* options.h: the command line of every stage's `train`, checked and with defaults filled in. */
#ifndef LOCKSTEP_TRAIN_OPTIONS_H
#define LOCKSTEP_TRAIN_OPTIONS_H

#include "data/dataset.h"
#include "nn/model.h"
#include "optim/optimizer.h"
#include "stage5_sharded/sharded.h"

typedef enum VerifyMode { VERIFY_NONE, VERIFY_WHOLE_BATCH, VERIFY_EXACT } VerifyMode;
typedef enum OnNan { ON_NAN_STOP, ON_NAN_SKIP } OnNan;
/* --join: the divisor of the step's sum of gradients when a rank has run out of data. */
typedef enum JoinMode {
    JOIN_NONE,    /* no --join: ranks may not run out of data at different steps */
    JOIN_ACTUAL,  /* the number of samples in this step */
    JOIN_INITIAL, /* the full global batch */
} JoinMode;
typedef enum BackendKind { BACKEND_MPI, BACKEND_NCCL } BackendKind;
typedef enum LrSchedule { LR_CONSTANT, LR_COSINE } LrSchedule;

enum { OPTIONS_MAX_RANKS = 256 }; /* in the list of --rank-samples */
enum { OPTIONS_MAX_FLAGS = 80 };

typedef struct Options {
    ModelSpec model;
    DatasetKind dataset;
    bool recompute;    /* activations of a block are computed again in backward */
    float dropout;     /* the probability that an activation is dropped in training */
    float mask_tokens; /* the probability that a target token is left out of the training loss */
    const char *data; /* NULL: the distribution's package. This text and those below may point into argv */
    bool binary_data; /* --data need not be plain text */

    long steps;  /* to train; 0: train `epochs` epochs */
    long epochs; /* 0: train `steps` steps. Exactly one of the two is not 0 */
    int64_t batch_size; /* global: all ranks, all micro-batches */
    int accumulate;     /* micro-batches per step */
    uint64_t seed;
    bool drop_last;
    int64_t rank_samples[OPTIONS_MAX_RANKS]; /* each rank's own samples per epoch */
    int rank_samples_count; /* 0: the sampler divides the data set equally among the ranks */
    JoinMode join;

    float lr;
    LrSchedule lr_schedule; /* cosine: down to a tenth of lr at the last step */
    long warmup_steps;      /* lr rises linearly over these; see warmup_steps() in replica.h */
    bool warmup_given;      /* --warmup-steps was typed; else warmup_steps is the model's default */
    OptimizerOptions optimizer;
    double clip_grad_norm; /* 0: off */

    bool share_gpu;        /* several ranks may compute on one GPU */
    int threads;           /* BLAS threads per rank */
    ProcessGroupOptions group;
    DdpOptions ddp;           /* .sharding is not set, because Options may be copied */
    ShardingOptions sharding; /* stage 5 */
    int power_sgd_rank; /* of --grad-dtype powersgd */
    DType precision;       /* DTYPE_F32, DTYPE_BF16, DTYPE_F16 */
    bool tf32;             /* CUDA: float32 matrix products may round their operands to TF32 */
    float initial_loss_scale; /* fp16 only */

    OnNan on_nan; /* what to do if a loss or gradient is not finite */
    VerifyMode verify;
    const char *save;  /* safetensors file, or NULL */
    long save_every;   /* 0: only at the end */
    const char *resume;
    long eval_every;   /* evaluate also after every `eval_every` steps; 0: only at the end */
    const char *save_best; /* safetensors file, or NULL */
    const char *log;   /* CSV file, or NULL */
    long log_every;    /* a row after every `log_every` steps */
    const char *trace; /* Chrome trace file, or NULL */
    const char *json;  /* summary file, or NULL */
    const char *flight_recorder; /* file for the latest collectives of a run that hangs, or NULL */
    long generate;     /* number of bytes of text to print at the end */
    bool same_seed;    /* --same-init: every rank draws the same initial weights (default: seed + rank) */
    long eval_samples; /* number of held-out samples to evaluate at the end; 0: all */
    long check_every;  /* compare the ranks' weights after every `check_every` steps; 0: only at the end */
    const char *text[OPTIONS_MAX_FLAGS]; /* by FlagId: the flag's value as typed, else its default, else NULL */
    bool given[OPTIONS_MAX_FLAGS];       /* by FlagId: the flag was typed */
} Options;

/* Settings that depend on the flags, the build, the hosts of the ranks, and the codec of gradients. */
typedef struct Resolved {
    BackendKind backend;          /* sends the gradients */
    AllReduceAlgorithm algorithm; /* adds them, over MPI; never ALLREDUCE_AUTO */
    bool rank_order;              /* the sums have the bits of adding in rank order (hierarchical: host by host) */
} Resolved;

/* Fills options from the command line; argv must outlive them. Each mistake ends the program with die() (status 2),
 * which names the flag, and a remedy or the stage that has the flag. For --help, rank 0 prints every flag with its
 * default, and the result is false: then end the program with status 0. */
bool options_parse(Options *options, int argc, char **argv, int stage);

/* algorithm: pg_algorithm(). */
Resolved options_resolve(const Options *options, AllReduceAlgorithm algorithm, int world_size);

/* die()s if the global batch has fewer samples than ranks x micro-batches, if --rank-samples does not fit the ranks, or
 * if --verify cannot repeat how gradients are sent and added. */
void options_check_world(const Options *options, const Resolved *resolved, int world_size);

/* die()s, and shows both sides, if ranks have different programs or flags (except those "(per rank)"). Collective. */
void options_check_agreement(const Options *options, ProcessGroup *pg, int stage);

/* All flags but --help, by their names with _ for -: a number, a list of numbers, or a word; true: given without a
 * value; false or null: not given, or not in this stage. Owned by the caller. */
struct cJSON *options_to_json(const Options *options, int stage);

/* Lists the flags on which the bits of a resumed run depend: writes number `i`, from 0, as words ("--seed 42", "no
 * --join"), and returns its name without dashes; NULL: there are no more. A long list becomes a fingerprint. */
const char *options_setting(const Options *options, int i, char *words, size_t size);

/* After device_init(): die()s if two ranks compute on one GPU, unless --share-gpu allows it. Collective. */
void options_check_devices(const Options *options, ProcessGroup *pg);

#endif
