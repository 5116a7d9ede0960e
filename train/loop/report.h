/* report.h: what a run prints about itself: lines at the start, the summary at the end. */
#ifndef LOCKSTEP_TRAIN_REPORT_H
#define LOCKSTEP_TRAIN_REPORT_H

#include "data/sampler.h"
#include "train/loop/on_the_way.h"
#include "train/loop/replica.h"
#include "train/report/stats.h"
#include "train/loop/verify.h"

/* What the training loop records for the summary. */
typedef struct RunRecord {
    Stats stats;            /* of this rank's steps */
    long first_step;        /* 0, or the step at which a resumed run began */
    CommCounters communication; /* until the end of the last step */
    long buckets;           /* sums of gradients in the last step */
    long norm_collectives;  /* of --norm's own group, which communication does not count */
    int64_t global_samples; /* of the last step: all ranks, all micro-batches */
    int64_t all_samples;    /* of the batches of all steps */
    double first_loss, final_loss; /* means over a step's global batch, in nats (regression: squared error) */
    double base_rss_mb;     /* memory before the model was created: program, libraries, data set */
    double peak_rss_mb;     /* largest peak of any rank, in training only */
    Evaluation evaluation;
    OnTheWay way;
    Verification verification;
} RunRecord;

double report_resident_mb(void); /* memory of this process now, in MB (10^6 bytes); NAN if unknown */
double report_largest_peak_mb(ProcessGroup *pg); /* the largest peak of any rank so far. Collective */

/* Rank 0 prints what the run will train; the other ranks do nothing. */
void report_start(const Resolved *resolved, ProcessGroup *pg, const Replica *replica, const Dataset *dataset,
                  const Sampler *sampler, long first_step);

/* Rank 0 prints the summary and writes it to the file of --json. Collective: it gathers the ranks' times. */
void report_end(const Resolved *resolved, ProcessGroup *pg, const Replica *replica, const Ddp *ddp,
                const RunRecord *record);

/* A signal has stopped the run after `done` steps: rank 0 says so. There may be little time, so nothing else is written.
 * Returns the exit status. */
int report_stopped(const Replica *replica, long done, int signal);

/* True if the run has trained. False, and rank 0 says why, if most steps were skipped, if the loss on held-out data is
 * not finite, or if the verification has failed (which has said so itself). */
bool report_success(const Replica *replica, const RunRecord *record);

/* Call it on rank 0 when everything is printed: faults if stdout could not be written. */
void report_check_stdout(void);

#endif
