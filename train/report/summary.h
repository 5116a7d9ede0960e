/* summary.h: what a run was and what came out of it: a block for people, a JSON object for programs.
 *
 * Interface: fill a Summary that summary_init() has prepared, summary_set_times() included; then summary_print()
 * and summary_write_json(). Only rank 0 prints and writes. A value that this run does not have is NAN and becomes
 * null in JSON, as do infinite ones, which JSON cannot write. The names of the fields are the keys.
 */
#ifndef LOCKSTEP_TRAIN_SUMMARY_H
#define LOCKSTEP_TRAIN_SUMMARY_H

#include <stdbool.h>
#include <stdint.h>

#include "train/report/stats.h"

typedef struct Percentiles {
    double first, p50, p95;
} Percentiles;

typedef struct VerifyResult {
    const char *mode; /* "whole-batch", "exact"; NULL: not verified */
    double max_abs_diff;
    const char *worst_parameter;
    bool passed;
} VerifyResult;

/* Of rank 0, in MB (10^6 bytes). operands: the weights once more, as products read them in 16 bits. gradients: with
 * what lies beside them, the copy that travels in 16 bits and the sums that stages 1 to 3 throw away. activations: the
 * most that the tape's arena has held. base: what there was before the model: program, libraries, data set. The rest
 * of the peak is small, and mostly the MPI library's: MPICH takes half a message to add one of some MB. */
typedef struct MemoryUse {
    double weights_mb, operands_mb, gradients_mb, optimizer_mb, activations_mb, base_mb;
} MemoryUse;

typedef struct Summary {
    int stage;
    const char *stage_name;
    const char *model, *backend, *device;
    int world_size, threads; /* threads: BLAS threads per rank */
    long steps;              /* done in this run */
    long steps_skipped;      /* a gradient was not finite (fp16: it overflowed); weights were left alone */
    int64_t global_batch;
    int accumulate;     /* micro-batches per step */
    const char *join;   /* "actual", "initial"; NULL: no --join */
    const int64_t *rank_samples; /* (world_size), each rank's own of an epoch; NULL: dealt out equally */
    long micro_batches; /* in all, per rank */
    const char *precision;
    bool tf32;
    double loss_scale;
    const char *allreduce;                     /* the algorithm that adds the gradients */
    const char *grad_dtype;                    /* what they are sent as: "fp32", "bf16", "fp16" */
    double bucket_cap_mb, first_bucket_mb;     /* MiB; NAN where there are no buckets */
    double wire_gbps, wire_latency_us;         /* the emulated link; 0 Gbit/s: none, "wire" is null */
    int64_t parameters;                        /* elements */
    int buckets;
    double collectives_per_step, bytes_per_step;
    double first_loss, final_loss;

    /* Set by summary_set_evaluation(). */
    double eval_loss, eval_bits_per_byte, eval_accuracy;

    /* Set by summary_set_times(), in milliseconds; p50 unless said otherwise. */
    Percentiles step_ms;
    double forward_ms, backward_ms, optimizer_ms, data_ms, comm_ms, exposed_comm_ms;
    double first_step_ms[STEP_PARTS]; /* the parts of the very first step */
    double hidden_fraction;           /* 1 - exposed / comm: how much of communication cost nothing */
    double comm_share;                /* exposed / step: how much of a step training stood still for it */
    long warmup_steps_excluded;
    double samples_per_s, tokens_per_s;

    double peak_rss_mb; /* the largest rank's */
    MemoryUse memory;
    uint64_t weights_hash;
    VerifyResult verify;
} Summary;

/* Every number that a run may lack becomes NAN, every text NULL, every count 0. */
void summary_init(Summary *summary);

/* What was found on unseen data: the mean loss in nats, and the share of right answers (NAN where there is no such
 * thing). per_byte: the loss is of bytes, and is said in bits as well, as those who compress or model text do. */
void summary_set_evaluation(Summary *summary, double loss, double accuracy, bool per_byte);

/* Fills in all times and rates; needs global_batch. tokens_per_sample is 0 where samples have no tokens. */
void summary_set_times(Summary *summary, const Stats *stats, int64_t tokens_per_sample);

/* The most memory this process has ever used, in MB. */
double summary_peak_rss_mb(void);

void summary_print(const Summary *summary);

/* path NULL: does nothing. The file appears whole or not at all. */
void summary_write_json(const Summary *summary, const char *path);

#endif
