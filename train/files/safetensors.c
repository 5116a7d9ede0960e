/* safetensors.c: reads and writes the safetensors format; checks the whole header. */
#include "train/files/safetensors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/hash.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors files are little-endian");

#define LENGTH_BYTES 8
#define HEADER_LIMIT (16 << 20)       /* bytes; enough for 100000 tensors, and it fits into memory */
#define METADATA "__metadata__"
#define CHECKSUM "checksum"
#define NO_CHECKSUM "0000000000000000" /* its value while it is computed */

/* A tensor's entry in the header, without its offsets: {"dtype": "F32", "shape": [512, 784]}; owned by the caller. */
static cJSON *describe(const SafetensorsEntry *entry)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "dtype", entry->dtype == DTYPE_I64 ? "I64" : "F32");
    cJSON *shape = cJSON_AddArrayToObject(object, "shape");
    for (int d = 0; d < entry->ndim; d++)
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)entry->shape[d]));
    return object;
}

/* note: checksum
 * FNV-1a of the data and then of the header, with sixteen zeros in the place of the checksum. */
static void format_checksum(uint64_t hash, char sum[sizeof NO_CHECKSUM])
{
    snprintf(sum, sizeof NO_CHECKSUM, "%016llx", (unsigned long long)hash);
}

static uint64_t hash_of_data(const SafetensorsFile *file)
{
    unsigned char bytes[1 << 16];
    uint64_t hash = FNV1A_START;
    size_t got;
    while ((got = fread(bytes, 1, sizeof bytes, file->stream)) > 0)
        hash = fnv1a(hash, bytes, got);
    return hash;
}

/* Finds the checksum in the header by its digits, because another program may write spaces behind the key. */
static void check_sum(SafetensorsFile *file)
{
    char actual[sizeof NO_CHECKSUM];
    const char *stated = safetensors_metadata(file, CHECKSUM);
    char *place = stated != NULL ? strstr(file->text, stated) : NULL;
    if (place != NULL)
        memcpy(place, NO_CHECKSUM, strlen(NO_CHECKSUM));
    file->hash = fnv1a(hash_of_data(file), file->text, (size_t)file->data_start - LENGTH_BYTES);
    format_checksum(file->hash, actual);
    if (stated != NULL && strcmp(stated, actual) != 0)
        die("%s: its checksum is \"%.100s\", but its contents have \"%s\": the file is damaged; a program that changes "
            "weights on purpose must leave \"" CHECKSUM "\" and the optimizer's state out", file->path,
            stated, actual);
}

/* Opens the file; returns the length of its header, which lies inside the file. */
static size_t read_header_length(SafetensorsFile *file)
{
    struct stat info;
    uint64_t length;
    file->stream = fopen(file->path, "rb");
    if (file->stream == NULL || fstat(fileno(file->stream), &info) != 0)
        die("%s: cannot be read: %s; give a file that --save has written", file->path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        die("%s: is not a regular file; give a file that --save has written", file->path);
    if (fread(&length, LENGTH_BYTES, 1, file->stream) != 1)
        die("%s: has %lld bytes, too few for a safetensors file: it was cut off, or is something else", file->path,
            (long long)info.st_size);
    file->data_bytes = info.st_size - LENGTH_BYTES;
    if (length > HEADER_LIMIT || (int64_t)length > file->data_bytes)
        die("%s: says that its header has %llu bytes, but only %lld follow, and %d are allowed: it was cut off, or is "
            "no safetensors file", file->path, (unsigned long long)length, (long long)file->data_bytes, HEADER_LIMIT);
    file->data_start = LENGTH_BYTES + (int64_t)length;
    file->data_bytes -= (int64_t)length;
    return (size_t)length;
}

void safetensors_open(SafetensorsFile *file, const char *path)
{
    *file = (SafetensorsFile){.path = path};
    size_t length = read_header_length(file);
    file->text = alloc_or_fault(length + 64); /* more zero bytes behind it than a checksum has digits */
    if (fread(file->text, 1, length, file->stream) != length)
        die("%s: its header cannot be read", path);
    file->header = cJSON_ParseWithOpts(file->text, NULL, true);
    if (!cJSON_IsObject(file->header))
        die("%s: its header is not a JSON object: the file is damaged, or is no safetensors file", path);
}

void safetensors_close(SafetensorsFile *file)
{
    fclose(file->stream);
    cJSON_Delete(file->header);
    free(file->text);
}

const char *safetensors_metadata(const SafetensorsFile *file, const char *key)
{
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(file->header, METADATA);
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(metadata, key));
}

/* Compares texts, because to cJSON_Compare() infinity equals any number. */
static void check_kind(const SafetensorsFile *file, const SafetensorsEntry *entry, const cJSON *item)
{
    char theirs[200], ours[200];
    cJSON *found = cJSON_CreateObject(), *expected = describe(entry);
    cJSON_AddItemReferenceToObject(found, "dtype", cJSON_GetObjectItemCaseSensitive(item, "dtype"));
    cJSON_AddItemReferenceToObject(found, "shape", cJSON_GetObjectItemCaseSensitive(item, "shape"));
    if (!cJSON_PrintPreallocated(found, theirs, sizeof theirs, false))
        strcpy(theirs, "something longer");
    cJSON_PrintPreallocated(expected, ours, sizeof ours, false);
    cJSON_Delete(found);
    cJSON_Delete(expected);
    if (strcmp(theirs, ours) != 0)
        die("%s: tensor \"%s\" is %s, this run needs %s", file->path, entry->name, theirs, ours);
}

