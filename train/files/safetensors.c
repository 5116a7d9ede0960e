/* safetensors.c: reads and writes the safetensors format; believes nothing that a header says. */
#include "train/files/safetensors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/hash.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors files are little-endian");

#define LENGTH_BYTES 8
#define HEADER_LIMIT (16 << 20)             /* bytes; enough for 100000 tensors, and little to hold in memory */
#define CHECKSUM "checksum"
#define NO_CHECKSUM "0000000000000000"      /* what stands in its place while it is computed */
#define LARGEST_INTEGER 9007199254740992.0  /* 2^53: up to here a double, JSON's number, holds every integer */

static const struct {
    const char *name;
    DType dtype;
} dtypes[] = {
    {"F32", DTYPE_F32}, {"F64", DTYPE_F64}, {"BF16", DTYPE_BF16},
    {"F16", DTYPE_F16}, {"I32", DTYPE_I32}, {"I64", DTYPE_I64},
};
#define DTYPES ((int)(sizeof dtypes / sizeof dtypes[0]))

const char *safetensors_printable(const char *text)
{
    static char buffers[2][72];
    static int turn;
    char *out = buffers[turn ^= 1];
    size_t length = 0;
    for (; text[length] != '\0' && length < sizeof buffers[0] - 4; length++) {
        bool control = (unsigned char)text[length] < 0x20 || text[length] == 0x7f;
        out[length] = control ? '?' : text[length];
    }
    strcpy(out + length, text[length] != '\0' ? "..." : "");
    return out;
}

static const char *format_dtype_name(DType dtype)
{
    for (int i = 0; i < DTYPES; i++) {
        if (dtypes[i].dtype == dtype) {
            return dtypes[i].name;
        }
    }
    FAULT("dtype %s has no name in the safetensors format", dtype_name(dtype));
}

void safetensors_describe(const SafetensorsEntry *entry, char *text, size_t size)
{
    int used = snprintf(text, size, "%s [", format_dtype_name(entry->dtype));
    for (int d = 0; d < entry->ndim && used < (int)size; d++) {
        used += snprintf(text + used, size - used, "%s%lld", d > 0 ? ", " : "", (long long)entry->shape[d]);
    }
    if (used < (int)size) {
        snprintf(text + used, size - used, "]");
    }
}

/* ---- reading: the header ---- */

