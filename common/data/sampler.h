/* sampler.h: which samples each rank sees in which step; torch.utils.data.DistributedSampler's rules.
 *
 * An epoch is one list of sample numbers, the same on every rank: all samples, in an order drawn from seed and
 * epoch, its length made a multiple of the world size, by going round to its start again, or with drop_last by
 * leaving the tail away. Rank r takes places r, r + N, r + 2N, ... of the list. The global batch of a step is the next
 * `global_batch` places; the last batch of an epoch may be shorter, and ranks may differ by one sample where the
 * batch is no multiple of the world size.
 * Micro-batch k of K is the k-th of K (nearly) equal parts of the rank's share.
 *
 * With sampler_set_rank_samples() it is otherwise: each rank has data of its own, and perhaps more of it than another
 * one. Then ranks run out of data in different steps, and a step's global batch is what those have that are left.
 */
#ifndef LOCKSTEP_DATA_SAMPLER_H
#define LOCKSTEP_DATA_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

/* The samples that one rank has of its own: places of the list, one after the other. */
typedef struct Piece {
    int64_t first, samples;
    int64_t used; /* of them, in an epoch: with drop_last no more than the poorest rank has */
} Piece;

typedef struct Sampler {
    int64_t dataset_size;
    int world_size;
    int64_t global_batch;
    uint64_t seed;
    bool shuffle, drop_last;
    int64_t *list;  /* the sample number at each place; owned */
    int64_t length; /* places of an epoch: a multiple of world_size, but for pieces of unequal length */
    int64_t steps;  /* of an epoch */
    Piece *pieces;  /* (world_size), or NULL: the list is dealt out. Owned */
    long epoch;     /* -1 before the first sampler_set_epoch() */
} Sampler;

/* With drop_last, fewer samples than ranks are the user's mistake: no rank would get any. */
void sampler_create(Sampler *sampler, int64_t dataset_size, int world_size, int64_t global_batch, uint64_t seed,
                    bool shuffle, bool drop_last);
/* Another one with the same settings. */
void sampler_create_like(Sampler *sampler, const Sampler *other);
void sampler_free(Sampler *sampler);

/* From now on rank r has rank_samples[r] samples of its own (NULL: does nothing): rank 0 the first ones of the data
 * set, rank 1 the next ones, and so on, each rank's shuffled among themselves. In a step it takes
 * global_batch / world_size of them, which must be a whole number, as long as it has any. Before the first
 * sampler_set_epoch(). More samples than the data set has are the user's mistake. */
void sampler_set_rank_samples(Sampler *sampler, const int64_t *rank_samples);

/* Draws the list of `epoch`; does nothing if it is drawn already. */
void sampler_set_epoch(Sampler *sampler, long epoch);

int64_t sampler_steps_per_epoch(const Sampler *sampler);
/* Steps of an epoch before this rank runs out of data; all of them unless ranks have data of their own. */
int64_t sampler_rank_steps(const Sampler *sampler, int rank);
/* The most samples that one rank can get in a step. */
int64_t sampler_largest_share(const Sampler *sampler);
/* Samples in the global batch of `step` (0 .. steps_per_epoch - 1), all ranks together. */
int64_t sampler_global_count(const Sampler *sampler, int64_t step);
/* Writes the sample numbers of rank's micro-batch k of K to indices, in order of place; returns how many, possibly 0.
 * Room for ceil(ceil(global_batch / world_size) / K) entries. K = 1, k = 0 gives the rank's whole share. */
int64_t sampler_indices(const Sampler *sampler, int64_t step, int rank, int k, int K, int64_t *indices);
/* The whole global batch in order of place (ranks with data of their own: in order of rank): what one process trains
 * on. Room for sampler_global_count() entries, at most global_batch. */
int64_t sampler_whole_batch(const Sampler *sampler, int64_t step, int64_t *indices);

#endif