/* Returns the tensor's offset in bytes from the start of the data. (A double is exact for every number of bytes. A
 * missing number becomes NaN, which fails every comparison.) */
static int64_t find_tensor(const SafetensorsFile *file, const SafetensorsEntry *entry)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(file->header, entry->name);
    if (item == NULL)
        die("%s: has no tensor \"%s\", which this run needs: was it saved from another model, or with other settings "
            "of the optimizer?", file->path, entry->name);
    check_kind(file, entry, item);
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    double begin = cJSON_GetNumberValue(cJSON_GetArrayItem(offsets, 0));
    double end = cJSON_GetNumberValue(cJSON_GetArrayItem(offsets, 1));
    if (!(begin >= 0 && end <= (double)file->data_bytes && end - begin == (double)entry->bytes))
        die("%s: tensor \"%s\": its data_offsets are %.0f to %.0f, which are not %lld of the file's %lld bytes of data",
            file->path, entry->name, begin, end, (long long)entry->bytes, (long long)file->data_bytes);
    return (int64_t)begin;
}

static bool is_expected(const char *name, const SafetensorsEntry *entries, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(name, entries[i].name) == 0)
            return true;
    return strcmp(name, METADATA) == 0;
}

void safetensors_expect(SafetensorsFile *file, SafetensorsEntry *entries, int count)
{
    int64_t bytes = 0;
    const cJSON *item;
    for (int i = 0; i < count; i++) {
        entries[i].begin = find_tensor(file, &entries[i]);
        bytes += entries[i].bytes;
        for (int j = 0; j < i; j++)
            if (entries[i].begin < entries[j].begin + entries[j].bytes &&
                entries[j].begin < entries[i].begin + entries[i].bytes)
                die("%s: tensors \"%s\" and \"%s\" overlap", file->path, entries[j].name, entries[i].name);
    }
    cJSON_ArrayForEach(item, file->header)
    {
        if (!is_expected(item->string, entries, count))
            die("%s: holds tensor \"%.100s\", which this run does not have: was it saved from another model, or with "
                "other settings of the optimizer?", file->path, item->string);
        if (item != cJSON_GetObjectItemCaseSensitive(file->header, item->string))
            die("%s: holds \"%s\" twice", file->path, item->string);
    }
    if (bytes != file->data_bytes)
        die("%s: holds %lld bytes of data, but its tensors have %lld", file->path, (long long)file->data_bytes,
            (long long)bytes);
    check_sum(file); /* last: a huge wrong file need not be read */
}

void safetensors_read(const SafetensorsFile *file, const SafetensorsEntry *entry, void *memory)
{
    if (fseeko(file->stream, file->data_start + entry->begin, SEEK_SET) != 0 ||
        fread(memory, 1, (size_t)entry->bytes, file->stream) != (size_t)entry->bytes)
        die("%s: tensor \"%s\" cannot be read: the file changed meanwhile, or the disk failed", file->path,
            entry->name);
}

void safetensors_write_header(AtomicFile *file, const SafetensorsEntry *entries, int count, cJSON *metadata,
                              uint64_t data_hash)
{
    cJSON *header = cJSON_CreateObject();
    cJSON_AddStringToObject(metadata, CHECKSUM, NO_CHECKSUM);
    cJSON_AddItemToObject(header, METADATA, metadata);
    double offsets[2] = {0, 0}; /* begin and end of a tensor */
    for (int i = 0; i < count; i++) {
        cJSON *item = describe(&entries[i]);
        offsets[0] = offsets[1];
        offsets[1] += (double)entries[i].bytes;
        cJSON_AddItemToObject(item, "data_offsets", cJSON_CreateDoubleArray(offsets, 2));
        cJSON_AddItemToObject(header, entries[i].name, item);
    }
    char *text = cJSON_PrintUnformatted(header);
    CHECK(text != NULL, "out of memory for the header of %s", file->path);
    /* Spaces make the data begin at a multiple of 8 bytes, so that a reader can map the file and use it in place. */
    const uint64_t padded = (strlen(text) + 7) / 8 * 8;
    const char *before = "\"" CHECKSUM "\":\"";
    char *padded_text = alloc_or_fault(padded + 1), sum[sizeof NO_CHECKSUM];
    snprintf(padded_text, padded + 1, "%-*s", (int)padded, text);
    format_checksum(fnv1a(data_hash, padded_text, padded), sum);
    memcpy(strstr(padded_text, before) + strlen(before), sum, strlen(sum));
    atomic_write(file, &padded, LENGTH_BYTES);
    atomic_write(file, padded_text, padded);
    free(padded_text);
    cJSON_free(text);
    cJSON_Delete(header);
}
