/* sampler.h: which samples each rank sees in which step; torch.utils.data.DistributedSampler's rules.
 *
 * An epoch is one list of sample numbers, the same on every rank: all samples, in an order drawn from seed and epoch.
 * Its length is made a multiple of the world size N: samples from its start are repeated, or, with drop_last, its tail
 * is dropped. Rank r takes places r, r + N, r + 2N, ... of the list. The global batch of a step is the next
 * `global_batch` places. The last batch of an epoch may be shorter, and the ranks' shares may differ by one sample if
 * the batch is not a multiple of the world size. Micro-batch k of K is the k-th of K (nearly) equal parts of the rank's
 * share.
 *
 * After sampler_set_rank_samples() each rank has its own data, perhaps more than other ranks. Then ranks run out of
 * data in different steps, and a step's global batch comes from the ranks that still have data.
 */
#ifndef LOCKSTEP_DATA_SAMPLER_H
#define LOCKSTEP_DATA_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

/* One rank's own samples: consecutive places of the list. */
typedef struct Piece {
    int64_t first, samples;
    int64_t used; /* in an epoch: all `samples`; with drop_last, the smallest `samples` of any rank */
} Piece;

typedef struct Sampler {
    int64_t dataset_size;
    int world_size;
    int64_t global_batch;
    uint64_t seed;
    bool shuffle, drop_last;
    int64_t *list;  /* the sample number at each place; owned */
    int64_t length; /* places of an epoch: a multiple of world_size, unless pieces have unequal lengths */
    int64_t steps;  /* of an epoch */
    Piece *pieces;  /* (world_size), or NULL: the list is distributed over the ranks. Owned */
    long epoch;     /* -1 before the first sampler_set_epoch() */
    int64_t batch_offset; /* step s of the run takes batch s + batch_offset of all epochs; see sampler_resume() */
} Sampler;

/* Makes a sampler; free it with sampler_free(). With drop_last, fewer samples than ranks end with die(), because no
 * rank would get any. */
void sampler_create(Sampler *sampler, int64_t dataset_size, int world_size, int64_t global_batch, uint64_t seed,
                    bool shuffle, bool drop_last);
/* Makes a sampler with the settings of `other`. */
void sampler_create_like(Sampler *sampler, const Sampler *other);
void sampler_free(Sampler *sampler);

/* Gives rank r its own rank_samples[r] samples (NULL: does nothing): rank 0 the first samples of the data set, rank 1
 * the next ones, and so on. Shuffling reorders each rank's samples only among themselves. In each step a rank takes
 * global_batch / world_size of its samples, which must be a whole number, until none are left. Call it before the first
 * sampler_set_epoch(). If the data set has fewer samples than all ranks together want, it ends with die(). */
void sampler_set_rank_samples(Sampler *sampler, const int64_t *rank_samples);

/* A run's place in its data: how many samples of this epoch all ranks together have trained. At the end of an epoch it
 * is sample 0 of the next one. */
typedef struct DataPlace {
    long epoch;
    int64_t samples;
} DataPlace;

/* The epoch of the run's step `step`, and the step's number in that epoch. */
long sampler_epoch_of_step(const Sampler *sampler, long step, int64_t *step_of_epoch);
/* The place at which `step` begins. */
DataPlace sampler_place(const Sampler *sampler, long step);
/* note: going-on
 * Lets `step` begin at `place`, which a run may have reached with another batch size. A step takes a whole batch: if
 * the place is inside a batch, `step` begins with that batch. Returns how many samples are then trained again. A
 * sampler that is copied from this one later resumes there, too. */
int64_t sampler_resume(Sampler *sampler, long step, DataPlace place);

/* Draws the list of `epoch`, if it is not the current one. */
void sampler_set_epoch(Sampler *sampler, long epoch);

int64_t sampler_steps_per_epoch(const Sampler *sampler);
/* Steps of an epoch in which this rank has data: all of them, unless ranks have their own data. */
int64_t sampler_rank_steps(const Sampler *sampler, int rank);
/* The most samples that one rank can get in a step. */
int64_t sampler_largest_share(const Sampler *sampler);
/* Samples in the global batch of `step` (0 .. steps_per_epoch - 1), all ranks together. */
int64_t sampler_global_count(const Sampler *sampler, int64_t step);
/* Samples in the rank's micro-batch k of K of `step`. */
int64_t sampler_count(const Sampler *sampler, int64_t step, int rank, int k, int K);
/* Writes the sample numbers of the rank's micro-batch k of K to indices, in order of place; returns their number,
 * possibly 0. indices needs room for ceil(ceil(global_batch / world_size) / K) entries. K = 1, k = 0 gives the rank's
 * whole share. */
int64_t sampler_indices(const Sampler *sampler, int64_t step, int rank, int k, int K, int64_t *indices);
/* Writes the index of each of these samples in the step's global batch, in the order of sampler_whole_batch(): 0 to
 * sampler_global_count() - 1. It names a sample independently of its rank and micro-batch. Arguments and result as
 * above. */
int64_t sampler_places(const Sampler *sampler, int64_t step, int rank, int k, int K, int64_t *places);
/* Writes the whole global batch, for training in one process, to indices: in order of place, or in order of rank if
 * ranks have their own data. Returns their number. indices needs room for sampler_global_count() entries, at most
 * global_batch. */
int64_t sampler_whole_batch(const Sampler *sampler, int64_t step, int64_t *indices);

#endif
