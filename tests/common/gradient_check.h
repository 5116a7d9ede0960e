/* gradient_check.h: is an operation's backward pass the derivative of its forward pass?
 *
 * For each operation test_ops.c has the same formula in float64, forward only. Its derivative is computed numerically:
 * change one input a little and measure the change of the output. So no gradient must be derived (and mistyped) a
 * second time. In float64 a numerical derivative has nine correct digits, many more than float32.
 *
 * The gradient of the operation's output is a random direction: with (1, 1, ..., 1) many mistakes cancel, especially in
 * softmax and layernorm.
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
    double chain;     /* the largest number of roundings between an input and a result */
    const char *hint; /* what usually causes a difference */
};

/* Random numbers for one test: every operand, in float32 and the same in float64, and a direction. */
typedef struct Draw {
    float *values[MAX_OPERANDS];
    double *exact[MAX_OPERANDS];
    float *direction; /* as many as outputs */
} Draw;

/* The results of one run of the operation, on the host. */
typedef struct Result {
    float *out;
    float *gradient[MAX_OPERANDS]; /* NULL: the operation gave none */
} Result;

/* Checks that results and gradients are right (operands used once and twice), and depend neither on addresses nor on
 * which of the operands need a gradient. */
void check_problem(const Problem *problem);

Draw draw(const Problem *problem);
void draw_free(Draw *drawn);

/* Random numbers in [0, limit); free() them. */
int32_t *draw_indices(int64_t count, uint64_t limit);

/* Applies the operation `uses` times (1 or 2) to the same operands, and runs backward. Operand k needs a gradient if
 * bit k of `needs` is set. shift: cache lines by which addresses are moved. */
Result run(const Problem *problem, const Draw *drawn, unsigned needs, int uses, int shift);
void result_free(Result *result);

/* The numbers of a tensor on the host, whatever format the device keeps them in; free() them. */
float *numbers_of_tensor(const Tensor *tensor);

int64_t operand_count(const Problem *problem, int k);

/* "linear 5x7: gradient of operand 1"; without the number if k < 0. Valid until the next call. */
const char *label(const Problem *problem, const char *what, int k);

/* expect_close() with a tolerance that follows from problem->chain. */
void compare(const Problem *problem, const char *name, const float *actual, const float *expected, int64_t count,
             const char *hint);

#endif
