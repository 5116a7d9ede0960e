/* safetensors.h: reading and writing named tensors in the safetensors format, which PyTorch's world reads too.
 * Format: https://github.com/huggingface/safetensors
 *
 *   8 bytes   N, the length of the header; little-endian
 *   N bytes   the header, a JSON object, possibly with spaces behind it:
 *             {"__metadata__": {"step": "100", ...},
 *              "fc1.weight": {"dtype": "F32", "shape": [512, 784], "data_offsets": [0, 1605632]}, ...}
 *   the rest  the numbers; offsets count from its first byte, and cover it without gaps or overlaps
 *
 * Interface: safetensors_open(), then safetensors_find(), _metadata() and _read(), then safetensors_close().
 * The file is not trusted: safetensors_open() checks all that the header says against what the file really holds,
 * and ends the program with die(), naming the file and the tensor, at the first lie. That the numbers are those that
 * were written, safetensors_check_sum() finds out.
 */
#ifndef LOCKSTEP_TRAIN_SAFETENSORS_H
#define LOCKSTEP_TRAIN_SAFETENSORS_H

#include <cjson/cJSON.h>

#include "tensor/tensor.h"
#include "train/files/atomic_file.h"

typedef struct SafetensorsEntry {
    char *name; /* in a file that was opened: owned by its header */
    DType dtype;
    int ndim;
    int64_t shape[TENSOR_MAX_DIMS];
    int64_t begin, end; /* bytes, from the start of the data */
} SafetensorsEntry;

typedef struct SafetensorsFile {
    char *path;
    FILE *stream;
    cJSON *header;
    const cJSON *metadata; /* part of header, or NULL */
    char *text;            /* the header as it stands in the file; owned */
    int64_t data_start;    /* bytes from the start of the file */
    int64_t data_bytes;
    SafetensorsEntry *entries; /* sorted by name */
    int count, capacity;
} SafetensorsFile;

void safetensors_open(SafetensorsFile *file, const char *path);
void safetensors_close(SafetensorsFile *file);

const SafetensorsEntry *safetensors_find(const SafetensorsFile *file, const char *name); /* NULL if there is none */
const char *safetensors_metadata(const SafetensorsFile *file, const char *key);          /* NULL if there is none */
/* Copies the entry's bytes to `memory` (host, entry->end - entry->begin bytes). */
void safetensors_read(const SafetensorsFile *file, const SafetensorsEntry *entry, void *memory);
/* Reads the whole file, and die()s if its metadata has a checksum which is not that of what the file holds. Once. */
void safetensors_check_sum(const SafetensorsFile *file);

/* Writes the length and the header of a file whose data will be the entries' bytes, in this order; the caller
 * writes those next. Takes over metadata, an object of strings, and adds the checksum. data_hash: fnv1a() of the data.
 */
void safetensors_write_header(AtomicFile *file, const SafetensorsEntry *entries, int count, cJSON *metadata,
                              uint64_t data_hash);

/* "F32 [512, 784]" */
void safetensors_describe(const SafetensorsEntry *entry, char *text, size_t size);
/* text without control characters, and cut if it is long: fit for a message, though a stranger wrote it. Valid
 * until the next call but one. */
const char *safetensors_printable(const char *text);

#endif
