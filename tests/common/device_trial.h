/* device_trial.h: one call of a function of device.h, compared with float64.
 *
 * Interface:
 *   Trial trial = {.name = "relu", .call = call_relu, .shape = {n}};
 *   trial_input(&trial, x, n);                    array 0: on the host; the call must leave it as it is
 *   trial_output(&trial, "dx", start, n);         array 1: its numbers before the call. NULL: NaN, the call must set it
 *   trial_null(&trial);                           array 2: the call gets NULL
 *                                                 (an output may be a gradient: the call gets it by trial_gradient())
 *   trial_run(&trial);                            calls call(&trial, arrays), the arrays in device memory
 *   trial_expect(&trial, 1, expected, bound, "hint");
 *
 * trial_run() calls twice, with the arrays at different addresses, and the results must have the same bits.
 *
 * Bounds. Each operation of float32 has a relative error of at most U. So the error of a sum of n numbers, in any
 * order, is at most about n U times the sum of their sizes, and that of a chain of n products n U times its result.
 * Each test counts the operations of its formula in a comment, and allows that error and no more. The bound holds for
 * every order of summation, so each device may choose its own.
 */
#ifndef LOCKSTEP_TESTS_DEVICE_TRIAL_H
#define LOCKSTEP_TESTS_DEVICE_TRIAL_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "expect.h"

#define U 0x1p-24     /* unit round-off of float32: half of the distance from 1 to the next number */
#define TINY 0x1p-126 /* the smallest normal float32: exp() and similar functions may return 0 below it */
#define TRIAL_ARRAYS 10

typedef struct TrialArray {
    const char *name;  /* NULL: an input */
    const void *start; /* count numbers of 4 bytes */
    bool starts_as_nan;
    int64_t count; /* -1: the call gets NULL */
    float *result;
} TrialArray;

typedef struct Trial Trial;
struct Trial {
    const char *name;
    void (*call)(const Trial *trial, void **array); /* pointers are void: operands, tokens */
    int64_t shape[4];
    int heads; /* attention */
    DType precision;
    const void *extra; /* other arguments of the call */
    TrialArray array[TRIAL_ARRAYS];
    int arrays;
};

void trial_input(Trial *trial, const void *values, int64_t count);
void trial_output(Trial *trial, const char *name, const float *start, int64_t count);
void trial_null(Trial *trial);
void trial_run(Trial *trial);
/* For call(): array i as a gradient. If the trial gave it a start, contributions are added; otherwise the first is
 * set. */
Gradient trial_gradient(const Trial *trial, void **array, int i);
double start_at(const float *start, int64_t i); /* start[i]; 0 if start is NULL */
/* |result - expected| <= bound, element by element; NaN never passes, and an empty array always. */
void trial_expect(const Trial *trial, int array, const double *expected, const double *bound, const char *hint);
/* The result, an operand, holds no number that trial->precision does not have. */
void trial_expect_rounded(const Trial *trial, int array);
/* The result at `index` is NaN: the call must not lose an input's NaN. */
void trial_expect_nan(const Trial *trial, int array, int64_t index, const char *hint);

/* Runs trial_expect() for any array on the host. */
void expect_within(const char *name, const float *actual, const double *expected, const double *bound, int64_t count,
                   const char *hint);

/* ---- numbers: freed after each test by free_room(), its teardown ---- */
float *room_for_floats(int64_t count);   /* zeros */
double *room_for_doubles(int64_t count); /* zeros */
float *normals(int64_t count);           /* the next random numbers */
float *normals_around(float middle, float scale, int64_t count);
int32_t *indices_below(int32_t limit, int64_t count);
int free_room(void **state);

/* The number of the format that is nearest to x, ties to even: from the definition, not from the library. */
double nearest_in(DType precision, double x);
/* Each number rounded so; the same numbers in float32. */
float *rounded(const float *x, DType precision, int64_t count);
double unit_of(DType precision); /* the unit round-off; 0 for DTYPE_F32: its operands are not rounded */
/* The error of a result x after rounding to `precision`, if it was `off` before. */
double off_when_rounded(DType precision, double x, double off);

/* Device memory that holds these bytes; device_free() it. */
void *device_copy_of(const void *host, size_t bytes);
/* Numbers on the device as an operand; device_free() it. */
void *operand_of(const void *x, DType precision, int64_t n);
/* The other way: sets x (device) to an operand's numbers. */
void numbers_of(float *x, const void *operand, DType precision, int64_t n);

#endif
