/* shards.h: buckets of parameters that are cut into one shard per rank.
 *
 * A bucket holds the weights of its parameters side by side, and their gradients in the same places. Rank r of N owns
 * the r-th of N equal parts: its shard. Parameters and shards begin at multiples of SQUARES_BLOCK elements. So a shard
 * may begin in the middle of a parameter, but not of a block of which device_sum_of_squares() makes one number.
 *
 *   bucket of 2 ranks:   | c_fc.bias .. | c_fc.weight ................... | (padding) |
 *                        | shard of rank 0 ........ | shard of rank 1 ............... |
 *
 * Interface: shards_create() takes the weights over, shards_free() gives them back. In between, the level
 * decides what is always whole. From level 2 on, whole gradients exist only between shards_place_gradients() and
 * shards_drop_gradients(). At level 3, whole weights exist only between shards_place_weights() and
 * shards_drop_weights().
 */
#ifndef LOCKSTEP_STAGE5_SHARDS_H
#define LOCKSTEP_STAGE5_SHARDS_H

#include "stage5_sharded/sharded.h"

typedef struct ShardedBucket {
    char gradients_name[32], weights_name[32]; /* "gradients of bucket 0": for errors and timelines */
    Parameter **parameters; /* owned (the list, not the parameters) */
    size_t *offsets;        /* by place in that list: where the parameter begins, in elements; owned */
    DType *types;           /* and how its weights are gathered (gathers.h); owned */
    int count;
    size_t elements;        /* world_size * shard_elements */
    size_t shard_elements;
    float *weights, *gradients;            /* whole: `elements`; NULL while there are none */
    float *weight_shard, *gradient_shard;  /* this rank's: shard_elements; always there */
    /* gathers.h: */
    size_t message_bytes;    /* that a rank sends; 0: its shard, as it is */
    unsigned char *messages; /* all ranks', while a gather is under way; owned */
    bool is_rounded;         /* the last gather sent some weights in 16 bits */
    /* The stage's own: */
    int pending;                   /* parameters whose gradient is not ready yet */
    Work *reduce_scatter, *gather; /* from the launch to work_wait(); else NULL */
    void *encoded; /* the codec's buffer, from device_alloc(), while gradients are sent; owned; may be NULL */
} ShardedBucket;

/* The memory of a dropped bucket, kept until a bucket of the same size needs it. */
typedef struct Spare {
    float *block; /* owned; NULL: none */
    size_t bytes;
} Spare;
enum { SPARES = 2 };

typedef struct Shards {
    ProcessGroup *pg; /* each of its ranks holds one shard; all ranks, or shard_ranks of them */
    bool owns_group;  /* pg is a group of shard_ranks */
    int level; /* ShardingOptions.level */
    ShardedBucket *buckets; /* owned */
    int count;
    int *of_parameter; /* by parameter index: the number of its bucket, -1 for a frozen parameter; owned */
    Slice *slices;     /* by parameter index: what this rank updates; owned */
    Partition partition;
    float *weight_block, *gradient_block; /* of what is always there; owned */
    Spare spares[SPARES]; /* the newest first */
    ShardedMemory memory;
} Shards;

/* Plans the buckets, in the reverse order of registration, and moves the weights there. All ranks must hold the same
 * weights. Both are collective. */
void shards_create(Shards *shards, ProcessGroup *pg, ParameterList *parameters, const DdpOptions *options);
/* Every rank must hold all whole weights. They return to memory of the list of parameters. */
void shards_free(Shards *shards);

/* The parameter's bucket; NULL if it is frozen: every rank holds it, and no rank updates it. */
ShardedBucket *shards_bucket(const Shards *shards, const Parameter *parameter);

/* The part of the bucket's parameter number i that lies in a rank's shard; without addresses. */
Slice shards_slice_of_rank(const ShardedBucket *bucket, int i, int rank);

/* Gives the bucket whole gradients, zeroed, if it has none. Level 1: it always has. */
void shards_place_gradients(Shards *shards, ShardedBucket *bucket);
void shards_drop_gradients(Shards *shards, ShardedBucket *bucket);
/* Gives the bucket memory for whole weights, if it has none: all_gather fills it. Levels 1, 2: it always has. */
void shards_place_weights(Shards *shards, ShardedBucket *bucket);
void shards_drop_weights(Shards *shards, ShardedBucket *bucket);
/* Adds `bytes` to memory.gathered_weights, which counts messages with weights, too. */
void shards_count_gathered(Shards *shards, size_t bytes);

#endif
