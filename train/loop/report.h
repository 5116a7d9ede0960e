/* report.h: what a run says about itself: a line at the start, the summary at the end. */
#ifndef LOCKSTEP_TRAIN_REPORT_H
#define LOCKSTEP_TRAIN_REPORT_H

#include "data/sampler.h"
#include "train/loop/evaluate.h"
#include "train/loop/replica.h"
#include "train/report/stats.h"
#include "train/loop/verify.h"

/* What the training loop writes down for the summary. */
typedef struct RunRecord {
    long first_step;        /* 0, or where a resumed run began */
    long steps_skipped;     /* a gradient was not finite */
    long collectives;       /* of all steps */
    int64_t bytes;          /* of all steps */
    int64_t out_of_place_bytes; /* of the largest all-reduce whose sum does not replace its input */
    int64_t global_samples; /* of the last step: all ranks, all micro-batches */
    int64_t all_samples;    /* of all steps' batches */
    double first_loss, final_loss;
    double base_rss_mb;     /* program, libraries and data set, before there was a model */
    double peak_rss_mb;     /* the largest rank's, training only */
    Evaluation evaluation;
    Verification verification;
} RunRecord;

double report_resident_mb(void); /* memory of this process now, in MB (10^6 bytes) */
double report_largest_peak_mb(ProcessGroup *pg); /* the largest peak of any rank so far. Collective */

/* Rank 0 prints what is about to be trained. */
void report_start(const Options *options, ProcessGroup *pg, const Replica *replica, const Dataset *dataset,
                  const Sampler *sampler, long first_step);

/* Rank 0 prints the summary and writes it where --json says. */
void report_end(const Options *options, ProcessGroup *pg, const Replica *replica, const Ddp *ddp, const Stats *stats,
                const RunRecord *record);

/* Rank 0, when all is printed: a fault if stdout has not taken it. */
void report_check_stdout(void);

#endif
