/* gradient_check.h: is an operation's backward pass the derivative of its forward pass?
 *
 * Beside each operation test_ops.c has the same formula in float64, forward only. Its derivative is taken
 * numerically: nudge one input, see how the output moves. So nobody has to derive (and mistype) a gradient a second
 * time. In float64 a numerical derivative is good to nine digits, far better than the float32 that it judges.
 *
 * The gradient that the operation receives from above is a random direction: with (1, 1, ..., 1) many mistakes
 * cancel, in a softmax or a layernorm above all.
 *
 * Interface: fill a Problem, call check_problem(). The other functions are its parts, for tests of another kind.
 */
#ifndef LOCKSTEP_TESTS_GRADIENT_CHECK_H
#define LOCKSTEP_TESTS_GRADIENT_CHECK_H

#include "autograd/ops.h"

#define MAX_OPERANDS 4

typedef struct Problem Problem;
struct Problem {
    const char *name;
    int operands;                   /* tensors that can need a gradient */
    int64_t shape[MAX_OPERANDS][3]; /* -1: one dimension less */
    int64_t outputs;                /* elements of the result */
    int heads;                      /* attention only */
    DType precision;                /* of the tape; 0 is DTYPE_F32 */
    float scale, offset;            /* operand 0 is offset + scale * normal; the others are normal */
    const void *fixed;              /* on the host: tokens, targets: whatever needs no gradient; 4 bytes each */
    int64_t fixed_count;
    /* The formula in float64, and lockstep's operation (fixed: device memory). */
    void (*reference)(const Problem *problem, double *out, double *const *operand);
    Tensor *(*apply)(const Problem *problem, Tape *tape, Tensor **operand, const void *fixed);
    double chain;     /* how many roundings lie, at most, between an input and a result */
    const char *hint; /* what usually causes a difference */
};

/* Random numbers for one test: every operand, in float32 and the same in float64, and a direction. */
typedef struct Draw {
    float *values[MAX_OPERANDS];
    double *exact[MAX_OPERANDS];
    float *direction; /* as many as outputs */
} Draw;

/* What one run of the operation gave, on the host. */
typedef struct Result {
    float *out;
    float *gradient[MAX_OPERANDS]; /* NULL: the operation gave none */
} Result;

/* Results and gradients are right (used once and used twice), do not depend on addresses, nor on which of the
 * operands need a gradient. */
void check_problem(const Problem *problem);

Draw draw(const Problem *problem);
void draw_free(Draw *drawn);

/* Random numbers in [0, limit); free() them. */
int32_t *draw_indices(int64_t count, uint64_t limit);

/* Applies the operation `uses` times (1 or 2) to the same operands and goes back. Operand k needs a gradient if bit
 * k of `needs` is set. shift: cache lines by which addresses are moved. */
Result run(const Problem *problem, const Draw *drawn, unsigned needs, int uses, int shift);
void result_free(Result *result);

int64_t operand_count(const Problem *problem, int k);

/* "linear 5x7: gradient of operand 1"; without the number if k < 0. Valid until the next call. */
const char *label(const Problem *problem, const char *what, int k);

/* expect_close() with a tolerance that follows from problem->chain. */
void compare(const Problem *problem, const char *name, const float *actual, const float *expected, int64_t count,
             const char *hint);

#endif
