/* bucket_caps.h: how large buckets must be to hide most of the communication, from what backward and the link take.
 *
 * Interface: bucket_caps_choose() before ddp_create(), on all ranks; the other two are its parts.
 */
#ifndef LOCKSTEP_DDP_BUCKET_CAPS_H
#define LOCKSTEP_DDP_BUCKET_CAPS_H

#include "autograd/tape.h"
#include "comm/process_group.h"

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

/* The caps with the fewest buckets, of all that leave about the least communication exposed. */
BucketCaps bucket_caps_best(const size_t *sizes, const double *ready, int count, double backward, Link link);

/* The same for this model. Runs tape_backward(tape, loss, seed), whose gradients are of no use afterwards, and times it;
 * then measures the link with all-reduces. overlap: false: no all-reduce begins before the end of backward (stage 2).
 * All ranks get the same result. Collective. */
BucketCaps bucket_caps_choose(ProcessGroup *pg, const ParameterList *parameters, Tape *tape, Tensor *loss, float seed,
                              bool overlap);

#endif
