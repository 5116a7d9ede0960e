/* buckets.h: gradients side by side in a few large pieces of memory, each all-reduced as one message.
 *
 * Interface: buckets_create() plans the buckets and moves the gradients there: a parameter's tensor.grad then points
 * INTO its bucket, so that nothing is copied in or out. Call buckets_free() at the end.
 */
#ifndef LOCKSTEP_DDP_BUCKETS_H
#define LOCKSTEP_DDP_BUCKETS_H

#include "autograd/tensor.h"
#include "comm/process_group.h"
#include "ddp/bucket_plan.h"
#include "ddp/codec.h"

typedef struct Bucket {
    char name[24];          /* "bucket 0": for errors and timelines */
    Parameter **parameters; /* in the order of their slices; owned (the list, not the parameters) */
    int count;
    float *data;            /* all their gradients, each slice aligned to device_alignment(); in Buckets.block */
    size_t elements;        /* of data, the gaps included */
    /* Stages 3 and 4, during a backward pass: */
    int pending; /* parameters whose gradient is not ready yet */
    Work *work;  /* the bucket's all-reduce, from its launch to work_wait(); else NULL */
    void *sent;  /* stage 4: the codec's buffer, in Buckets.sent_block; NULL if the codec needs none */
} Bucket;

typedef struct Buckets {
    Bucket *items;
    int count;
    int *of_parameter;  /* by parameter index: the number of its bucket, -1 for a frozen parameter */
    float *block;       /* all buckets' data, one after the other; owned */
    char *sent_block;   /* all buckets' `sent`, in the same way; owned, or NULL */
    size_t sent_bytes;  /* of that block */
    ProcessGroup *pg;   /* allocated the gradients' memory; not owned */
} Buckets;

/* Places the gradient of every trained parameter in a bucket, zeroed. order: the indices of all trained parameters, in
 * the order in which their gradients become ready; NULL: the reverse of registration, which approximates that order.
 * The memory comes from pg_alloc_shared(), so all three functions are collective. Only tests of the plan alone pass
 * NULL for pg. They get plain device memory. */
void buckets_create(Buckets *buckets, ProcessGroup *pg, ParameterList *parameters, const int *order, size_t first_cap,
                    size_t cap);
/* Gives each bucket what the codec needs for what is sent: Bucket.sent. */
void buckets_add_codec_buffers(Buckets *buckets, const GradientCodec *codec);
void buckets_free(Buckets *buckets);

size_t buckets_largest(const Buckets *buckets); /* number of elements of the largest bucket */

#endif
