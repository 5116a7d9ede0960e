/* safetensors.h: reads and writes named tensors in the safetensors format, which PyTorch users read, too.
 * Format: https://github.com/huggingface/safetensors
 *
 *   8 bytes   N, the length of the header; little-endian
 *   N bytes   the header, a JSON object, perhaps with trailing spaces:
 *             {"__metadata__": {"step": "100", ...},
 *              "fc1.weight": {"dtype": "F32", "shape": [512, 784], "data_offsets": [0, 1605632]}, ...}
 *   the rest  the numbers; offsets count from its first byte, and no two tensors share a byte
 *
 * Interface: safetensors_open(), safetensors_expect() with all tensors that are needed, then safetensors_read() for
 * each, and safetensors_close(). safetensors_write_header() for a new file. The file is not trusted: die()s, and names
 * the file and the tensor, if it is damaged or lacks a tensor. Never reads beyond the file's data.
 */
#ifndef LOCKSTEP_TRAIN_SAFETENSORS_H
#define LOCKSTEP_TRAIN_SAFETENSORS_H

#include <cjson/cJSON.h>

#include "autograd/tensor.h"
#include "train/files/atomic_file.h"

typedef struct SafetensorsEntry {
    char name[96];
    DType dtype; /* DTYPE_F32 or DTYPE_I64 */
    int ndim;
    int64_t shape[TENSOR_MAX_DIMS];
    int64_t bytes;
    int64_t begin; /* reading: bytes from the start of the data; safetensors_expect() sets it */
    void *memory; /* for the caller; not used here */
} SafetensorsEntry;

typedef struct SafetensorsFile {
    const char *path; /* not copied */
    FILE *stream;
    cJSON *header; /* an object, by the tensors' names */
    char *text; /* the header's text; owned */
    int64_t data_start; /* bytes from the start of the file */
    int64_t data_bytes;
    uint64_t hash; /* of the whole file; set by safetensors_expect() */
} SafetensorsFile;

void safetensors_open(SafetensorsFile *file, const char *path);
void safetensors_close(SafetensorsFile *file);

const char *safetensors_metadata(const SafetensorsFile *file, const char *key); /* NULL: none; owned by the file */

/* die()s unless the file holds exactly these tensors, without overlap, and its checksum, if any, is right. */
void safetensors_expect(SafetensorsFile *file, SafetensorsEntry *entries, int count);
/* Copies the numbers of one of these tensors to `memory` (host, entry->bytes). */
void safetensors_read(const SafetensorsFile *file, const SafetensorsEntry *entry, void *memory);

/* Writes the length and the header of a file. Then write the entries' bytes, in this order. metadata: an object of
 * strings; this function adds the checksum and frees it. data_hash: fnv1a() of the data. */
void safetensors_write_header(AtomicFile *file, const SafetensorsEntry *entries, int count, cJSON *metadata,
                              uint64_t data_hash);

#endif
