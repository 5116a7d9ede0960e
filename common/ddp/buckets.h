/* buckets.h: gradients side by side in a few large pieces of memory, each all-reduced as one message.
 *
 * Interface: buckets_create() plans the buckets and moves the gradients there: a parameter's tensor.grad then points
 * INTO its bucket, so that nothing is copied in or out. Call buckets_free() at the end.
 */
#ifndef LOCKSTEP_DDP_BUCKETS_H
#define LOCKSTEP_DDP_BUCKETS_H

#include "autograd/tensor.h"
#include "comm/process_group.h"

typedef struct Bucket {
    char name[24];          /* "bucket 0": for errors and timelines */
    Parameter **parameters; /* in the order of their slices; owned (the list, not the parameters) */
    int count;
    float *data;            /* all their gradients, each slice aligned to device_alignment(); in Buckets.block */
    size_t elements;        /* of data, the gaps included */
    /* Stages 3 and 4, during a backward pass: */
    int pending; /* parameters whose gradient is not ready yet */
    Work *work;  /* the bucket's all-reduce, from its launch to work_wait(); else NULL */
    void *half;  /* stage 4: the copy that is sent if gradients are sent in 16 bits, in Buckets.half_block; or NULL */
} Bucket;

typedef struct Buckets {
    Bucket *items;
    int count;
    int *of_parameter;  /* by parameter index: the number of its bucket, -1 for a frozen parameter */
    float *block;       /* all buckets' data, one after the other; owned */
    uint16_t *half_block; /* all buckets' halves, in the same way; owned, or NULL */
    ProcessGroup *pg;   /* allocated the gradients' memory; not owned */
} Buckets;

/* Places the gradient of every trained parameter in a bucket, zeroed. order: the indices of all trained parameters, in
 * the order in which their gradients become ready; NULL: the reverse of registration, which approximates that order.
 * The memory comes from pg_alloc_shared(), so all three functions are collective; pg NULL: plain device memory. */
void buckets_create(Buckets *buckets, ProcessGroup *pg, ParameterList *parameters, const int *order, size_t first_cap,
                    size_t cap);
/* Gives each bucket a buffer of 16-bit elements, as many as it has gradients: Bucket.half. */
void buckets_add_halves(Buckets *buckets);
void buckets_free(Buckets *buckets);

size_t buckets_largest(const Buckets *buckets); /* number of elements of the largest bucket */

#endif
