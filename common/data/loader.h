/* loader.h: a thread that prepares the next micro-batch while this one trains.
 *
 * Interface: loader_start(), then loader_next() once per micro-batch, loader_stop() at the end. Batches come in
 * order: all micro-batches of step 0, then of step 1, ... across epochs, for ever.
 */
#ifndef LOCKSTEP_DATA_LOADER_H
#define LOCKSTEP_DATA_LOADER_H

#include "data/dataset.h"
#include "data/sampler.h"

typedef struct Batch {
    void *inputs, *targets; /* host memory, owned by the loader */
    int64_t *places;        /* (samples): index of each in the step's global batch (sampler_places()); owned likewise */
    int64_t samples;        /* of this rank's micro-batch, possibly 0 */
    int64_t terms;          /* of the loss of this rank's micro-batch: dataset_terms() */
    int64_t global_samples; /* of the whole step: all ranks, all micro-batches */
    long epoch;
    long step;       /* counted from 0 over all epochs */
    int micro_batch; /* 0 .. accumulate - 1 */
} Batch;

typedef struct Loader Loader;

/* Starts the thread, at global step first_step (not 0 when a run is resumed). The loader copies the sampler's settings
 * and draws its own lists; `dataset` must outlive the loader. Stop and free it with loader_stop(). */
Loader *loader_start(const Dataset *dataset, const Sampler *sampler, int rank, int accumulate, long first_step);
/* The next micro-batch; waits until it is ready. Owned by the loader; valid until the next call. */
const Batch *loader_next(Loader *loader);
void loader_stop(Loader *loader);

#endif
