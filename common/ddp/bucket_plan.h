/* bucket_plan.h: which gradient goes into which bucket, and how large buckets must be to hide most communication.
 *
 * Interface: buckets_plan() is the rule. bucket_caps_choose() comes before ddp_create(); the other two are its parts. */
#ifndef LOCKSTEP_DDP_BUCKET_PLAN_H
#define LOCKSTEP_DDP_BUCKET_PLAN_H

#include "autograd/tape.h"
#include "comm/process_group.h"

/* Writes the bucket number of each of `count` sizes (bytes, in the order given) to bucket_of (count), and returns the
 * number of buckets. A bucket is closed as soon as it holds at least its cap: first_cap for bucket 0, cap for all
 * others. Source: the rule of PyTorch's compute_bucket_assignment_by_size. */
int buckets_plan(const size_t *sizes, int count, size_t first_cap, size_t cap, int *bucket_of);

/* An all-reduce of n bytes takes latency + n / bytes_per_second. */
typedef struct Link {
    double latency, bytes_per_second;
} Link;

typedef struct BucketCaps {
    size_t first, others;   /* bytes, as buckets_plan() takes them */
    int buckets;            /* that they make */
    double exposed, hidden; /* predicted seconds of communication after backward, and behind it */
    double backward;        /* seconds; this and the link are what the prediction is for */
    Link link;
} BucketCaps;

/* What buckets with these caps cost. sizes (bytes), ready (seconds): of `count` gradients, in the order in which
 * buckets are filled. backward: seconds of the whole pass. */
BucketCaps bucket_caps_predict(const size_t *sizes, const double *ready, int count, double backward, Link link,
                               size_t first_cap, size_t cap);

/* The caps that leave the least communication exposed, with as few buckets as that takes. */
BucketCaps bucket_caps_best(const size_t *sizes, const double *ready, int count, double backward, Link link);

/* The same for this model. Times tape_backward(tape, loss, seed), whose gradients are of no use afterwards, and some
 * all-reduces. overlap: false: no all-reduce begins before the end of backward (stage 2). All ranks get the same
 * result. Collective. */
BucketCaps bucket_caps_choose(ProcessGroup *pg, const ParameterList *parameters, Tape *tape, Tensor *loss, float seed,
                              bool overlap);

#endif
