/* compare_weights.c: compares the tensors of two files that --save wrote: float32 number by number, other types (the
 * optimizer's step counts) byte by byte.
 *
 * usage: compare_weights FILE FILE TOLERANCE     exit status 0: same; 1: different, and a line shows the largest one
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "train/files/safetensors.h"

/* The largest difference so far, and its tensor ("": there is no difference). */
typedef struct Worst {
    double difference;
    char place[200];
} Worst;

static double offset_of(const cJSON *item, int which)
{
    return cJSON_GetNumberValue(cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(item, "data_offsets"), which));
}

/* The tensor's bytes; free() them. */
static void *bytes_of(const SafetensorsFile *file, const cJSON *item, size_t bytes)
{
    void *memory = alloc_or_fault(bytes);
    if (fseeko(file->stream, file->data_start + (int64_t)offset_of(item, 0), SEEK_SET) != 0 ||
        fread(memory, 1, bytes, file->stream) != bytes)
        die("%s: tensor %s cannot be read", file->path, item->string);
    return memory;
}

static void compare_numbers(const char *name, const float *x, const float *y, int64_t count, Worst *worst)
{
    for (int64_t i = 0; i < count; i++) {
        double difference = fabs((double)x[i] - (double)y[i]);
        if (!isfinite(difference)) /* NaN does not equal anything, not even NaN */
            difference = INFINITY;
        if (difference > worst->difference) {
            worst->difference = difference;
            snprintf(worst->place, sizeof worst->place, " at %.100s [%" PRId64 "]: %.9g and %.9g", name, i,
                     (double)x[i], (double)y[i]);
        }
    }
}

static void compare_tensor(const SafetensorsFile *a, const SafetensorsFile *b, const cJSON *item, Worst *worst)
{
    const char *name = item->string;
    const cJSON *other = cJSON_GetObjectItemCaseSensitive(b->header, name);
    if (other == NULL)
        die("%s has no tensor %s, which %s has", b->path, name, a->path);
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    size_t bytes = (size_t)(offset_of(item, 1) - offset_of(item, 0));
    if (!cJSON_Compare(dtype, cJSON_GetObjectItemCaseSensitive(other, "dtype"), true) ||
        bytes != (size_t)(offset_of(other, 1) - offset_of(other, 0)))
        die("%s differs in type or size between %s and %s", name, a->path, b->path);
    void *x = bytes_of(a, item, bytes), *y = bytes_of(b, other, bytes);
    if (strcmp(cJSON_GetStringValue(dtype), "F32") == 0) {
        compare_numbers(name, x, y, (int64_t)(bytes / sizeof(float)), worst);
    } else if (memcmp(x, y, bytes) != 0) {
        worst->difference = INFINITY;
        snprintf(worst->place, sizeof worst->place, " at %.100s, whose bytes differ", name);
    }
    free(x);
    free(y);
}

int main(int argc, char **argv)
{
    job_set_program("compare_weights");
    char *end = NULL;
    double tolerance = argc == 4 ? strtod(argv[3], &end) : -1;
    if (argc != 4 || *end != '\0' || !(tolerance >= 0))
        die("usage: compare_weights FILE FILE TOLERANCE");
    SafetensorsFile a, b;
    Worst worst = {0};
    safetensors_open(&a, argv[1]);
    safetensors_open(&b, argv[2]);
    const int count = cJSON_GetArraySize(a.header), other_count = cJSON_GetArraySize(b.header); /* with the metadata */
    if (count != other_count)
        die("%s holds %d tensors, %s holds %d", a.path, count - 1, b.path, other_count - 1);
    const cJSON *item;
    cJSON_ArrayForEach(item, a.header)
        if (strcmp(item->string, "__metadata__") != 0)
            compare_tensor(&a, &b, item, &worst);
    bool equal = worst.difference <= tolerance;
    printf("compare_weights: %d tensors, largest difference %.3g%s: %s\n", count - 1, worst.difference, worst.place,
           equal ? "equal" : "DIFFERENT");
    safetensors_close(&a);
    safetensors_close(&b);
    return equal ? 0 : 1;
}
