/* operations.c: each operation of a GPT training step on its own, with the shapes of `--model gpt --batch-size 16` on
 * one rank, beside two bounds: what the processor can multiply, and what it can copy. An operation far from both is
 * worth a look: the compiler may have stopped vectorising it.
 *
 *   operations [ROUNDS]     default: 9; the median of the rounds counts
 *
 * The model of the bounds is the roofline of Williams, Waterman, Patterson, 2009. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "device/device.h"

enum { BATCH = 16, T = 128, C = 256, HEADS = 4, LAYERS = 4, V = 256, ROWS = BATCH * T, WIDE = 4 * C,
       PARAMETERS = 3257856, MAX_ROUNDS = 99, CUBE = 1024 };

/* Buffers, each large enough for every use: rows of WIDE floats, or all parameters. */
static float *x, *out, *dout, *dx, *weight, *dweight, *bias, *dbias, *saved, *scratch, *mean, *rstd;
static double *squares;
static int32_t tokens[ROWS];

typedef struct Operation {
    const char *name;
    int calls;           /* in a step */
    double flops, bytes; /* of one call; bytes: inputs read once and outputs written once. 0: not the bound */
    void (*run)(int64_t n_in, int64_t n_out);
    int64_t n_in, n_out; /* for run(): sizes of a row */
    double seconds[MAX_ROUNDS];
} Operation;

static Gradient first(float *values)
{
    return (Gradient){.values = values, .dtype = DTYPE_F32};
}

static void copy(int64_t n_in, int64_t n_out) { device_copy(out, x, (size_t)(n_in * n_out) * sizeof *x); }
static void cube(int64_t n_in, int64_t n_out)
{
    device_linear_forward(out, x, weight, NULL, CUBE, n_in, n_out, DTYPE_F32);
}
static void linear(int64_t n_in, int64_t n_out)
{
    device_linear_forward(out, x, weight, bias, ROWS, n_in, n_out, DTYPE_F32);
}
static void linear_backward(int64_t n_in, int64_t n_out)
{
    device_linear_backward(first(dx), first(dweight), first(dbias), dout, x, weight, ROWS, n_in, n_out, DTYPE_F32);
}
static void attention(int64_t n_in, int64_t n_out)
{
    (void)n_in;
    device_attention_forward(out, saved, x, BATCH, T, n_out, HEADS, DTYPE_F32);
}
static void attention_backward(int64_t n_in, int64_t n_out)
{
    (void)n_in;
    device_attention_backward(first(dx), scratch, dout, x, out, saved, BATCH, T, n_out, HEADS, DTYPE_F32);
}
static void layernorm(int64_t n, int64_t rows) { device_layernorm_forward(out, mean, rstd, x, weight, bias, rows, n); }
static void layernorm_backward(int64_t n, int64_t rows)
{
    device_layernorm_backward(first(dx), first(dweight), first(dbias), dout, x, mean, rstd, weight, rows, n);
}
static void gelu(int64_t n, int64_t rows) { device_gelu_forward(out, x, n * rows); }
static void gelu_backward(int64_t n, int64_t rows) { device_gelu_backward(first(dx), x, dout, n * rows); }
static void add(int64_t n, int64_t rows) { device_add(out, x, dout, n * rows); }
static void add_backward(int64_t n, int64_t rows)
{
    device_contribute((Gradient){.values = dx, .add = true, .dtype = DTYPE_F32}, dout, n * rows);
}
static void embedding(int64_t n, int64_t rows)
{
    (void)rows;
    device_embedding_forward(out, tokens, weight, bias, BATCH, T, n);
}
static void embedding_backward(int64_t n, int64_t rows)
{
    (void)rows;
    device_embedding_backward(dweight, dbias, dout, tokens, BATCH, T, n);
}
static void cross_entropy(int64_t n, int64_t rows)
{
    device_cross_entropy_forward(scratch, mean, rstd, x, tokens, rows, n);
}
static void cross_entropy_backward(int64_t n, int64_t rows)
{
    device_cross_entropy_backward(first(dx), scratch, x, mean, rstd, tokens, rows, n);
}
static void scale(int64_t n, int64_t rows) { device_scale(dweight, 1.0f, n * rows); }
static void sum_of_squares(int64_t n, int64_t rows) { device_sum_of_squares(squares, dweight, n * rows); }
static void adamw(int64_t n, int64_t rows)
{
    const DeviceUpdate update = {.weight = weight, .grad = dweight, .factor = scratch, .n = n * rows};
    device_adamw(&update, dout, out, 0, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 0.5f);
}

