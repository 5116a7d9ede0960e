/* sampler.c: draws an epoch's list and deals it out to ranks and micro-batches.
 *
 * note: dealing-out
 * 10 samples, 3 ranks, global batch 6, no shuffle:
 *     place      0  1  2  3  4  5 | 6  7  8  9 10 11
 *     sample     0  1  2  3  4  5 | 6  7  8  9  0  1     12 places: round to the start again
 *     rank       0  1  2  0  1  2 | 0  1  2  0  1  2     4 places for each rank; with drop_last 9 places, 3 each
 *     step             0          |        1
 */
#include "data/sampler.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/rng.h"

/* Keeps the shuffle's random numbers apart from the weights', which come from the same --seed. */
static const uint64_t SHUFFLE_STREAM = 0xc6a4f30b82d1975eu;

void sampler_create(Sampler *sampler, int64_t dataset_size, int world_size, int64_t global_batch, uint64_t seed,
                    bool shuffle, bool drop_last)
{
    CHECK(dataset_size > 0 && world_size > 0 && global_batch > 0, "a sampler of %lld samples, %d ranks, batch %lld",
          (long long)dataset_size, world_size, (long long)global_batch);
    if (drop_last && dataset_size < world_size) {
        die("--drop-last: %lld samples on %d ranks leave none for any rank; leave the flag out or use fewer ranks",
            (long long)dataset_size, world_size);
    }
    int64_t per_rank = dataset_size / world_size;
    if (!drop_last && dataset_size % world_size != 0) {
        per_rank++;
    }
    *sampler = (Sampler){
        .dataset_size = dataset_size,
        .world_size = world_size,
        .global_batch = global_batch,
        .seed = seed,
        .shuffle = shuffle,
        .drop_last = drop_last,
        .length = per_rank * world_size,
        .epoch = -1,
    };
    /* All samples are shuffled before the tail is dropped, so the list needs room for the longer of the two. */
    int64_t room = sampler->length > dataset_size ? sampler->length : dataset_size;
    sampler->list = alloc_or_fault((size_t)room * sizeof *sampler->list);
}

void sampler_free(Sampler *sampler)
{
    free(sampler->list);
    *sampler = (Sampler){0};
}

/* Fisher and Yates' shuffle: each order is equally likely. */
static void shuffle_list(int64_t *list, int64_t count, Rng *rng)
{
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t j = (int64_t)rng_below(rng, (uint64_t)i + 1);
        int64_t swapped = list[i];
        list[i] = list[j];
        list[j] = swapped;
    }
}

void sampler_set_epoch(Sampler *sampler, long epoch)
{
    CHECK(epoch >= 0, "epoch %ld", epoch);
    if (epoch == sampler->epoch) {
        return;
    }
    /* From 0, 1, 2, ... anew: the list depends on seed and epoch, not on the epochs before it. */
    for (int64_t i = 0; i < sampler->dataset_size; i++) {
        sampler->list[i] = i;
    }
    if (sampler->shuffle) {
        Rng rng;
        rng_seed(&rng, sampler->seed ^ SHUFFLE_STREAM);
        rng_seed(&rng, rng_bits(&rng) + (uint64_t)epoch); /* seed + epoch alone would make seed 1 repeat seed 0 */
        shuffle_list(sampler->list, sampler->dataset_size, &rng);
    }
    /* Round to the start again: more than once if there are fewer samples than ranks. */
    for (int64_t place = sampler->dataset_size; place < sampler->length; place++) {
        sampler->list[place] = sampler->list[place - sampler->dataset_size];
    }
    sampler->epoch = epoch;
}

int64_t sampler_steps_per_epoch(const Sampler *sampler)
{
    int64_t whole = sampler->length / sampler->global_batch;
    return sampler->length % sampler->global_batch == 0 ? whole : whole + 1;
}

/* The places [first, end) of a step's global batch. */
static void places_of_step(const Sampler *sampler, int64_t step, int64_t *first, int64_t *end)
{
    CHECK(step >= 0 && step < sampler_steps_per_epoch(sampler), "step %lld of an epoch of %lld steps", (long long)step,
          (long long)sampler_steps_per_epoch(sampler));
    *first = step * sampler->global_batch;
    int64_t left = sampler->length - *first;
    *end = *first + (left < sampler->global_batch ? left : sampler->global_batch);
}

int64_t sampler_global_count(const Sampler *sampler, int64_t step)
{
    int64_t first, end;
    places_of_step(sampler, step, &first, &end);
    return end - first;
}

int64_t sampler_indices(const Sampler *sampler, int64_t step, int rank, int k, int K, int64_t *indices)
{
    CHECK(sampler->epoch >= 0, "no epoch set");
    CHECK(rank >= 0 && rank < sampler->world_size, "rank %d of %d", rank, sampler->world_size);
    CHECK(k >= 0 && k < K, "micro-batch %d of %d", k, K);
    int64_t first, end;
    places_of_step(sampler, step, &first, &end);

    /* The rank's share: places p = rank (modulo the world size) from `first` on. */
    int64_t world_size = sampler->world_size;
    int64_t place = first + (rank - first % world_size + world_size) % world_size;
    int64_t share = place < end ? (end - place - 1) / world_size + 1 : 0;

    /* Micro-batch k of it: parts that differ by one sample at most, without a gap for any K. */
    int64_t from = share * k / K, to = share * (k + 1) / K;
    for (int64_t i = from; i < to; i++) {
        indices[i - from] = sampler->list[place + i * world_size];
    }
    return to - from;
}

int64_t sampler_whole_batch(const Sampler *sampler, int64_t step, int64_t *indices)
{
    CHECK(sampler->epoch >= 0, "no epoch set");
    int64_t first, end;
    places_of_step(sampler, step, &first, &end);
    for (int64_t place = first; place < end; place++) {
        indices[place - first] = sampler->list[place];
    }
    return end - first;
}
