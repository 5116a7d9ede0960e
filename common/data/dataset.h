/* dataset.h: where samples come from: Fashion-MNIST, a text read as bytes, or random numbers.
 *
 * Interface: dataset_open_images(), _text() or _random(), then dataset_get() for any list of sample numbers in [0,
 * size), then dataset_close(). A data set is read into memory once and never changes, so the loader's thread may call
 * dataset_get(). If a file is missing or malformed, the program ends with die(): the message names the file and what
 * would be right.
 */
#ifndef LOCKSTEP_DATA_DATASET_H
#define LOCKSTEP_DATA_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MASKED_TARGET (-1) /* instead of a token: this target is left out of the loss */

typedef enum DatasetKind { DATASET_IMAGES, DATASET_TEXT, DATASET_RANDOM } DatasetKind;
typedef enum DatasetSplit { SPLIT_TRAIN, SPLIT_EVAL } DatasetSplit;

typedef struct Dataset {
    DatasetKind kind;
    DatasetSplit split;    /* text: only training windows shift from epoch to epoch */
    int64_t size;          /* samples */
    int64_t inputs;        /* numbers of input per sample: pixels, context, or features */
    int64_t targets;       /* numbers of target per sample: 1 (class), context, or outputs */
    size_t input_bytes;    /* of one sample's input (float32 for images and random, int32 tokens for text) */
    size_t target_bytes;   /* of one sample's target (int32, but float32 for random) */
    char source[256];      /* the directory or file it was read from, for messages */
    unsigned char *bytes;  /* images: pixels; text: this split's part of the corpus. Owned */
    unsigned char *labels; /* images. Owned */
    int64_t byte_count;    /* of `bytes` */
    float *values;         /* random: size * (inputs + targets). Owned */
    uint64_t seed;         /* text: of the shifts and masks */
    float mask;            /* text: the probability that a target is masked; 0 unless the caller sets it */
} Dataset;

/* Opens images in MNIST's IDX format, gzipped or not, from `directory` (NULL: where Debian's package
 * dataset-fashion-mnist installs them): train-images-idx3-ubyte and -labels-idx1-, or t10k-... for SPLIT_EVAL (for
 * other names see dataset_image_path()). A pixel p becomes (p/255 - 0.2860) / 0.3530, with Fashion-MNIST's mean and
 * standard deviation. `inputs` and `classes` are what the model expects: other image sizes, or labels >= classes, end
 * with die(). */
void dataset_open_images(Dataset *dataset, const char *directory, DatasetSplit split, int64_t inputs, int classes);

enum { IMAGE_FILES = 4, IMAGE_NAMES = 4 };

/* Writes to path (PATH_MAX bytes) one of the names that a file of `directory` may have. file: 0 training images, 1
 * training labels, 2 evaluation images, 3 evaluation labels. name: 0 to IMAGE_NAMES - 1; the first that exists is read.
 * Some sites write a dot for the second dash, and each name may end in .gz. Returns false if the path is too long. */
bool dataset_image_path(char *path, const char *directory, int file, int name);

/* Opens a text as bytes from `path`, gzipped or not (NULL: /usr/share/doc/jargon-text/jargon.txt.gz, Debian's package
 * jargon-text). The last tenth is SPLIT_EVAL. A sample is a window of context + 1 bytes: the inputs are its first
 * `context` bytes, the targets its last ones. Training windows follow each other without overlap. In each epoch they
 * start at another place (a shift below `context`, drawn from seed and epoch); evaluation windows never shift. The text
 * must be long enough for two evaluation windows: 10 * (2 * context + 1) bytes. Unless any_bytes is set, a file that is
 * not plain text (an archive, a picture, HTML, UTF-16) ends with die(), which names its format. */
void dataset_open_text(Dataset *dataset, const char *path, DatasetSplit split, int64_t context, uint64_t seed,
                       bool any_bytes);

/* `size` samples of standard normal inputs and targets, drawn from seed: the toy regression. */
void dataset_open_random(Dataset *dataset, int64_t size, int64_t inputs, int64_t targets, uint64_t seed);

/* Copies samples indices[0..count) to inputs (count * input_bytes) and targets (count * target_bytes), in host memory.
 * epoch (from 0) matters only for training text. Faults if an index is not in [0, size). Which targets are masked
 * depends only on seed, epoch, sample number and position, so it is the same on every rank. */
void dataset_get(const Dataset *dataset, long epoch, const int64_t *indices, int64_t count, void *inputs,
                 void *targets);
/* The number of terms in the summed loss of `samples` samples, whose targets dataset_get() has written: samples, or the
 * tokens of a text that are not masked. */
int64_t dataset_terms(const Dataset *dataset, const void *targets, int64_t samples);
/* The CRC-32 of the files that were read, so that ranks can compare them. Random numbers: 0, because seed and size
 * determine them. */
uint32_t dataset_checksum(const Dataset *dataset);
void dataset_close(Dataset *dataset);

/* Inside data/ only. Reads a whole file into memory, unpacked if it is gzipped; stores the number of bytes in *size.
 * The caller owns the memory; free() it. A file that cannot be read, or a gzip file that is truncated, damaged, or far
 * larger than plausible when unpacked, ends the program with die(). */
unsigned char *read_file_or_die(const char *path, int64_t *size);

#endif
