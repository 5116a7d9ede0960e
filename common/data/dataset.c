/* dataset.c: reads files, opens texts and random numbers, and turns sample numbers into inputs and targets, for all
 * three kinds of data. idx.c opens images. */
#include "data/dataset.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/check.h"
#include "base/rng.h"
#include "data/file_kind.h"

/* Weights, shuffles, shifts and random data all depend on the user's one --seed. These arbitrary constants keep their
 * streams of random numbers different. With the same stream, random data would equal the initial weights. */
static const uint64_t RANDOM_DATA_STREAM = 0x9d3a61c2e0b7f485u;
static const uint64_t TEXT_SHIFT_STREAM = 0x4be7d90f1a5c8326u;
static const uint64_t MASK_STREAM = 0x71f0c4a95e2b6d38u;

/* ---- files ---- */

/* The length of a gzip file's content is known only after unpacking: its trailer holds the length modulo 2^32, and may
 * be wrong. So the buffer grows while data arrives. zlib returns files that are not gzipped as they are. */
#define BYTES_PER_READ ((size_t)1 << 20)

/* A gzip file of zeros unpacks to a thousand times its size, and would fill the memory of every rank. Text and images
 * unpack to two to four times their size. */
#define MAX_UNPACK_RATIO 25
#define UNPACK_FREE_BYTES ((size_t)64 << 20) /* up to here, every ratio is allowed */

/* Like realloc(), but faults. (alloc_or_fault() cannot grow a buffer, and copying it would need both buffers at
 * once.) */
static unsigned char *resize_or_fault(unsigned char *bytes, size_t capacity)
{
    unsigned char *resized = realloc(bytes, capacity);
    CHECK(resized != NULL, "no memory for %zu bytes of data", capacity);
    return resized;
}

/* gzread() may return the beginning of a truncated file without an error; gzerror() reports it here. */
static void die_on_read_error(gzFile file, const char *path)
{
    int status = Z_OK;
    const char *reason = gzerror(file, &status); /* "PATH: what is wrong" */
    if (status == Z_ERRNO)
        die("--data: cannot read '%s': %s", path, strerror(errno));
    if (status == Z_BUF_ERROR)
        die("--data: '%s' is cut short: its gzip data ends too early; fetch the file again", path);
    if (status != Z_OK)
        die("--data: cannot unpack the gzip file: %s; fetch the file again", reason);
}

/* An interrupted gunzip leaves an empty file, which is found before the complete .gz file. */
static void check_not_empty(const char *path, size_t size)
{
    char packed[PATH_MAX];
    snprintf(packed, sizeof packed, "%s.gz", path);
    if (size == 0 && access(packed, F_OK) == 0)
        die("--data: '%s' is empty, but '%s.gz' exists; remove the empty file", path, path);
}

