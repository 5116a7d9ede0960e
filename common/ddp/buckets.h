/* buckets.h: gradients side by side in a few large pieces of memory, each of which is all-reduced at once.
 *
 * Interface: buckets_create() decides which parameter goes where and moves the gradients there: a parameter's
 * tensor.grad points INTO its bucket, so nothing is copied in or out. buckets_free() at the end.
 */
#ifndef LOCKSTEP_DDP_BUCKETS_H
#define LOCKSTEP_DDP_BUCKETS_H

#include "autograd/parameter.h"
#include "comm/process_group.h"

typedef struct Bucket {
    char name[24];          /* "bucket 0": for errors and timelines */
    Parameter **parameters; /* in the order of their slices; owned (the list, not the parameters) */
    int count;
    float *data;            /* all their gradients, each slice on a 64-byte boundary; owned */
    size_t elements;        /* of data, the gaps included */
    /* Stages 3 and 4, during a backward pass: */
    int pending; /* parameters whose gradient is not complete yet */
    Work *work;  /* its all-reduce under way */
    void *half;  /* stage 4: what travels instead of data, if gradients travel in 16 bits; owned, or NULL */
} Bucket;

typedef struct Buckets {
    Bucket *items;
    int count;
    int *of_parameter;  /* by parameter index: the number of its bucket, -1 for a frozen parameter */
    ProcessGroup *pg;   /* whose memory the gradients lie in; not owned */
} Buckets;

/* The bucket number of each of `count` sizes (bytes), in the order given; returns how many buckets there are. A bucket
 * takes sizes until it holds at least its cap, then it is closed: first_cap for bucket 0, cap for all others.
 * Source: the rule of PyTorch's compute_bucket_assignment_by_size. */
int buckets_plan(const size_t *sizes, int count, size_t first_cap, size_t cap, int *bucket_of);

/* Gives every trained parameter its place. order: parameter indices in the order in which their gradients become
 * ready, trained ones only; NULL: the reverse of registration, which is about that order. Gradients are zero.
 * Their memory is pg's (pg_alloc_shared), so both are collective; pg NULL: no group, plain device memory. */
void buckets_create(Buckets *buckets, ProcessGroup *pg, ParameterList *parameters, const int *order, size_t first_cap,
                    size_t cap);
void buckets_free(Buckets *buckets);

size_t buckets_largest(const Buckets *buckets); /* elements of the largest one */

#endif