static int64_t open_and_measure(SafetensorsFile *file)
{
    struct stat info;
    file->stream = fopen(file->path, "rb");
    if (file->stream == NULL || fstat(fileno(file->stream), &info) != 0) {
        die("%s: cannot be read: %s; give a file that --save has written", file->path, strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        die("%s: is not a regular file; give a file that --save has written", file->path);
    }
    return info.st_size;
}

/* Returns the header's length, which lies inside the file. */
static int64_t read_header_length(const SafetensorsFile *file, int64_t file_bytes)
{
    uint64_t length;
    if (file_bytes < LENGTH_BYTES || fread(&length, LENGTH_BYTES, 1, file->stream) != 1) {
        die("%s: has %lld bytes, too few for a safetensors file: it was cut off, or is something else", file->path,
            (long long)file_bytes);
    }
    if (length > (uint64_t)(file_bytes - LENGTH_BYTES)) {
        die("%s: says that its header has %llu bytes, but only %lld follow: it was cut off, or is no safetensors file",
            file->path, (unsigned long long)length, (long long)(file_bytes - LENGTH_BYTES));
    }
    if (length > HEADER_LIMIT) {
        die("%s: its header of %llu bytes is over the limit of %d", file->path, (unsigned long long)length,
            HEADER_LIMIT);
    }
    return (int64_t)length;
}

static void parse_header(SafetensorsFile *file, int64_t length)
{
    /* Zeros behind the text: older versions of cJSON may look one character past the length that they are given. */
    char *text = alloc_or_fault((size_t)length + 64);
    if (fread(text, 1, (size_t)length, file->stream) != (size_t)length) {
        die("%s: its header cannot be read", file->path);
    }
    if (memchr(text, '\0', (size_t)length) != NULL || strstr(text, "\\u0000") != NULL) {
        die("%s: its header holds a NUL character, behind which a name would not be read: the file is damaged", file->path);
    }
    const char *end = text;
    file->text = text;
    file->header = cJSON_ParseWithLengthOpts(text, (size_t)length, &end, false);
    bool valid = text[0] == '{' && cJSON_IsObject(file->header) && end + strspn(end, " ") == text + length;
    if (!valid) {
        die("%s: its header is not a JSON object: the file is damaged, or is no safetensors file", file->path);
    }
}

/* ---- reading: one tensor's entry ---- */

static bool json_integer(const cJSON *value, int64_t *integer)
{
    if (!cJSON_IsNumber(value) || !(value->valuedouble >= 0 && value->valuedouble <= LARGEST_INTEGER)) {
        return false;
    }
    *integer = (int64_t)value->valuedouble;
    return (double)*integer == value->valuedouble;
}

static bool json_dtype(const cJSON *value, DType *dtype)
{
    for (int i = 0; cJSON_IsString(value) && i < DTYPES; i++) {
        if (strcmp(value->valuestring, dtypes[i].name) == 0) {
            *dtype = dtypes[i].dtype;
            return true;
        }
    }
    return false;
}

/* Returns the number of elements, or -1 if the shape is none. */
static int64_t json_shape(const cJSON *value, SafetensorsEntry *entry)
{
    int64_t elements = 1;
    const cJSON *dimension;
    cJSON_ArrayForEach(dimension, value)
    {
        if (entry->ndim == TENSOR_MAX_DIMS || !json_integer(dimension, &entry->shape[entry->ndim])) {
            return -1;
        }
        if (__builtin_mul_overflow(elements, entry->shape[entry->ndim++], &elements)) {
            return -1;
        }
    }
    return cJSON_IsArray(value) ? elements : -1;
}

static bool json_offsets(const cJSON *value, SafetensorsEntry *entry)
{
    return cJSON_IsArray(value) && cJSON_GetArraySize(value) == 2 &&
           json_integer(cJSON_GetArrayItem(value, 0), &entry->begin) &&
           json_integer(cJSON_GetArrayItem(value, 1), &entry->end);
}

static SafetensorsEntry read_entry(const SafetensorsFile *file, const cJSON *item)
{
    SafetensorsEntry entry = {.name = item->string};
    const char *name = safetensors_printable(entry.name);
    if (!json_dtype(cJSON_GetObjectItemCaseSensitive(item, "dtype"), &entry.dtype)) {
        die("%s: tensor \"%s\": its dtype is missing, or none of F32, F64, BF16, F16, I32, I64", file->path, name);
    }
    int64_t elements = json_shape(cJSON_GetObjectItemCaseSensitive(item, "shape"), &entry);
    if (elements < 0) {
        die("%s: tensor \"%s\": its shape is missing, or not a list of at most %d sizes", file->path, name,
            TENSOR_MAX_DIMS);
    }
    if (!json_offsets(cJSON_GetObjectItemCaseSensitive(item, "data_offsets"), &entry)) {
        die("%s: tensor \"%s\": its data_offsets are missing, or not two byte numbers", file->path, name);
    }
    if (entry.begin > entry.end || entry.end > file->data_bytes) {
        die("%s: tensor \"%s\": says that it is at bytes %lld to %lld of the data, but the file holds %lld of them",
            file->path, name, (long long)entry.begin, (long long)entry.end, (long long)file->data_bytes);
    }
    int64_t bytes = 0;
    if (__builtin_mul_overflow(elements, (int64_t)dtype_size(entry.dtype), &bytes) ||
        bytes != entry.end - entry.begin) {
        char text[128];
        safetensors_describe(&entry, text, sizeof text);
        die("%s: tensor \"%s\": has %lld bytes, which does not fit %s", file->path, name,
            (long long)(entry.end - entry.begin), text);
    }
    return entry;
}

static void read_metadata(SafetensorsFile *file, const cJSON *item)
{
    bool valid = file->metadata == NULL && cJSON_IsObject(item);
    const cJSON *value;
    cJSON_ArrayForEach(value, item)
    {
        valid = valid && cJSON_IsString(value);
    }
    if (!valid) {
        die("%s: its __metadata__ is not one JSON object of strings", file->path);
    }
    file->metadata = item;
}

static void append_entry(SafetensorsFile *file, SafetensorsEntry entry)
{
    if (file->count == file->capacity) {
        file->capacity = file->capacity > 0 ? 2 * file->capacity : 256;
        file->entries = realloc(file->entries, (size_t)file->capacity * sizeof *file->entries);
        CHECK(file->entries != NULL, "out of memory for the header of %s", file->path);
    }
    file->entries[file->count++] = entry;
}

/* ---- reading: all entries together ---- */

static int by_place(const void *a, const void *b)
{
    const SafetensorsEntry *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const SafetensorsEntry *)a)->name, ((const SafetensorsEntry *)b)->name);
}

