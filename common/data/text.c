/* text.c: a text file as a sequence of bytes, each byte a token.
 *
 * The first nine tenths are for training, the rest is for evaluation. This file only opens the text; dataset.c cuts it
 * into windows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "data/dataset.h"
#include "data/read_file.h"

#define DEFAULT_PATH "/usr/share/doc/jargon-text/jargon.txt.gz"
#define EVAL_PART 10 /* one byte in 10 is for evaluation */
#define MIN_EVAL_WINDOWS 2

static void check_exists(const char *path)
{
    if (access(path == NULL ? DEFAULT_PATH : path, F_OK) == 0) {
        return;
    }
    if (path == NULL) { /* minimal container images leave out /usr/share/doc */
        die("no text at %s: install the Debian/Ubuntu package jargon-text (if it is installed, this system leaves out "
            "/usr/share/doc), or name a text file with --data",
            DEFAULT_PATH);
    }
    die("--data: there is no file '%s'; it must be a text file, gzipped or not", path);
}

/* Checks both splits, so that a text without evaluation data is rejected before training, not after it. The training
 * split is nine times as long, so only the evaluation split is computed. */
static void check_length(const char *path, int64_t length, int64_t context)
{
    int64_t needed = EVAL_PART * (MIN_EVAL_WINDOWS * context + 1);
    if (length < needed) {
        die("--data: '%s' holds %lld bytes; for windows of %lld bytes it needs %lld, because its last tenth, "
            "for evaluation, must hold %d windows",
            path, (long long)length, (long long)context, (long long)needed, MIN_EVAL_WINDOWS);
    }
}

void dataset_open_text(Dataset *dataset, const char *path, DatasetSplit split, int64_t context, uint64_t seed)
{
    CHECK(context > 0 && context <= INT32_MAX, "a context of %lld tokens", (long long)context);
    check_exists(path);
    const char *source = path != NULL ? path : DEFAULT_PATH;
    int64_t length = 0;
    unsigned char *text = read_file_or_die(source, &length);
    check_length(source, length, context);

    int64_t eval_length = length / EVAL_PART;
    int64_t train_length = length - eval_length;
    bool train = split == SPLIT_TRAIN;
    *dataset = (Dataset){
        .kind = DATASET_TEXT,
        .split = split,
        .inputs = context,
        .targets = context,
        .input_bytes = (size_t)context * sizeof(int32_t),
        .target_bytes = (size_t)context * sizeof(int32_t),
        .byte_count = train ? train_length : eval_length,
        .seed = seed,
    };
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
