/* device_numbers.h: for tests of device.h: deterministic numbers, rounding from its definition, and comparison with
 * float64 within a bound for each element. */
#ifndef LOCKSTEP_TESTS_DEVICE_NUMBERS_H
#define LOCKSTEP_TESTS_DEVICE_NUMBERS_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "expect.h"

#define U 0x1p-24     /* unit round-off of float32: half of the distance from 1 to the next number */
#define TINY 0x1p-126 /* the smallest normal float32: exp() and similar functions may return 0 below it */

/* ---- numbers: freed after each test by free_room(), its teardown ---- */
float *room_for_floats(int64_t count);   /* zeros */
double *room_for_doubles(int64_t count); /* zeros */
void seed_numbers(uint64_t seed);        /* the next numbers follow from it; after free_room() it is 1 */
float *normals(int64_t count);           /* the next random numbers */
float *normals_around(float middle, float scale, int64_t count);
int32_t *indices_below(int32_t limit, int64_t count);
int free_room(void **state);

/* The number of the format that is nearest to x, ties to even: from the definition, not from the library. */
double nearest_in(DType precision, double x);
/* Each number rounded so; the same numbers in float32. */
float *rounded(const float *x, DType precision, int64_t count);
double unit_of(DType precision); /* the unit round-off; 0 for DTYPE_F32: its operands are not rounded */

/* Device memory that holds these bytes; device_free() it. */
void *device_copy_of(const void *host, size_t bytes);
/* Numbers on the device as an operand; device_free() it. */
void *operand_of(const void *x, DType precision, int64_t n);
/* The other way: sets x (device) to an operand's numbers. */
void numbers_of(float *x, const void *operand, DType precision, int64_t n);

/* |actual - expected| <= bound, element by element; NaN never passes, and an empty array always. */
void expect_within(const char *name, const float *actual, const double *expected, const double *bound, int64_t count,
                   const char *hint);

#endif
