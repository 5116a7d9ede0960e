/* sampler.h: which samples each rank sees in which step; torch.utils.data.DistributedSampler's rules.
 *
 * An epoch is one list of sample numbers, the same on every rank: all samples, in an order drawn from seed and
 * epoch, its length made a multiple of the world size, by going round to its start again, or with drop_last by
 * leaving the tail away. Rank r takes places r, r + N, r + 2N, ... of the list. The global batch of a step is the next
 * `global_batch` places; the last batch of an epoch may be shorter, and ranks may differ by one sample where the
 * batch is no multiple of the world size.
 * Micro-batch k of K is the k-th of K (nearly) equal parts of the rank's share.
 */
#ifndef LOCKSTEP_DATA_SAMPLER_H
#define LOCKSTEP_DATA_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct Sampler {
    int64_t dataset_size;
    int world_size;
    int64_t global_batch;
    uint64_t seed;
    bool shuffle, drop_last;
    int64_t *list;  /* the sample number at each place; owned */
    int64_t length; /* places of an epoch: a multiple of world_size */
    long epoch;     /* -1 before the first sampler_set_epoch() */
} Sampler;

/* With drop_last, fewer samples than ranks are the user's mistake: no rank would get any. */
void sampler_create(Sampler *sampler, int64_t dataset_size, int world_size, int64_t global_batch, uint64_t seed,
                    bool shuffle, bool drop_last);
void sampler_free(Sampler *sampler);

/* Draws the list of `epoch`; does nothing if it is drawn already. */
void sampler_set_epoch(Sampler *sampler, long epoch);

int64_t sampler_steps_per_epoch(const Sampler *sampler);
/* Samples in the global batch of `step` (0 .. steps_per_epoch - 1), all ranks together. */
int64_t sampler_global_count(const Sampler *sampler, int64_t step);
/* Writes the sample numbers of rank's micro-batch k of K to indices, in order of place; returns how many, possibly 0.
 * Room for ceil(ceil(global_batch / world_size) / K) entries. K = 1, k = 0 gives the rank's whole share. */
int64_t sampler_indices(const Sampler *sampler, int64_t step, int rank, int k, int K, int64_t *indices);
/* The whole global batch in order of place: what one process trains on. Room for
 * sampler_global_count() entries, at most global_batch. */
int64_t sampler_whole_batch(const Sampler *sampler, int64_t step, int64_t *indices);

#endif
