/* weights.c: gathers whole weights before they are used, and drops them after use. */
#include "stage5_sharded/weights.h"

#include <stdlib.h>

#include "base/check.h"
#include "stage5_sharded/gathers.h"

void weights_create(Weights *weights, Shards *shards)
{
    *weights = (Weights){.shards = shards};
}

void weights_free(Weights *weights)
{
    free(weights->schedule);
}

/* ---- one bucket ---- */

static bool is_gathered(const ShardedBucket *bucket)
{
    return bucket->weights != NULL && bucket->gather == NULL;
}

/* ---- level 3: the schedule ---- */

static void add_to_schedule(Weights *weights, int number)
{
    if (weights->length == weights->room) {
        weights->room = 2 * weights->room + weights->shards->count;
        weights->schedule = realloc(weights->schedule, (size_t)weights->room * sizeof *weights->schedule);
        CHECK(weights->schedule != NULL, "out of memory for the schedule of gathers");
    }
    weights->schedule[weights->length++] = number;
}

/* note: gather-schedule
 * Starts the next gather of the micro-batch: that of bucket `number`. All ranks run the same operations in the same
 * order, so they start the same gathers in the same order, between the same reduce-scatters. */
static void start_next(Weights *weights, int number)
{
    if (!weights->complete)
        add_to_schedule(weights, number);
    CHECK(weights->next < weights->length && weights->schedule[weights->next] == number,
          "%s are needed out of turn: with --zero 3, every micro-batch must use the weights in the same order",
          weights->shards->buckets[number].weights_name);
    weights->next++;
    gathers_start(weights->shards, &weights->shards->buckets[number], false);
}

/* Starts the gather that comes after the current one, so that it runs behind the computation. */
static void prefetch(Weights *weights)
{
    if (!weights->complete || weights->next == weights->length)
        return;
    const int number = weights->schedule[weights->next];
    if (weights->shards->buckets[number].weights == NULL)
        start_next(weights, number);
}

/* Drops all whole weights, except those of the parameters given and those that are on their way. */
static void drop_others(Weights *weights, Parameter *const *parameters, int count)
{
    for (int b = 0; b < weights->shards->count; b++) {
        ShardedBucket *bucket = &weights->shards->buckets[b];
        bool keep = !is_gathered(bucket);
        for (int i = 0; i < count; i++)
            keep = keep || shards_bucket(weights->shards, parameters[i]) == bucket;
        if (!keep)
            shards_drop_weights(weights->shards, bucket);
    }
}

/* ---- events ---- */

static bool all_are_gathered(const Weights *weights, Parameter *const *parameters, int count)
{
    for (int i = 0; i < count; i++) {
        const ShardedBucket *bucket = shards_bucket(weights->shards, parameters[i]);
        if (bucket != NULL && !is_gathered(bucket))
            return false;
    }
    return true;
}

/* note: parameters-needed
 * If the weights are not there, a new layer begins. Level 3 drops the weights of the layer before, waits for these, and
 * starts to gather those of the next layer. Levels 1 and 2 have started all gathers; they only wait for these. */
void weights_need(Weights *weights, Parameter *const *parameters, int count)
{
    const bool dropped_after_use = weights->shards->level == 3;
    if (all_are_gathered(weights, parameters, count))
        return;
    if (dropped_after_use)
        drop_others(weights, parameters, count);
    for (int i = 0; i < count; i++) {
        ShardedBucket *bucket = shards_bucket(weights->shards, parameters[i]);
        if (bucket == NULL)
            continue; /* frozen */
        if (bucket->weights == NULL)
            start_next(weights, weights->shards->of_parameter[parameters[i]->index]);
        gathers_finish(weights->shards, bucket);
    }
    if (dropped_after_use)
        prefetch(weights);
}

/* note: stage5-update
 * Levels 1 and 2 start the gathers in the order in which forward needs the weights: the buckets' order reversed. */
void weights_after_update(Weights *weights)
{
    if (weights->shards->level == 3) {
        weights_end_micro_batch(weights, false);
        return;
    }
    for (int b = weights->shards->count - 1; b >= 0; b--)
        gathers_start(weights->shards, &weights->shards->buckets[b], true);
}

void weights_begin_micro_batch(Weights *weights)
{
    gathers_forget_reads(weights->shards); /* of an evaluation, too */
    if (weights->everything && weights->shards->level == 3)
        weights_end_micro_batch(weights, false);
    weights->everything = false;
}

/* Level 3: nothing is kept, so that every micro-batch begins alike and makes the same gathers. Levels 1 and 2: a gather
 * of weights that the step did not use may still read this rank's shard, which the update changes. */
void weights_end_micro_batch(Weights *weights, bool update_follows)
{
    for (int b = 0; b < weights->shards->count && update_follows; b++)
        gathers_finish(weights->shards, &weights->shards->buckets[b]);
    if (weights->shards->level < 3)
        return;
    drop_others(weights, NULL, 0);
    if (weights->complete)
        gathers_check_types(weights->shards);
    else if (weights->length > 0) {
        gathers_choose_types(weights->shards); /* by now it is known which operations read each weight */
        weights->complete = true;
    }
    weights->next = 0;
    if (!update_follows)
        prefetch(weights);
}

void weights_gather_all(Weights *weights)
{
    const size_t peak = weights->shards->memory.peak_gathered_weights;
    for (int b = 0; b < weights->shards->count; b++) {
        ShardedBucket *bucket = &weights->shards->buckets[b];
        if (bucket->weights != NULL && bucket->is_rounded) {
            gathers_finish(weights->shards, bucket);
            shards_drop_weights(weights->shards, bucket);
        }
        if (bucket->weights == NULL)
            gathers_start(weights->shards, bucket, true);
    }
    for (int b = 0; b < weights->shards->count; b++)
        gathers_finish(weights->shards, &weights->shards->buckets[b]);
    weights->everything = true;
    weights->shards->memory.peak_gathered_weights = peak; /* what a step needs; this is not a part of a step */
}
