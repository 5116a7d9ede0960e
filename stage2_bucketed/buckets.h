/* buckets.h: the gradients lie side by side in a few pieces of memory, the buckets. One all-reduce sends a bucket.
 *
 *   bucket 0:  | the last layer's bias | gap | its weight ...... | gap | the bias of the layer before | gap |
 *   bucket 1:  | the weight of the layer before .................... | gap | ...
 *
 * gap: unused bytes, so that the next gradient begins at an aligned address.
 *
 * Interface: buckets_create() plans the buckets and places the gradients: a parameter's tensor.grad then points INTO
 * its bucket, so that nothing is copied in or out. Call buckets_free() at the end.
 */
#ifndef LOCKSTEP_STAGE2_BUCKETS_H
#define LOCKSTEP_STAGE2_BUCKETS_H

#include "autograd/tensor.h"
#include "comm/process_group.h"

typedef struct Bucket {
    char name[24];          /* "bucket 0": for errors and timelines */
    Parameter **parameters; /* in the order of their gradients in `data`; owned (the list, not the parameters) */
    int count;              /* of parameters */
    float *data;            /* all their gradients, with the gaps; a part of Buckets.block */
    size_t elements;        /* of data */
    int pending;            /* stages 3 and 4: parameters whose gradient is not ready yet in this backward pass */
    Work *work;             /* stages 3 and 4: the bucket's all-reduce, from its launch to work_wait(); else NULL */
    void *encoded;          /* stage 4: the codec's buffer; not owned; NULL if the codec needs none */
} Bucket;

typedef struct Buckets {
    Bucket *items;     /* owned */
    int count;
    int *of_parameter; /* by parameter index: the number of its bucket, -1 for a frozen parameter; owned */
    float *block;      /* all buckets' data, one after the other; owned */
    ProcessGroup *pg;  /* it allocated the block; not owned */
} Buckets;

/* Chooses a bucket for each of `count` gradients: bucket_of[i] is its number, from 0. Returns how many buckets there
 * are. sizes: the gradients' bytes, without gaps, in the order in which they fill the buckets. Gradients are added to a
 * bucket until its size reaches its cap or passes it, so it may be larger. The cap of bucket 0 is first_cap, that of
 * the others is cap. Source: PyTorch's compute_bucket_assignment_by_size. */
int buckets_plan(const size_t *sizes, int count, size_t first_cap, size_t cap, int *bucket_of);

/* Places the zeroed gradient of every trained parameter in a bucket. order: the indices of all trained parameters, in
 * the order in which their gradients become ready; NULL: the reverse of registration, which approximates that order.
 * Caps are in bytes. The memory comes from pg_alloc_shared(), so buckets_create() and buckets_free() are collective:
 * all ranks must call them. pg may be NULL in tests of the plan. */
void buckets_create(Buckets *buckets, ProcessGroup *pg, ParameterList *parameters, const int *order, size_t first_cap,
                    size_t cap);
void buckets_free(Buckets *buckets);

#endif