#define LINEAR(name, count, in, outs) \
    {name, count, 2.0 * ROWS * (in) * (outs), 4.0 * (ROWS * ((in) + (outs)) + (in) * (outs)), linear, in, outs, {0}}, \
    {name " backward", count, 4.0 * ROWS * (in) * (outs), 8.0 * (ROWS * ((in) + (outs)) + (in) * (outs)), \
     linear_backward, in, outs, {0}}
/* A causal position sees half of the others on the mean: two products forward, four backward. */
#define ATTENTION_FLOPS (2.0 * BATCH * T * T * C)

static Operation operations[] = {
    {"(largest product)", 0, 2.0 * CUBE * CUBE * CUBE, 0, cube, CUBE, CUBE, {0}},
    {"(copy)", 0, 0, 8.0 * ROWS * WIDE, copy, ROWS, WIDE, {0}},
    LINEAR("linear C -> 3C", LAYERS, C, 3 * C),
    LINEAR("linear C -> C", LAYERS, C, C),
    LINEAR("linear C -> 4C", LAYERS, C, 4 * C),
    LINEAR("linear 4C -> C", LAYERS, 4 * C, C),
    LINEAR("linear C -> V", 1, C, V),
    {"attention", LAYERS, ATTENTION_FLOPS, 4.0 * (4 * ROWS * C + BATCH * HEADS * T * T), attention, 3 * C, C, {0}},
    {"attention backward", LAYERS, 2 * ATTENTION_FLOPS, 4.0 * (7 * ROWS * C + BATCH * HEADS * T * T),
     attention_backward, 3 * C, C, {0}},
    {"layernorm", 2 * LAYERS + 1, 0, 8.0 * ROWS * C, layernorm, C, ROWS, {0}},
    {"layernorm backward", 2 * LAYERS + 1, 0, 12.0 * ROWS * C, layernorm_backward, C, ROWS, {0}},
    {"gelu", LAYERS, 0, 8.0 * ROWS * WIDE, gelu, WIDE, ROWS, {0}},
    {"gelu backward", LAYERS, 0, 12.0 * ROWS * WIDE, gelu_backward, WIDE, ROWS, {0}},
    {"add", 2 * LAYERS, 0, 12.0 * ROWS * C, add, C, ROWS, {0}},
    {"add backward", 2 * LAYERS, 0, 12.0 * ROWS * C, add_backward, C, ROWS, {0}},
    {"embedding", 1, 0, 8.0 * ROWS * C, embedding, C, ROWS, {0}},
    {"embedding backward", 1, 0, 8.0 * ROWS * C, embedding_backward, C, ROWS, {0}},
    {"cross-entropy", 1, 0, 4.0 * ROWS * V, cross_entropy, V, ROWS, {0}},
    {"cross-entropy backward", 1, 0, 8.0 * ROWS * V, cross_entropy_backward, V, ROWS, {0}},
    {"scale gradients", 1, 0, 8.0 * PARAMETERS, scale, PARAMETERS, 1, {0}},
    {"sum of squares", 1, 0, 4.0 * PARAMETERS, sum_of_squares, PARAMETERS, 1, {0}},
    {"AdamW", 1, 0, 28.0 * PARAMETERS, adamw, PARAMETERS, 1, {0}},
};
enum { OPERATIONS = sizeof operations / sizeof *operations };

