/* sampler.c: draws an epoch's list and distributes it over ranks and micro-batches.
 *
 * note: dealing-out
 * 10 samples, 3 ranks, global batch 6, no shuffle:
 *     place      0  1  2  3  4  5 | 6  7  8  9 10 11
 *     sample     0  1  2  3  4  5 | 6  7  8  9  0  1     12 places: the list starts again
 *     rank       0  1  2  0  1  2 | 0  1  2  0  1  2     4 places for each rank; with drop_last 9 places, 3 each
 *     step             0          |        1
 *
 * note: own-data
 * 10 samples, of which 3 ranks have 5, 3 and 1 of their own (sampler_set_rank_samples), global batch 6, no shuffle:
 *     rank          0             1        2
 *     sample        0  1  2  3  4 | 5  6  7 | 8 |     no rank has sample 9
 *     step          0  0  1  1  2 | 0  0  1 | 0 |     step 0 has 5 samples, step 1 has 3, step 2 has 1
 */
#include "data/sampler.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"

/* Keeps the shuffle's random numbers different from those of the weights, which use the same --seed. */
static const uint64_t SHUFFLE_STREAM = 0xc6a4f30b82d1975eu;

static int64_t divide_rounding_up(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

void sampler_create(Sampler *sampler, int64_t dataset_size, int world_size, int64_t global_batch, uint64_t seed,
                    bool shuffle, bool drop_last)
{
    CHECK(dataset_size > 0 && world_size > 0 && global_batch > 0, "a sampler of %lld samples, %d ranks, batch %lld",
          (long long)dataset_size, world_size, (long long)global_batch);
    if (drop_last && dataset_size < world_size)
        die("--drop-last: %lld samples on %d ranks leave none for any rank; leave the flag out or use fewer ranks",
            (long long)dataset_size, world_size);
    int64_t per_rank = drop_last ? dataset_size / world_size : divide_rounding_up(dataset_size, world_size);
    *sampler = (Sampler){.dataset_size = dataset_size, .world_size = world_size, .global_batch = global_batch,
                         .seed = seed, .shuffle = shuffle, .drop_last = drop_last, .length = per_rank * world_size,
                         .steps = divide_rounding_up(per_rank * world_size, global_batch), .epoch = -1};
    /* All samples are shuffled before the tail is dropped, so the list needs room for the longer of the two. */
    int64_t room = sampler->length > dataset_size ? sampler->length : dataset_size;
    sampler->list = alloc_or_fault((size_t)room * sizeof *sampler->list);
}

void sampler_create_like(Sampler *sampler, const Sampler *other)
{
    sampler_create(sampler, other->dataset_size, other->world_size, other->global_batch, other->seed, other->shuffle,
                   other->drop_last);
    sampler->batch_offset = other->batch_offset;
    if (other->pieces != NULL) {
        size_t bytes = (size_t)other->world_size * sizeof *other->pieces;
        sampler->pieces = memcpy(alloc_or_fault(bytes), other->pieces, bytes);
        sampler->length = other->length;
        sampler->steps = other->steps;
    }
}

void sampler_set_rank_samples(Sampler *sampler, const int64_t *rank_samples)
{
    if (rank_samples == NULL)
        return;
    int world_size = sampler->world_size;
    CHECK(sampler->epoch < 0 && sampler->pieces == NULL,
          "call sampler_set_rank_samples() once, before the first epoch");
    CHECK(sampler->global_batch % world_size == 0, "%d ranks with their own data, batch %lld", world_size,
          (long long)sampler->global_batch);
    int64_t first = 0, fewest = INT64_MAX, most = 0;
    sampler->pieces = alloc_or_fault((size_t)world_size * sizeof *sampler->pieces);
    for (int rank = 0; rank < world_size; rank++) {
        sampler->pieces[rank] = (Piece){first, rank_samples[rank], rank_samples[rank]};
        first += rank_samples[rank];
        fewest = rank_samples[rank] < fewest ? rank_samples[rank] : fewest;
        most = rank_samples[rank] > most ? rank_samples[rank] : most;
    }
    if (first > sampler->dataset_size)
        die("--rank-samples: the ranks want %lld samples together, but the data set has %lld", (long long)first,
            (long long)sampler->dataset_size);
    sampler->length = sampler->drop_last ? fewest * world_size : first;
    for (int rank = 0; rank < world_size && sampler->drop_last; rank++)
        sampler->pieces[rank].used = fewest;
    sampler->steps = divide_rounding_up(sampler->drop_last ? fewest : most, sampler->global_batch / world_size);
}

void sampler_free(Sampler *sampler)
{
    free(sampler->list);
    free(sampler->pieces);
    *sampler = (Sampler){0};
}

/* Fisher and Yates' shuffle: all orders have the same probability. */
static void shuffle_list(int64_t *list, int64_t count, Rng *rng)
{
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t j = (int64_t)rng_below(rng, (uint64_t)i + 1);
        int64_t swapped = list[i];
        list[i] = list[j];
        list[j] = swapped;
    }
}

