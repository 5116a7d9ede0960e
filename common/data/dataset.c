/* dataset.c: turns sample numbers into inputs and targets, for all three kinds of data, and draws the random data.
 * idx.c opens images, text.c text. */
#include "data/dataset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/rng.h"

/* Fashion-MNIST's training pixels, scaled to [0, 1], have this mean and deviation. */
#define PIXEL_MEAN 0.2860f
#define PIXEL_DEVIATION 0.3530f

/* Weights, shuffles, shifts and random data all depend on the user's one --seed. These arbitrary constants keep their
 * streams of random numbers different. With the same stream, random data would equal the initial weights. */
static const uint64_t RANDOM_DATA_STREAM = 0x9d3a61c2e0b7f485u;
static const uint64_t TEXT_SHIFT_STREAM = 0x4be7d90f1a5c8326u;

void dataset_open_random(Dataset *dataset, int64_t size, int64_t inputs, int64_t targets, uint64_t seed)
{
    CHECK(size > 0 && inputs > 0 && targets > 0, "random data of %lld samples, %lld inputs, %lld targets",
          (long long)size, (long long)inputs, (long long)targets);
    *dataset = (Dataset){
        .kind = DATASET_RANDOM,
        .split = SPLIT_TRAIN,
        .size = size,
        .inputs = inputs,
        .targets = targets,
        .input_bytes = (size_t)inputs * sizeof(float),
        .target_bytes = (size_t)targets * sizeof(float),
        .seed = seed,
    };
    snprintf(dataset->source, sizeof dataset->source, "random numbers");
    int64_t sample = inputs + targets;
    CHECK(size <= (int64_t)(PTRDIFF_MAX / sizeof(float)) / sample, "%lld samples of random data do not fit in memory",
          (long long)size);
    dataset->values = alloc_or_fault((size_t)(size * sample) * sizeof(float));
    Rng rng;
    rng_seed(&rng, seed ^ RANDOM_DATA_STREAM);
    for (int64_t i = 0; i < size * sample; i++) {
        dataset->values[i] = rng_normal(&rng);
    }
}

/* inputs: float (pixels); target: int32 (1). */
static void get_image(const Dataset *dataset, int64_t index, float *inputs, int32_t *target)
{
    const unsigned char *pixels = dataset->bytes + index * dataset->inputs;
    for (int64_t i = 0; i < dataset->inputs; i++) {
        inputs[i] = ((float)pixels[i] / 255.0f - PIXEL_MEAN) / PIXEL_DEVIATION;
    }
    *target = dataset->labels[index];
}

/* The start of the first training window of an epoch. It changes, because otherwise the model would see the same cuts
 * of the text in every epoch, and would never predict across a cut. It depends only on seed and epoch, so all ranks use
 * the same one. */
static int64_t text_shift(const Dataset *dataset, long epoch)
{
    if (dataset->split != SPLIT_TRAIN) {
        return 0;
    }
    Rng rng;
    rng_seed(&rng, dataset->seed ^ TEXT_SHIFT_STREAM);
    rng_seed(&rng, rng_bits(&rng) + (uint64_t)epoch); /* with seed + epoch alone, seed 1 would repeat seed 0 */
    return (int64_t)rng_below(&rng, (uint64_t)dataset->inputs);
}

/* inputs, targets: int32 (context); targets[t] is the byte after inputs[t]. */
static void get_window(const Dataset *dataset, int64_t shift, int64_t index, int32_t *inputs, int32_t *targets)
{
    const unsigned char *window = dataset->bytes + shift + index * dataset->inputs;
    for (int64_t t = 0; t < dataset->inputs; t++) {
        inputs[t] = window[t];
        targets[t] = window[t + 1];
    }
}

/* inputs: float (inputs); targets: float (targets). */
static void get_random(const Dataset *dataset, int64_t index, float *inputs, float *targets)
{
    const float *sample = dataset->values + index * (dataset->inputs + dataset->targets);
    memcpy(inputs, sample, dataset->input_bytes);
    memcpy(targets, sample + dataset->inputs, dataset->target_bytes);
}

void dataset_get(const Dataset *dataset, long epoch, const int64_t *indices, int64_t count, void *inputs, void *targets)
{
    int64_t shift = dataset->kind == DATASET_TEXT ? text_shift(dataset, epoch) : 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t index = indices[i];
        CHECK(index >= 0 && index < dataset->size, "sample %lld asked of a data set of %lld (%s)", (long long)index,
              (long long)dataset->size, dataset->source);
        void *input = (unsigned char *)inputs + (size_t)i * dataset->input_bytes;
        void *target = (unsigned char *)targets + (size_t)i * dataset->target_bytes;
        switch (dataset->kind) {
        case DATASET_IMAGES: get_image(dataset, index, input, target); break;
        case DATASET_TEXT: get_window(dataset, shift, index, input, target); break;
        case DATASET_RANDOM: get_random(dataset, index, input, target); break;
        }
    }
}

uint32_t dataset_checksum(const Dataset *dataset)
{
    uint32_t sum = checksum(0, dataset->bytes, (size_t)dataset->byte_count);
    return checksum(sum, dataset->labels, (size_t)dataset->size);
}

void dataset_close(Dataset *dataset)
{
    free(dataset->bytes);
    free(dataset->labels);
    free(dataset->values);
    *dataset = (Dataset){0};
}
