/* trainer.h: a whole run, from the data set to the summary. Call train(); all else is for the files of train/loop/. */
#ifndef LOCKSTEP_TRAIN_TRAINER_H
#define LOCKSTEP_TRAIN_TRAINER_H

#include "data/loader.h"
#include "ddp/sync_batch_norm.h"
#include "train/loop/evaluate.h"
#include "train/loop/verify.h"
#include "train/report/output.h"
#include "train/report/step_log.h"
#include "train/report/trace.h"

typedef struct EvaluationPoint {
    long step; /* number of steps done */
    Evaluation evaluation;
} EvaluationPoint;

/* What the training loop records for the summary. */
typedef struct RunRecord {
    Stats stats;                /* of this rank's steps */
    long first_step;            /* 0, or the step at which a resumed run began */
    CommCounters communication; /* until the end of the last step */
    long norm_collectives;      /* of --norm's own group, which communication does not count */
    int64_t global_samples;     /* of the current or last step: all ranks, all micro-batches */
    int64_t all_samples;        /* of the batches of all steps */
    long buckets;               /* sums of gradients in the latest step */
    double first_loss, final_loss; /* means over a step's global batch, in nats (regression: squared error) */
    double base_rss_mb;         /* memory before the model was created: program, libraries, data set */
    double peak_rss_mb;         /* largest peak of any rank, in training only */
    Evaluation evaluation;      /* the latest one */
    EvaluationPoint *evaluations; /* all of them; owned */
    int evaluation_count;
    Verification verification;
} RunRecord;

typedef struct Trainer {
    const Options *options; /* these three are not owned, all else is */
    const Resolved *resolved;
    ProcessGroup *pg;
    Dataset train_set, eval_set;
    Sampler sampler;
    Loader *loader;
    Replica replica;
    Ddp *ddp;
    ProcessGroup *norm_group; /* with --norm: for statistics and buffers; NULL: this process is alone */
    RankGather norm_ranks;    /* --norm sync-batch: gathers the model's statistics in that group */
    float *initial_weights;   /* rank 0, for --verify: the weights after the broadcast */
    Progress progress;
    RunRecord record;
    MemoryWatch memory;   /* started with --trace */
    StepLog log;          /* rank 0, with --log */
    bool best_is_missing; /* the last --save-best has failed */
    bool save_is_missing; /* rank 0: the last --save has failed, and a note has said so */
    /* Of the current step: */
    Phases phases;
    double loss;       /* of this rank, summed over its samples so far */
    double loss_scale; /* with which the step began */
    int64_t own_terms; /* of this rank's loss so far */
    Work *counting;    /* with --mask-tokens: the all-reduce of own_terms; NULL: none is pending */
} Trainer;

/* Trains, evaluates, verifies, saves, prints and writes, as the options say. Collective. Owns no argument. Returns the
 * exit status: 0, or 1 if --verify failed. Mistakes of the user die(); faults at run time end all ranks. */
int train(const Options *options, const Resolved *resolved, ProcessGroup *pg);

/* ---- setup.c ---- */

/* Reads the data and the checkpoint of --resume, and creates the replica, the Ddp and the loader. The caller sets
 * trainer's options, resolved and pg, and must not move it. die()s if these do not fit together. Collective. */
void set_up_run(Trainer *trainer);
void tear_down_run(Trainer *trainer);

/* ---- not_finite.c ---- */

/* Call it before backward; loss: this rank's sum over the micro-batch. Ends the job (status 1) if it is not finite, but
 * first gives the other ranks time to report the same: at least twice forward_seconds, this forward pass's time. */
void not_finite_check_loss(float loss, const Batch *batch, double forward_seconds);
/* Call it when `step` was skipped because a gradient was not finite after the all-reduce. The rank that it comes from
 * reports it, and the job ends (status 1). Collective. */
_Noreturn void not_finite_report_rank(Trainer *trainer, long step);

/* ---- periodic.c: evaluation, checkpoints, the log. They change no bit, and do not count as communication. ---- */

/* True after every `every` steps; never if every <= 0. step counts from 0. */
bool is_due(long step, long every);

/* Starts the progress and the log. Collective. */
void periodic_begin(Trainer *trainer);
/* Adds a row about `step`, whose mean loss is record.final_loss, to the log. */
void periodic_log(Trainer *trainer, long step);
/* Evaluates after `done` steps and, if the result is the best one of the training, writes --save-best. Collective. */
void periodic_evaluate(Trainer *trainer, long done);
/* Writes the file of --save, if any, after `done` steps. Collective. */
void periodic_save(Trainer *trainer, long done, OnFailure on_failure);
/* Returns false, and rank 0 reports it, if --save-best could not be written, or, on rank 0 alone, a row of --log. */
bool periodic_end(Trainer *trainer);

/* ---- report.c ---- */

double report_resident_mb(void); /* memory of this process now, in MB (10^6 bytes); NAN if unknown */
double report_peak_rss_mb(ProcessGroup *pg); /* the largest peak of any rank so far. Collective */

void report_start(const Trainer *trainer); /* rank 0 prints the settings of the run */
/* Rank 0 prints the summary and writes it to the file of --json. Collective: it gathers the ranks' times. */
void report_end(const Trainer *trainer);

/* Rank 0 prints that a signal has stopped the run after `done` steps. Returns the exit status. */
int report_stopped(const Replica *replica, long done, int signal);

/* Returns false, and rank 0 reports why, if most steps were skipped, or if the loss on held-out data is not finite.
 * Also returns false if the verification failed, which has reported it already. */
bool report_success(const Replica *replica, const RunRecord *record);

/* Faults if stdout could not be written. Call it on rank 0, after all else is printed. */
void report_check_stdout(void);

#endif