/* Shuffles all samples, or each rank's own samples among themselves. */
static void shuffle_samples(Sampler *sampler, Rng *rng)
{
    if (sampler->pieces == NULL) {
        shuffle_list(sampler->list, sampler->dataset_size, rng);
        return;
    }
    for (int rank = 0; rank < sampler->world_size; rank++)
        shuffle_list(sampler->list + sampler->pieces[rank].first, sampler->pieces[rank].samples, rng);
}

void sampler_set_epoch(Sampler *sampler, long epoch)
{
    CHECK(epoch >= 0, "epoch %ld", epoch);
    if (epoch == sampler->epoch)
        return;
    /* Starts from 0, 1, 2, ... again, so that the list depends on seed and epoch, but not on earlier epochs. */
    for (int64_t i = 0; i < sampler->dataset_size; i++)
        sampler->list[i] = i;
    if (sampler->shuffle) {
        Rng rng;
        rng_seed(&rng, sampler->seed ^ SHUFFLE_STREAM);
        rng_seed(&rng, rng_bits(&rng) + (uint64_t)epoch); /* with seed + epoch alone, seed 1 would repeat seed 0 */
        shuffle_samples(sampler, &rng);
    }
    /* Continues at the start of the list, more than once if there are fewer samples than ranks. */
    for (int64_t place = sampler->dataset_size; place < sampler->length; place++)
        sampler->list[place] = sampler->list[place - sampler->dataset_size];
    sampler->epoch = epoch;
}

/* How many samples the first `steps` steps of an epoch have. */
static int64_t samples_of_steps(const Sampler *sampler, int64_t steps)
{
    int64_t samples = 0, places = steps * sampler->global_batch;
    if (sampler->pieces == NULL)
        return places < sampler->length ? places : sampler->length;
    for (int rank = 0; rank < sampler->world_size; rank++) {
        const int64_t used = sampler->pieces[rank].used, own = places / sampler->world_size;
        samples += own < used ? own : used;
    }
    return samples;
}

long sampler_epoch_of_step(const Sampler *sampler, long step, int64_t *step_of_epoch)
{
    const int64_t batch = step + sampler->batch_offset;
    CHECK(batch >= 0, "step %ld is batch %lld", step, (long long)batch);
    *step_of_epoch = batch % sampler->steps;
    return (long)(batch / sampler->steps);
}

DataPlace sampler_place(const Sampler *sampler, long step)
{
    int64_t step_of_epoch;
    const long epoch = sampler_epoch_of_step(sampler, step, &step_of_epoch);
    return (DataPlace){epoch, samples_of_steps(sampler, step_of_epoch)};
}

int64_t sampler_resume(Sampler *sampler, long step, DataPlace place)
{
    int64_t low = 0, high = sampler->steps; /* finds the largest number of steps with at most place.samples */
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (samples_of_steps(sampler, middle) <= place.samples)
            low = middle;
        else
            high = middle - 1;
    }
    sampler->batch_offset = place.epoch * sampler->steps + low - step;
    return low < sampler->steps ? place.samples - samples_of_steps(sampler, low) : 0; /* else the epoch has ended */
}

int64_t sampler_rank_steps(const Sampler *sampler, int rank)
{
    CHECK(rank >= 0 && rank < sampler->world_size, "rank %d of %d", rank, sampler->world_size);
    if (sampler->pieces == NULL)
        return sampler->steps;
    return divide_rounding_up(sampler->pieces[rank].used, sampler->global_batch / sampler->world_size);
}

int64_t sampler_steps_per_epoch(const Sampler *sampler)
{
    return sampler->steps;
}

int64_t sampler_largest_share(const Sampler *sampler)
{
    int64_t batch = sampler->global_batch, most = 0;
    if (sampler->pieces == NULL)
        return divide_rounding_up(sampler->length < batch ? sampler->length : batch, sampler->world_size);
    for (int rank = 0; rank < sampler->world_size; rank++)
        most = sampler->pieces[rank].used > most ? sampler->pieces[rank].used : most;
    return most < batch / sampler->world_size ? most : batch / sampler->world_size;
}

