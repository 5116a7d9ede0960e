/* weights.h: when whole weights are gathered, and when they are dropped.
 *
 * Levels 1 and 2: every rank holds all weights, but after an update only its own shard of each bucket is new. All
 * buckets are gathered behind the next forward pass.
 * Level 3: a rank holds its shards. A bucket's whole weights are gathered when an operation needs them, and dropped
 * when an operation needs other ones. Every micro-batch makes the same gathers in the same order. The first one writes
 * them into a schedule, and from then on the next bucket is gathered while this one is used.
 */
#ifndef LOCKSTEP_STAGE5_WEIGHTS_H
#define LOCKSTEP_STAGE5_WEIGHTS_H

#include "stage5_sharded/shards.h"

typedef struct Weights {
    Shards *shards;   /* not owned */
    bool everything;  /* weights_gather_all() was called: nothing needs to be gathered or dropped */
    /* Level 3: */
    int *schedule;    /* numbers of buckets, in the order of a micro-batch's gathers; owned */
    int length, room; /* of the schedule */
    bool complete;    /* the schedule is; false in the first micro-batch */
    int next;         /* in the schedule: the next gather */
} Weights;

void weights_create(Weights *weights, Shards *shards);
void weights_free(Weights *weights);

/* The parameters-needed event: on return these parameters' values are whole. */
void weights_need(Weights *weights, Parameter *const *parameters, int count);

/* The optimizer has updated this rank's shards: starts the gathers of the next forward pass. Level 3: of its first
 * layer. Old whole weights are dropped. */
void weights_after_update(Weights *weights);
/* Call at the start and the end of a micro-batch. */
void weights_begin_micro_batch(Weights *weights);
void weights_end_micro_batch(Weights *weights, bool update_follows);

/* Gathers everything, and waits for it. It stays until the next micro-batch or update. */
void weights_gather_all(Weights *weights);

#endif
