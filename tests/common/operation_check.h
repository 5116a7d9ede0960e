/* operation_check.h: one table of operations drives all tests of kernels and of autograd's operations.
 *
 * A row (Operation) has a forward pass and a backward pass by device.h, the same by the tape, and a reference: the
 * forward pass in plain C and in float64. No derivative is written down a second time: the reference's is computed
 * numerically, by changing one input a little. In float64 that has nine correct digits, many more than float32.
 * The output's gradient is a random direction: with (1, 1, ..., 1) many mistakes cancel, especially in softmax.
 *
 * For each shape check_operation() finds out whether
 *   - results and gradients are those of the reference, within the operation's roundings;
 *   - the first contribution to a gradient is set (=), whatever lies there, even NaN, and later ones are added (+=);
 *   - nothing is written before and after an array, and no input is changed;
 *   - two runs, with other addresses, give the same bits, and so do gradients if others are not needed;
 *   - an input's NaN reaches the results that it should;
 *   - a gradient that the device stores in 16 bits is the one in float32, rounded;
 *   - the tape gives the bits of the kernels, and adds twice if an operation is used twice.
 *
 * Shapes are drawn: LOCKSTEP_SEED=N runs the shapes and numbers of that seed only. A message names its seed. */
#ifndef LOCKSTEP_TESTS_OPERATION_CHECK_H
#define LOCKSTEP_TESTS_OPERATION_CHECK_H

#include "autograd/tape.h"
#include "device_numbers.h"

#define CHECKED_ARRAYS 9
#define CHECKED_DIMS 4

typedef enum ArrayKind {
    ARRAY_INPUT,    /* float32, may need a gradient */
    ARRAY_ROUNDED,  /* the same, but the operation rounds it to the case's precision. Array 0: dout, too */
    ARRAY_FIXED,    /* float32, has no gradient */
    ARRAY_INDICES,  /* int32 */
    ARRAY_IN_PLACE, /* float32, read and written */
    ARRAY_OUTPUT,   /* float32, set: holds NaN before */
    ARRAY_WORK,     /* memory of the kernels' own, from forward to backward */
} ArrayKind;

typedef struct CheckedArray {
    const char *name;
    ArrayKind kind;
    int ndim;
    int64_t shape[3], count;
    float *start; /* what it holds before, on the host; INDICES: int32_t */
} CheckedArray;

typedef struct Operation Operation;

/* One shape of an operation, with numbers. */
typedef struct Case {
    const Operation *operation;
    int64_t dim[CHECKED_DIMS];
    DType precision;
    uint64_t seed;
    CheckedArray array[CHECKED_ARRAYS];
    int arrays;
    int out;           /* the first output */
    float *direction;  /* the gradient of `out` */
    float *sums[CHECKED_ARRAYS]; /* what the gradients hold before something is added */
} Case;

struct Operation {
    const char *name;
    int64_t largest[CHECKED_DIMS]; /* sizes are drawn from 1 to this; 0: no such dimension */
    int64_t smallest;              /* but not from 1 to below this */
    int never_empty;               /* bit k: dimension k must not be 0 */
    const int64_t (*shapes)[CHECKED_DIMS]; /* further shapes; an element of -1 ends them */
    float scale, offset;           /* array 0 is offset + scale * normal; the others are normal */
    bool has_precisions;           /* also bf16 and fp16 */
    double units;                  /* then: the error, in their unit round-off. 0: operands alone are rounded */
    bool stores_16_bits;           /* its gradient may be stored in 16 bits on a GPU */
    bool element_wise;             /* output i depends on element i of every input alone */
    bool cpu_only, keeps_nan;
    const void *extra;             /* for the row's own functions */
    void (*describe)(Case *c);     /* calls add_array() for each array, the outputs after the inputs */
    /* a: device pointers, one for each array. d: gradients, one for each array. NULL: the operation has none. */
    void (*forward)(const Case *c, void **a);
    void (*backward)(const Case *c, void **a, const Gradient *d, const float *dout);
    /* tensor: one for each input. Returns the output. */
    Tensor *(*record)(const Case *c, Tape *tape, Tensor **tensor, void **a);
    void (*reference)(const Case *c, double **a); /* indices: from c->array[] */
    double (*roundings)(const Case *c);           /* the largest number between an input and a result; NULL: 2 */
    const char *hint;                             /* what usually causes a difference */
};

/* For describe(): a further array, with random numbers; returns them, to be changed. Sizes: up to three, then -1. */
float *add_array(Case *c, const char *name, ArrayKind kind, int64_t rows, int64_t columns, int64_t depth);

/* Runs a row with all shapes that are drawn, and its own. */
void check_operation(const Operation *operation);

/* ---- for the driver's two files ---- */

/* What a run leaves, on the host. NULL: not written. */
typedef struct Results {
    float *array[CHECKED_ARRAYS];
    float *gradient[CHECKED_ARRAYS];
} Results;

bool is_differentiable(const CheckedArray *array);
/* "linear, shape 5 x 0 x 3, bfloat16, seed 7: weight" */
const char *case_label(const Case *c, const char *what, const char *name);
/* One use, or two uses of the same inputs, on a tape; bit k of needs: array k needs a gradient. Only `out` of
 * the results' arrays is set. */
Results run_on_tape(const Case *c, unsigned needs, int uses);
/* The results and gradients of the reference within what the operation's roundings explain. uses: how often the
 * gradient was added. */
void expect_reference(const Case *c, const Results *results, int uses);

/* The tables. */
extern const Operation elementwise_operations[], update_operations[], layer_operations[], loss_operations[];

#endif