static void check_step(const Sampler *sampler, int64_t step)
{
    CHECK(step >= 0 && step < sampler->steps, "step %lld of an epoch of %lld steps", (long long)step,
          (long long)sampler->steps);
}

/* The places [first, end) of a step's global batch, if ranks do not have their own data. */
static void places_of_step(const Sampler *sampler, int64_t step, int64_t *first, int64_t *end)
{
    *first = step * sampler->global_batch;
    int64_t left = sampler->length - *first;
    *end = *first + (left < sampler->global_batch ? left : sampler->global_batch);
}

/* A rank's part of a step: the places first, first + stride, ..., `count` of them. */
typedef struct Share {
    int64_t first, stride, count;
} Share;

/* The places p of the step with p modulo world_size = rank. */
static Share share_dealt_out(const Sampler *sampler, int64_t step, int rank)
{
    int64_t first, end, world_size = sampler->world_size;
    places_of_step(sampler, step, &first, &end);
    int64_t place = first + (rank - first % world_size + world_size) % world_size;
    return (Share){place, world_size, place < end ? (end - place - 1) / world_size + 1 : 0};
}

/* The next places of the rank's piece; none if the rank has run out of data. */
static Share share_of_own(const Sampler *sampler, int64_t step, int rank)
{
    const Piece *piece = &sampler->pieces[rank];
    int64_t batch = sampler->global_batch / sampler->world_size, left = piece->used - step * batch;
    return (Share){piece->first + step * batch, 1, left < 0 ? 0 : left < batch ? left : batch};
}

int64_t sampler_global_count(const Sampler *sampler, int64_t step)
{
    int64_t first, end, count = 0;
    check_step(sampler, step);
    if (sampler->pieces == NULL) {
        places_of_step(sampler, step, &first, &end);
        return end - first;
    }
    for (int rank = 0; rank < sampler->world_size; rank++)
        count += share_of_own(sampler, step, rank).count;
    return count;
}

/* Micro-batch k of the rank's share. The sizes of micro-batches differ by at most one sample. */
static Share share_of_micro_batch(const Sampler *sampler, int64_t step, int rank, int k, int K)
{
    CHECK(rank >= 0 && rank < sampler->world_size, "rank %d of %d", rank, sampler->world_size);
    CHECK(k >= 0 && k < K, "micro-batch %d of %d", k, K);
    check_step(sampler, step);
    Share share = sampler->pieces == NULL ? share_dealt_out(sampler, step, rank) : share_of_own(sampler, step, rank);
    int64_t from = share.count * k / K, to = share.count * (k + 1) / K;
    return (Share){share.first + from * share.stride, share.stride, to - from};
}

int64_t sampler_count(const Sampler *sampler, int64_t step, int rank, int k, int K)
{
    return share_of_micro_batch(sampler, step, rank, k, K).count;
}

int64_t sampler_indices(const Sampler *sampler, int64_t step, int rank, int k, int K, int64_t *indices)
{
    CHECK(sampler->epoch >= 0, "no epoch set");
    const Share share = share_of_micro_batch(sampler, step, rank, k, K);
    for (int64_t i = 0; i < share.count; i++)
        indices[i] = sampler->list[share.first + i * share.stride];
    return share.count;
}

int64_t sampler_places(const Sampler *sampler, int64_t step, int rank, int k, int K, int64_t *places)
{
    const Share share = share_of_micro_batch(sampler, step, rank, k, K);
    int64_t first = step * sampler->global_batch; /* the place in the list that is place 0 of the batch */
    if (sampler->pieces != NULL) {
        first = share_of_own(sampler, step, rank).first;
        for (int before = 0; before < rank; before++)
            first -= share_of_own(sampler, step, before).count;
    }
    for (int64_t i = 0; i < share.count; i++)
        places[i] = share.first + i * share.stride - first;
    return share.count;
}

int64_t sampler_whole_batch(const Sampler *sampler, int64_t step, int64_t *indices)
{
    int64_t first, end, count = 0;
    CHECK(sampler->epoch >= 0, "no epoch set");
    check_step(sampler, step);
    if (sampler->pieces != NULL) {
        for (int rank = 0; rank < sampler->world_size; rank++)
            count += sampler_indices(sampler, step, rank, 0, 1, indices + count);
        return count;
    }
    places_of_step(sampler, step, &first, &end);
    for (int64_t place = first; place < end; place++)
        indices[place - first] = sampler->list[place];
    return end - first;
}
