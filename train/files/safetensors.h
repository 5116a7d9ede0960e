/* safetensors.h: reading and writing named tensors in the safetensors format, which PyTorch's world reads too.
 * Format: https://github.com/huggingface/safetensors
 *
 *   8 bytes   N, the length of the header; little-endian
 *   N bytes   the header, a JSON object, possibly with spaces behind it:
 *             {"__metadata__": {"step": "100", ...},
 *              "fc1.weight": {"dtype": "F32", "shape": [512, 784], "data_offsets": [0, 1605632]}, ...}
 *   the rest  the numbers; offsets count from its first byte
 *
 * Interface: safetensors_open(), safetensors_expect() with all tensors that are needed, then safetensors_read() for
 * each, and safetensors_close(). safetensors_write_header() for a new file.
 * The file is not trusted: where it is damaged, or holds something else than what is needed, the program ends with
 * die(), which names the file and the tensor. Nothing is read from outside of the file's data.
 */
#ifndef LOCKSTEP_TRAIN_SAFETENSORS_H
#define LOCKSTEP_TRAIN_SAFETENSORS_H

#include <cjson/cJSON.h>

#include "autograd/tensor.h"
#include "train/files/atomic_file.h"

typedef struct SafetensorsEntry {
    char *name;
    DType dtype; /* DTYPE_F32 or DTYPE_I64 */
    int ndim;
    int64_t shape[TENSOR_MAX_DIMS];
    int64_t bytes;
    void *memory; /* where the caller has the numbers; not used here */
} SafetensorsEntry;

typedef struct SafetensorsFile {
    const char *path; /* not copied */
    FILE *stream;
    cJSON *header;
    int64_t data_start; /* bytes from the start of the file */
    int64_t data_bytes;
    bool has_checksum;
    uint64_t hash; /* of the whole file; equal to the checksum, if there is one */
} SafetensorsFile;

/* Reads the whole file once, and die()s if it has a checksum which is not that of what it holds. */
void safetensors_open(SafetensorsFile *file, const char *path);
void safetensors_close(SafetensorsFile *file);

bool safetensors_holds(const SafetensorsFile *file, const char *name);
const char *safetensors_metadata(const SafetensorsFile *file, const char *key); /* NULL if there is none */

/* die()s unless the file holds exactly these tensors. */
void safetensors_expect(const SafetensorsFile *file, const SafetensorsEntry *entries, int count);
/* Copies the numbers of a tensor that was expected to `memory` (host, entry->bytes). */
void safetensors_read(const SafetensorsFile *file, const SafetensorsEntry *entry, void *memory);

/* Writes the length and the header of a file whose data will be the entries' bytes, in this order; the caller
 * writes those next. Takes over metadata, an object of strings, and adds the checksum. data_hash: fnv1a() of the data.
 */
void safetensors_write_header(AtomicFile *file, const SafetensorsEntry *entries, int count, cJSON *metadata,
                              uint64_t data_hash);

/* text without control characters, and cut if it is long: fit for a message, though a stranger wrote it. Valid
 * until the next call but one. */
const char *safetensors_printable(const char *text);

#endif