unsigned char *read_file_or_die(const char *path, int64_t *size)
{
    struct stat status;
    bool there = stat(path, &status) == 0;
    if (there && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
        die("--data: '%s' is not a regular file: it is read more than once, so it cannot be a pipe or a device", path);
    gzFile file = there ? gzopen(path, "rb") : NULL;
    if (file == NULL)
        die("--data: cannot read '%s': %s", path, strerror(errno));
    size_t capacity = BYTES_PER_READ, used = 0;
    unsigned char *bytes = resize_or_fault(NULL, capacity);
    int got;
    while ((got = gzread(file, bytes + used, BYTES_PER_READ)) > 0) {
        used += (size_t)got;
        if (used > UNPACK_FREE_BYTES && used / MAX_UNPACK_RATIO > (size_t)status.st_size)
            die("--data: '%s' unpacks to more than %d times its size of %lld bytes; if that is intended, unpack "
                "it (gunzip) and give the unpacked file", path, MAX_UNPACK_RATIO, (long long)status.st_size);
        if (used + BYTES_PER_READ > capacity) {
            capacity *= 2;
            bytes = resize_or_fault(bytes, capacity);
        }
    }
    die_on_read_error(file, path);
    gzclose(file);
    check_not_empty(path, used);
    *size = (int64_t)used;
    return resize_or_fault(bytes, used + 1); /* not NULL, also for an empty file */
}

/* ---- text: a sequence of bytes, each byte a token ---- */

#define DEFAULT_TEXT "/usr/share/doc/jargon-text/jargon.txt.gz"
#define EVAL_PART 10 /* one byte in 10 is for evaluation */
#define MIN_EVAL_WINDOWS 2

static void check_text_exists(const char *path)
{
    char packed[PATH_MAX];
    if (access(path == NULL ? DEFAULT_TEXT : path, F_OK) == 0)
        return;
    if (path == NULL) /* minimal container images leave out /usr/share/doc */
        die("no text at %s: install the Debian/Ubuntu package jargon-text (if it is installed, this system leaves out "
            "/usr/share/doc), or name a text file with --data", DEFAULT_TEXT);
    snprintf(packed, sizeof packed, "%s.gz", path);
    if (access(packed, F_OK) == 0)
        die("--data: there is no file '%s', but '%s' exists", path, packed);
    die("--data: there is no file '%s'; it must be a text file, gzipped or not", path);
}

#define OR_BINARY_DATA "; --binary-data trains on its bytes as they are"

/* Any bytes can be trained on, but those of a picture or an archive are rarely intended. Text that is not UTF-8 is
 * allowed, because many old texts are in Latin-1. */
static void check_is_text(const char *path, const unsigned char *text, int64_t length, DatasetSplit split)
{
    const char *kind = file_kind(text, length);
    if (kind != NULL)
        die("--data: '%s' is not plain text, but %s" OR_BINARY_DATA, path, kind);
    const unsigned char *zero = memchr(text, '\0', (size_t)length);
    if (zero != NULL)
        die("--data: '%s' is not plain text: byte %lld is 0, as in binary files, or in UTF-16 (iconv -f UTF-16LE -t "
            "UTF-8 converts it)" OR_BINARY_DATA, path, (long long)(zero - text));
    int64_t at = 0;
    int step = 1;
    while (at < length && (step = utf8_length(text + at, length - at)) > 0)
        at += step;
    if (step < 0 && split == SPLIT_TRAIN) /* so that it is printed once */
        advise("--data: '%s' is not UTF-8 (see byte %lld); it is trained on as it is, but --generate prints '?' for "
               "such bytes (iconv -f LATIN1 -t UTF-8 converts Latin-1)", path, (long long)at);
}

/* Checks both splits, so that a text without evaluation data is rejected before training, not after it. The training
 * split is nine times as long, so only the evaluation split is computed. */
static void check_text_length(const char *path, int64_t length, int64_t context)
{
    int64_t needed = EVAL_PART * (MIN_EVAL_WINDOWS * context + 1);
    if (length < needed)
        die("--data: '%s' holds %lld bytes; for windows of %lld bytes it needs %lld, because its last tenth, "
            "for evaluation, must hold %d windows", path, (long long)length, (long long)context, (long long)needed,
            MIN_EVAL_WINDOWS);
}

void dataset_open_text(Dataset *dataset, const char *path, DatasetSplit split, int64_t context, uint64_t seed,
                       bool any_bytes)
{
    CHECK(context > 0 && context <= INT32_MAX, "a context of %lld tokens", (long long)context);
    check_text_exists(path);
    const char *source = path != NULL ? path : DEFAULT_TEXT;
    int64_t length;
    unsigned char *text = read_file_or_die(source, &length);
    if (!any_bytes)
        check_is_text(source, text, length, split);
    check_text_length(source, length, context);

    const int64_t eval_length = length / EVAL_PART, train_length = length - eval_length;
    const size_t bytes = (size_t)context * sizeof(int32_t);
    bool train = split == SPLIT_TRAIN;
    *dataset = (Dataset){.kind = DATASET_TEXT, .split = split, .inputs = context, .targets = context,
                         .input_bytes = bytes, .target_bytes = bytes,
                         .byte_count = train ? train_length : eval_length, .seed = seed};
    snprintf(dataset->source, sizeof dataset->source, "%s", source);
    /* The last window needs one more byte, for its last target. Training windows may start up to context - 1 bytes
     * later, and their number must be the same in every epoch. */
    int64_t largest_shift = train ? context - 1 : 0;
    dataset->size = (dataset->byte_count - 1 - largest_shift) / context;

    /* Keep this split's bytes only. */
    memmove(text, text + (train ? 0 : train_length), (size_t)dataset->byte_count);
    unsigned char *kept = realloc(text, (size_t)dataset->byte_count);
    dataset->bytes = kept != NULL ? kept : text;
}

/* ---- random numbers ---- */

void dataset_open_random(Dataset *dataset, int64_t size, int64_t inputs, int64_t targets, uint64_t seed)
{
    CHECK(size > 0 && inputs > 0 && targets > 0, "random data of %lld samples, %lld inputs, %lld targets",
          (long long)size, (long long)inputs, (long long)targets);
    *dataset = (Dataset){.kind = DATASET_RANDOM, .split = SPLIT_TRAIN, .size = size, .inputs = inputs,
                         .targets = targets, .input_bytes = (size_t)inputs * sizeof(float),
                         .target_bytes = (size_t)targets * sizeof(float), .seed = seed};
    snprintf(dataset->source, sizeof dataset->source, "random numbers");
    int64_t sample = inputs + targets;
    CHECK(size <= (int64_t)(PTRDIFF_MAX / sizeof(float)) / sample, "%lld samples of random data do not fit in memory",
          (long long)size);
    dataset->values = alloc_or_fault((size_t)(size * sample) * sizeof(float));
    Rng rng;
    rng_seed(&rng, seed ^ RANDOM_DATA_STREAM);
    for (int64_t i = 0; i < size * sample; i++)
        dataset->values[i] = rng_normal(&rng);
}

/* ---- samples ---- */

/* Fashion-MNIST's training pixels, scaled to [0, 1], have this mean and deviation. */
#define PIXEL_MEAN 0.2860f
#define PIXEL_DEVIATION 0.3530f

/* inputs: float (pixels); target: int32 (1). */
static void get_image(const Dataset *dataset, int64_t index, float *inputs, int32_t *target)
{
    const unsigned char *pixels = dataset->bytes + index * dataset->inputs;
    for (int64_t i = 0; i < dataset->inputs; i++)
        inputs[i] = ((float)pixels[i] / 255.0f - PIXEL_MEAN) / PIXEL_DEVIATION;
    *target = dataset->labels[index];
}

/* The start of the first training window of an epoch. It changes, because otherwise the model would see the same cuts
 * of the text in every epoch, and would never predict across a cut. It depends only on seed and epoch, so all ranks use
 * the same one. */
static int64_t text_shift(const Dataset *dataset, long epoch)
{
    if (dataset->split != SPLIT_TRAIN)
        return 0;
    Rng rng;
    rng_seed(&rng, dataset->seed ^ TEXT_SHIFT_STREAM);
    rng_seed(&rng, rng_bits(&rng) + (uint64_t)epoch); /* with seed + epoch alone, seed 1 would repeat seed 0 */
    return (int64_t)rng_below(&rng, (uint64_t)dataset->inputs);
}

/* note: same-mask
 * The random numbers belong to the sample, not to the rank: each (seed, epoch, sample number) has its own sequence, and
 * position t takes the t-th number. So N ranks and one process mask the same targets. */
static void mask_targets(const Dataset *dataset, long epoch, int64_t index, int32_t *targets)
{
    Rng rng;
    rng_seed(&rng, dataset->seed ^ MASK_STREAM);
    rng_seed(&rng, rng_bits(&rng) + (uint64_t)epoch);
    rng_seed(&rng, rng_bits(&rng) + (uint64_t)index);
    for (int64_t t = 0; t < dataset->targets; t++)
        if (rng_uniform(&rng) < dataset->mask)
            targets[t] = MASKED_TARGET;
}

/* inputs, targets: int32 (context); targets[t] is the byte after inputs[t]. */
static void get_window(const Dataset *dataset, long epoch, int64_t index, int32_t *inputs, int32_t *targets)
{
    const unsigned char *window = dataset->bytes + text_shift(dataset, epoch) + index * dataset->inputs;
    for (int64_t t = 0; t < dataset->inputs; t++) {
        inputs[t] = window[t];
        targets[t] = window[t + 1];
    }
    if (dataset->mask > 0)
        mask_targets(dataset, epoch, index, targets);
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
    for (int64_t i = 0; i < count; i++) {
        int64_t index = indices[i];
        CHECK(index >= 0 && index < dataset->size, "sample %lld of a data set of %lld (%s)", (long long)index,
              (long long)dataset->size, dataset->source);
        void *input = (unsigned char *)inputs + (size_t)i * dataset->input_bytes;
        void *target = (unsigned char *)targets + (size_t)i * dataset->target_bytes;
        switch (dataset->kind) {
        case DATASET_IMAGES: get_image(dataset, index, input, target); break;
        case DATASET_TEXT: get_window(dataset, epoch, index, input, target); break;
        case DATASET_RANDOM: get_random(dataset, index, input, target); break;
        }
    }
}

int64_t dataset_terms(const Dataset *dataset, const void *targets, int64_t samples)
{
    const int32_t *tokens = targets;
    int64_t terms = 0;
    if (dataset->kind != DATASET_TEXT)
        return samples;
    for (int64_t i = 0; i < samples * dataset->targets; i++)
        terms += tokens[i] != MASKED_TARGET;
    return terms;
}

uint32_t dataset_checksum(const Dataset *dataset)
{
    const uLong sum = crc32_z(0, dataset->bytes, (size_t)dataset->byte_count); /* five times as fast as fnv1a() */
    return (uint32_t)(dataset->labels != NULL ? crc32_z(sum, dataset->labels, (size_t)dataset->size) : sum);
}

void dataset_close(Dataset *dataset)
{
    free(dataset->bytes);
    free(dataset->labels);
    free(dataset->values);
    *dataset = (Dataset){0};
}
