/* loader.c: a thread fills one buffer while training uses the other.
 *
 *     batch number     0      1      2      3
 *     buffer           0      1      0      1
 *     thread        | fill | fill |..wait| fill | ...
 *     training             | use         | use  | ...
 *
 * The number of a batch alone determines it (step, epoch, micro-batch). So a loader that starts at a later step gives
 * the same batches as one that started at step 0.
 */
#include "data/loader.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define BUFFERS 2

struct Loader {
    /* Set by loader_start(), then only read. */
    const Dataset *dataset;
    int rank, accumulate;
    long first_step;
    pthread_t thread;

    /* Used only by the thread. */
    Sampler sampler;
    int64_t *indices;

    /* The counters below say which buffers the thread owns, and which training owns. */
    Batch batches[BUFFERS];

    /* `mutex` guards everything from here on; `changed` is signalled when any of it changes. One condition is enough
     * for two threads: only the other one can be waiting for it. Batches are counted from the loader's start: returned
     * <= taken <= prepared <= returned + BUFFERS. */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    long prepared; /* filled by the thread */
    long taken;    /* handed out by loader_next() */
    long returned; /* no longer used by training: their buffers can be filled again */
    bool stopping;
};

/* Writes batch `number` to its buffer. Call it without the mutex: the thread owns the buffer. */
static void prepare(Loader *loader, long number)
{
    Batch *batch = &loader->batches[number % BUFFERS];
    batch->step = loader->first_step + number / loader->accumulate;
    batch->micro_batch = (int)(number % loader->accumulate);
    int64_t step_of_epoch;
    batch->epoch = sampler_epoch_of_step(&loader->sampler, batch->step, &step_of_epoch);

    sampler_set_epoch(&loader->sampler, batch->epoch);
    batch->global_samples = sampler_global_count(&loader->sampler, step_of_epoch);
    batch->samples = sampler_indices(&loader->sampler, step_of_epoch, loader->rank, batch->micro_batch,
                                     loader->accumulate, loader->indices);
    dataset_get(loader->dataset, batch->epoch, loader->indices, batch->samples, batch->inputs, batch->targets);
    batch->terms = dataset_terms(loader->dataset, batch->targets, batch->samples);
    sampler_places(&loader->sampler, step_of_epoch, loader->rank, batch->micro_batch, loader->accumulate,
                   batch->places);
}

static void *loader_thread(void *argument)
{
    Loader *loader = argument;
    pthread_mutex_lock(&loader->mutex);
    for (;;) {
        while (!loader->stopping && loader->prepared == loader->returned + BUFFERS)
            pthread_cond_wait(&loader->changed, &loader->mutex);
        if (loader->stopping)
            break;
        long number = loader->prepared;
        pthread_mutex_unlock(&loader->mutex);
        prepare(loader, number);
        pthread_mutex_lock(&loader->mutex);
        loader->prepared++;
        pthread_cond_signal(&loader->changed);
    }
    pthread_mutex_unlock(&loader->mutex);
    return NULL;
}

Loader *loader_start(const Dataset *dataset, const Sampler *sampler, int rank, int accumulate, long first_step)
{
    CHECK(rank >= 0 && rank < sampler->world_size, "rank %d of %d", rank, sampler->world_size);
    CHECK(accumulate > 0 && first_step >= 0, "%d micro-batches, first step %ld", accumulate, first_step);
    CHECK(dataset->size == sampler->dataset_size, "the data set has %lld samples, the sampler %lld",
          (long long)dataset->size, (long long)sampler->dataset_size);
    Loader *loader = alloc_or_fault(sizeof *loader);
    *loader = (Loader){.dataset = dataset, .rank = rank, .accumulate = accumulate, .first_step = first_step,
                       .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    sampler_create_like(&loader->sampler, sampler);
    const size_t samples = (size_t)(sampler_largest_share(sampler) / accumulate + 1); /* at most in a micro-batch */
    loader->indices = alloc_or_fault(samples * sizeof *loader->indices);
    for (int b = 0; b < BUFFERS; b++) {
        loader->batches[b].inputs = alloc_or_fault(samples * dataset->input_bytes);
        loader->batches[b].targets = alloc_or_fault(samples * dataset->target_bytes);
        loader->batches[b].places = alloc_or_fault(samples * sizeof *loader->batches[b].places);
    }
    int error = pthread_create(&loader->thread, NULL, loader_thread, loader);
    CHECK(error == 0, "cannot start the loader's thread: %s", strerror(error));
    return loader;
}

const Batch *loader_next(Loader *loader)
{
    pthread_mutex_lock(&loader->mutex);
    loader->returned = loader->taken; /* the caller no longer uses the previous batch */
    pthread_cond_signal(&loader->changed);
    while (loader->prepared == loader->taken)
        pthread_cond_wait(&loader->changed, &loader->mutex);
    const Batch *batch = &loader->batches[loader->taken % BUFFERS];
    loader->taken++;
    pthread_mutex_unlock(&loader->mutex);
    return batch;
}

void loader_stop(Loader *loader)
{
    pthread_mutex_lock(&loader->mutex);
    loader->stopping = true;
    pthread_cond_signal(&loader->changed);
    pthread_mutex_unlock(&loader->mutex);
    pthread_join(loader->thread, NULL);
    pthread_mutex_destroy(&loader->mutex);
    pthread_cond_destroy(&loader->changed);
    for (int b = 0; b < BUFFERS; b++) {
        free(loader->batches[b].inputs);
        free(loader->batches[b].targets);
        free(loader->batches[b].places);
    }
    free(loader->indices);
    sampler_free(&loader->sampler);
    free(loader);
}
