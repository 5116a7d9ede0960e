/* compare_weights.c: do two files that --save wrote hold the same tensors? Of float32, number by number; of another
 * type (the optimizer counts its steps), byte by byte.
 *
 * usage: compare_weights FILE FILE TOLERANCE        exit status 0: yes; 1: no, and a line says which differs most
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "train/files/safetensors.h"

/* The largest difference so far, and where ("": there is none). */
typedef struct Worst {
    double difference;
    char place[200];
} Worst;

/* The entry's bytes; free() them. */
static void *bytes_of(const SafetensorsFile *file, const SafetensorsEntry *entry)
{
    void *bytes = alloc_or_fault((size_t)(entry->end - entry->begin));
    safetensors_read(file, entry, bytes);
    return bytes;
}

static void compare_numbers(const char *name, const float *x, const float *y, int64_t count, Worst *worst)
{
    for (int64_t i = 0; i < count; i++) {
        double difference = fabs((double)x[i] - (double)y[i]);
        if (!isfinite(difference)) /* NaN is equal to nothing, itself included */
            difference = INFINITY;
        if (difference > worst->difference) {
            worst->difference = difference;
            snprintf(worst->place, sizeof worst->place, " at %.100s [%" PRId64 "]: %.9g and %.9g", name, i,
                     (double)x[i], (double)y[i]);
        }
    }
}

static void compare_tensor(const SafetensorsFile *a, const SafetensorsFile *b, const SafetensorsEntry *entry,
                           Worst *worst)
{
    const char *name = safetensors_printable(entry->name);
    const SafetensorsEntry *other = safetensors_find(b, entry->name);
    if (other == NULL)
        die("%s has no tensor %s, which %s has", b->path, name, a->path);
    int64_t bytes = entry->end - entry->begin;
    if (other->dtype != entry->dtype || other->end - other->begin != bytes)
        die("%s differs in type or size between %s and %s", name, a->path, b->path);
    void *x = bytes_of(a, entry), *y = bytes_of(b, other);
    if (entry->dtype == DTYPE_F32) {
        compare_numbers(name, x, y, bytes / (int64_t)sizeof(float), worst);
    } else if (memcmp(x, y, (size_t)bytes) != 0) {
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
    if (a.count != b.count)
        die("%s holds %d tensors, %s holds %d", a.path, a.count, b.path, b.count);
    for (int i = 0; i < a.count; i++)
        compare_tensor(&a, &b, &a.entries[i], &worst);
    bool equal = worst.difference <= tolerance;
    printf("compare_weights: %d tensors, largest difference %.3g%s: %s\n", a.count, worst.difference, worst.place,
           equal ? "equal" : "DIFFERENT");
    safetensors_close(&a);
    safetensors_close(&b);
    return equal ? 0 : 1;
}