/* Every byte of the data belongs to exactly one tensor, and no two tensors have one name. */
static void check_entries(SafetensorsFile *file)
{
    int64_t covered = 0;
    qsort(file->entries, (size_t)file->count, sizeof *file->entries, by_place);
    for (int i = 0; i < file->count; i++) {
        const SafetensorsEntry *entry = &file->entries[i];
        if (entry->begin != covered) {
            die("%s: tensor \"%s\": begins at byte %lld of the data, where %lld must follow: tensors %s", file->path,
                safetensors_printable(entry->name), (long long)entry->begin, (long long)covered,
                entry->begin < covered ? "overlap" : "leave a gap");
        }
        covered = entry->end;
    }
    if (covered != file->data_bytes) {
        die("%s: holds %lld bytes of data, but its tensors have %lld", file->path, (long long)file->data_bytes,
            (long long)covered);
    }
    qsort(file->entries, (size_t)file->count, sizeof *file->entries, by_name);
    for (int i = 1; i < file->count; i++) {
        if (by_name(&file->entries[i - 1], &file->entries[i]) == 0) {
            die("%s: holds tensor \"%s\" twice", file->path, safetensors_printable(file->entries[i].name));
        }
    }
}

void safetensors_open(SafetensorsFile *file, const char *path)
{
    *file = (SafetensorsFile){.path = copy_string(path)};
    int64_t file_bytes = open_and_measure(file);
    int64_t header_bytes = read_header_length(file, file_bytes);
    parse_header(file, header_bytes);
    file->data_start = LENGTH_BYTES + header_bytes;
    file->data_bytes = file_bytes - file->data_start;
    const cJSON *item;
    cJSON_ArrayForEach(item, file->header)
    {
        if (strcmp(item->string, "__metadata__") == 0) {
            read_metadata(file, item);
        } else {
            append_entry(file, read_entry(file, item));
        }
    }
    if (file->count == 0) {
        die("%s: holds no tensors", file->path);
    }
    check_entries(file);
}

void safetensors_close(SafetensorsFile *file)
{
    fclose(file->stream);
    cJSON_Delete(file->header);
    free(file->text);
    free(file->entries);
    free(file->path);
    *file = (SafetensorsFile){0};
}

/* ---- reading: what it holds ---- */

const SafetensorsEntry *safetensors_find(const SafetensorsFile *file, const char *name)
{
    const SafetensorsEntry key = {.name = (char *)name};
    return bsearch(&key, file->entries, (size_t)file->count, sizeof key, by_name);
}

const char *safetensors_metadata(const SafetensorsFile *file, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(file->metadata, key));
}