static float *buffer(int64_t count, float size, Rng *rng)
{
    float *values = device_alloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = size * (rng_uniform(rng) - 0.5f);
    return values;
}

static void make_buffers(void)
{
    Rng rng;
    rng_seed(&rng, 1);
    float **large[] = {&x, &out, &dout, &dx, &weight, &dweight};
    for (int i = 0; i < 6; i++)
        *large[i] = buffer(PARAMETERS > ROWS * WIDE ? PARAMETERS : ROWS * WIDE, 2, &rng);
    float **small[] = {&bias, &dbias, &mean, &rstd};
    for (int i = 0; i < 4; i++)
        *small[i] = buffer(T * C, 2, &rng);
    saved = buffer(device_attention_saved(BATCH, T, C, HEADS), 2, &rng);
    scratch = buffer(device_attention_scratch(BATCH, T, C, HEADS), 2, &rng);
    scratch[0] = 1; /* the loss's gradient, and the optimizer's factor */
    squares = device_alloc(squares_blocks(PARAMETERS) * sizeof *squares);
    for (int i = 0; i < ROWS; i++)
        tokens[i] = (int32_t)rng_below(&rng, V);
}

/* Seconds of one call: calls follow one another for 10 milliseconds, as most data of a step is in the caches, too. */
static double measure(const Operation *operation)
{
    double begin = now_seconds(), end = begin;
    long calls = 0;
    for (; end - begin < 0.01; end = now_seconds(), calls++)
        operation->run(operation->n_in, operation->n_out);
    return (end - begin) / (double)calls;
}

static int ascending(const void *a, const void *b)
{
    const double *left = a, *right = b;
    return (*left > *right) - (*left < *right);
}

static double median(Operation *operation, int rounds)
{
    qsort(operation->seconds, (size_t)rounds, sizeof(double), ascending);
    return operation->seconds[rounds / 2];
}

static void print_table(int rounds)
{
    const double flops_rate = operations[0].flops / median(&operations[0], rounds);
    const double bytes_rate = operations[1].bytes / median(&operations[1], rounds);
    double sum = 0, bound_sum = 0;
    printf("%s; bounds: %.0f GFLOP/s (a product of %d x %d), %.1f GB/s (copy of %.0f MB)\n", device_description(),
           flops_rate / 1e9, CUBE, CUBE, bytes_rate / 1e9, 4e-6 * ROWS * WIDE);
    printf("%-26s %6s %10s %9s %8s %10s\n", "operation", "calls", "ms a step", "GFLOP/s", "GB/s", "of bound");
    for (int i = 2; i < OPERATIONS; i++) {
        Operation *o = &operations[i];
        const double seconds = median(o, rounds), bound = fmax(o->flops / flops_rate, o->bytes / bytes_rate);
        printf("%-26s %6d %10.2f %9.1f %8.1f %9.0f%%\n", o->name, o->calls, 1e3 * seconds * o->calls,
               o->flops / seconds / 1e9, o->bytes / seconds / 1e9, 100 * bound / seconds);
        sum += seconds * o->calls;
        bound_sum += bound * o->calls;
    }
    printf("%-26s %6s %10.2f %9s %8s %9.0f%%\n", "all", "", 1e3 * sum, "", "", 100 * bound_sum / sum);
}

int main(int argc, char **argv)
{
    char *end = "";
    const long typed = argc > 1 ? strtol(argv[1], &end, 10) : 9;
    const int rounds = typed < 0 || typed > MAX_ROUNDS ? 0 : (int)typed;
    job_set_program("operations");
    if (argc > 2 || *end != '\0' || rounds == 0)
        die("usage: operations [ROUNDS], from 1 to %d", MAX_ROUNDS);
    device_choose_kernels(argv);
    device_init(0, 1);
    make_buffers();
    for (int i = 0; i < OPERATIONS; i++)
        operations[i].run(operations[i].n_in, operations[i].n_out); /* not counted */
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < OPERATIONS; i++)
            operations[i].seconds[round] = measure(&operations[i]);
    print_table(rounds);
    return 0;
}