void safetensors_read(const SafetensorsFile *file, const SafetensorsEntry *entry, void *memory)
{
    size_t bytes = (size_t)(entry->end - entry->begin);
    if (fseeko(file->stream, file->data_start + entry->begin, SEEK_SET) != 0 ||
        fread(memory, 1, bytes, file->stream) != bytes) {
        die("%s: tensor \"%s\" cannot be read: the file changed meanwhile, or the disk failed", file->path,
            safetensors_printable(entry->name));
    }
}

static uint64_t hash_of_data(const SafetensorsFile *file)
{
    unsigned char bytes[1 << 16];
    uint64_t hash = FNV1A_START;
    size_t got;
    fseeko(file->stream, file->data_start, SEEK_SET);
    while ((got = fread(bytes, 1, sizeof bytes, file->stream)) > 0) {
        hash = fnv1a(hash, bytes, got);
    }
    return hash;
}

void safetensors_check_sum(const SafetensorsFile *file)
{
    const char *sum = safetensors_metadata(file, CHECKSUM);
    if (sum == NULL) {
        return;
    }
    char now[sizeof NO_CHECKSUM], *place = strstr(file->text, sum);
    if (place != NULL) { /* room for it there is: behind the text are 64 zeros */
        memcpy(place, NO_CHECKSUM, strlen(NO_CHECKSUM));
    }
    uint64_t hash = fnv1a(hash_of_data(file), file->text, (size_t)(file->data_start - LENGTH_BYTES));
    snprintf(now, sizeof now, "%016llx", (unsigned long long)hash);
    if (strcmp(now, sum) != 0) {
        die("%s: its checksum is \"%s\", but that of what it holds is \"%s\": it was damaged; a program that changes "
            "weights on purpose must leave \"" CHECKSUM "\" and the optimizer's state out", file->path,
            safetensors_printable(sum), now);
    }
}

/* ---- writing ---- */

static cJSON *entry_to_json(const SafetensorsEntry *entry)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "dtype", format_dtype_name(entry->dtype));
    cJSON *shape = cJSON_AddArrayToObject(object, "shape");
    for (int d = 0; d < entry->ndim; d++) {
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)entry->shape[d]));
    }
    cJSON *offsets = cJSON_AddArrayToObject(object, "data_offsets");
    cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)entry->begin));
    cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)entry->end));
    return object;
}

/* note: checksum
 * FNV-1a of the data and then of the header, with sixteen zeros where the checksum will stand. */
static void put_checksum(char *text, const char *padding, uint64_t data_hash)
{
    char sum[sizeof NO_CHECKSUM];
    uint64_t hash = fnv1a(fnv1a(data_hash, text, strlen(text)), padding, strlen(padding));
    snprintf(sum, sizeof sum, "%016llx", (unsigned long long)hash);
    memcpy(strstr(text, "\"" CHECKSUM "\":\"" NO_CHECKSUM) + strlen("\"" CHECKSUM "\":\""), sum, strlen(sum));
}

void safetensors_write_header(AtomicFile *file, const SafetensorsEntry *entries, int count, cJSON *metadata,
                              uint64_t data_hash)
{
    cJSON *header = cJSON_CreateObject();
    cJSON_AddStringToObject(metadata, CHECKSUM, NO_CHECKSUM);
    cJSON_AddItemToObject(header, "__metadata__", metadata);
    for (int i = 0; i < count; i++) {
        cJSON_AddItemToObject(header, entries[i].name, entry_to_json(&entries[i]));
    }
    char *text = cJSON_PrintUnformatted(header);
    CHECK(text != NULL, "out of memory for the header of %s", file->path);
    /* Spaces bring the data to a multiple of 8 bytes, so that a reader may map the file and use it in place. */
    uint64_t length = strlen(text);
    const char *padding = "       " + (length + 7) % 8;
    uint64_t padded = length + strlen(padding);
    put_checksum(text, padding, data_hash);
    atomic_write(file, &padded, LENGTH_BYTES);
    atomic_write(file, text, length);
    atomic_write(file, padding, padded - length);
    cJSON_free(text);
    cJSON_Delete(header);
}
