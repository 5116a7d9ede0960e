/* device_cpu.c: the kernels on the CPU, first part: the device, ranges, memory, element-wise operations, linear.
 * (Layernorm and embedding: device_cpu_layernorm.c. Attention: device_cpu_attention.c. Losses, optimizers and the rest:
 * device_cpu_update.c.)
 *
 * OpenBLAS computes matrix products; the rest is plain loops, written so that the compiler vectorises them. For that
 * it needs -O3 -march=native -fopenmp-simd -fno-math-errno -fno-trapping-math (errno and the exception flags are not
 * read here). Do not use -ffast-math: it would reorder sums and ignore NaN.
 */
#include "device/device.h"

#include "base/check.h"
#include "device/device_cpu_math.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- the device ---- */

/* Only OpenBLAS has these functions. Weak: with another BLAS they are NULL, and the program still links. */
extern void openblas_set_num_threads(int threads) __attribute__((weak));
extern char *openblas_get_corename(void) __attribute__((weak));
extern char *openblas_get_config(void) __attribute__((weak));
/* oneDNN's threads are those of OpenMP. NULL if the program is linked to neither. */
extern void omp_set_num_threads(int threads) __attribute__((weak));

static char description[128] = "cpu";

/* OpenBLAS chooses its kernels from a list of processors when it is loaded. A processor newer than this list gets
 * generic kernels, which are several times slower. Only an environment variable can change the choice, so the program
 * restarts itself with one. If the restart fails, the program continues with the generic kernels. */
void device_choose_kernels(char **argv)
{
    const char *better = NULL;
#if defined(__x86_64__)
    better = __builtin_cpu_supports("avx512bw") ? "SkylakeX" : __builtin_cpu_supports("avx2") ? "Haswell" : NULL;
#endif
    if (getenv("OPENBLAS_CORETYPE") != NULL || openblas_get_corename == NULL || better == NULL ||
        strcmp(openblas_get_corename(), "Prescott") != 0)
        return;
    setenv("OPENBLAS_CORETYPE", better, 1);
    execv("/proc/self/exe", argv);
}

/* Blocks of at least this many bytes go back to the system as soon as they are freed. By default the C library raises
 * this limit while the program runs, and the process would keep the memory that the first step's arena freed. */
#define RETURNED_WHEN_FREED (256 * 1024)

#define BLAS_BUFFER ((size_t)32 << 22) /* bytes that OpenBLAS 0.3 allocates per thread on x86-64; less on other CPUs */

/* OpenBLAS allocates its buffer in the first product, and if there is not enough memory, it retries for ever. So try to
 * allocate the same amount first, free it, and let OpenBLAS allocate its buffer now, in a product of one number. */
static void check_blas_has_memory(int threads)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN), running = threads < cores ? threads : cores;
    void *trial = malloc((size_t)running * BLAS_BUFFER);
    CHECK(trial != NULL, "no memory for OpenBLAS, which wants %zu MiB for each of %ld thread(s): is there a limit "
          "(ulimit -v)?", BLAS_BUFFER >> 20, running);
    free(trial);
    float a = 1, c = 0;
    cblas_ssyrk(CblasRowMajor, CblasUpper, CblasNoTrans, 1, 1, 1, &a, 1, 0, &c, 1);
}

void device_init(int local_rank, int threads)
{
    (void)local_rank; /* the operating system places CPU processes */
#ifdef M_MMAP_THRESHOLD
    mallopt(M_MMAP_THRESHOLD, RETURNED_WHEN_FREED);
#endif
    const char *plural = threads == 1 ? "" : "s";
    if (openblas_set_num_threads == NULL || openblas_get_corename == NULL || openblas_get_config == NULL) {
        snprintf(description, sizeof description, "cpu, a BLAS that is not OpenBLAS");
        return;
    }
    check_blas_has_memory(threads);
    openblas_set_num_threads(threads);
    if (omp_set_num_threads != NULL)
        omp_set_num_threads(threads);
    char version[32] = "";
    sscanf(openblas_get_config(), "OpenBLAS %31s", version);
    snprintf(description, sizeof description, "cpu, OpenBLAS %s %s kernels, %d thread%s%s", version,
             openblas_get_corename(), threads, plural, rounded_products_by());
}

void device_init_thread(void)
{
    /* nothing to choose: a CPU thread computes where it runs */
}

DeviceKind device_kind(void)
{
    return DEVICE_CPU;
}

const char *device_description(void)
{
    return description;
}

const char *device_identity(void)
{
    return "";
}

void device_allow_tf32(bool allow)
{
    (void)allow;
}

void device_synchronize(void)
{
    /* nothing to wait for: every kernel has done its work when it returns */
}

bool device_is_idle(void)
{
    return true;
}

DeviceEvent *device_event_record(void)
{
    return NULL;
}

void device_event_wait(DeviceEvent *event)
{
    (void)event; /* nothing is in progress */
}

/* ---- ranges ---- */

/* They do nothing: a kernel's work is done when it returns, so the host's clock and profilers show where time goes. */
void device_range_begin(const char *format, ...)
{
    (void)format;
}

void device_range_begin_on(void *stream, const char *format, ...)
{
    (void)stream;
    (void)format;
}

void device_range_end(void)
{
}

void device_mark(const char *format, ...)
{
    (void)format;
}

void device_timeline_begin(void)
{
}

void device_timeline_end(void)
{
}

/* ---- memory ---- */

size_t device_alignment(void)
{
    return 64; /* one cache line, one AVX-512 register */
}

void *device_alloc(size_t bytes)
{
    return alloc_or_fault(bytes);
}

void device_free(void *memory)
{
    free(memory);
}

void device_to_host(void *host, const void *device, size_t bytes)
{
    if (bytes > 0)
        memcpy(host, device, bytes);
}

void device_from_host(void *device, const void *host, size_t bytes)
{
    if (bytes > 0)
        memcpy(device, host, bytes);
}

void device_copy(void *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        memcpy(to, from, bytes);
}

void device_zero(void *memory, size_t bytes)
{
    if (bytes > 0)
        memset(memory, 0, bytes);
}

bool device_owns(const void *memory)
{
    (void)memory;
    return false;
}

void *device_alloc_host(size_t bytes)
{
    return alloc_or_fault(bytes);
}

void device_free_host(void *memory)
{
    free(memory);
}

/* ---- gradients ---- */

void device_contribute(Gradient to, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        to.values[i] = so_far(to, i) + x[i];
}

/* ---- element-wise ---- */

void device_add(float *out, const float *a, const float *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

void device_fill(float *x, float value, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = value;
}

void device_scale(float *x, float factor, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        x[i] *= factor;
}

void device_scale_by(float *x, const float *factor, int64_t n)
{
    if (*factor != 1)
        device_scale(x, *factor, n);
}

void device_relu_forward(float *out, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i] < 0 ? 0 : x[i]; /* written so that NaN stays NaN */
}

void device_relu_backward(Gradient dx, const float *x, const float *dout, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        /* forward: out = x < 0 ? 0 : x. At 0 the gradient is defined as 0, as in PyTorch. */
        dx.values[i] = so_far(dx, i) + (x[i] > 0 ? dout[i] : 0);
    }
}

/* GELU's tanh form is x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3). Because (1 + tanh(u)) / 2 = sigmoid(2u),
 * it equals x sigmoid(2u): one exp, and no cancellation where tanh(u) is near -1. */
static const float GELU_SLOPE = 1.59576912f; /* 2 sqrt(2/pi) */
static const float GELU_CUBIC = 0.044715f;

void device_gelu_forward(float *out, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float two_u = GELU_SLOPE * x[i] * (1 + GELU_CUBIC * x[i] * x[i]);
        const float sigmoid = 1 / (1 + exp_of(-two_u));
        out[i] = x[i] * sigmoid;
    }
}

static inline float gelu_derivative(float x)
{
    const float square = x * x;
    const float two_u = GELU_SLOPE * x * (1 + GELU_CUBIC * square);
    const float dtwo_u = GELU_SLOPE * (1 + 3 * GELU_CUBIC * square); /* d(2u) / dx */
    const float sigmoid = 1 / (1 + exp_of(-two_u));
    /* forward: out = x * sigmoid(2u), and sigmoid' = sigmoid (1 - sigmoid) */
    return sigmoid + x * sigmoid * (1 - sigmoid) * dtwo_u;
}

/* Two loops instead of so_far(): GCC 12 vectorises neither long loop with a condition that is the same for all i. */
void device_gelu_backward(Gradient dx, const float *x, const float *dout, int64_t n)
{
    if (dx.add) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dx.values[i] += dout[i] * gelu_derivative(x[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dx.values[i] = dout[i] * gelu_derivative(x[i]);
    }
}

/* ---- linear ---- */

void device_linear_forward(float *out, const void *x, const void *weight, const float *bias, int64_t rows,
                           int64_t n_in, int64_t n_out, DType precision)
{
    /* Each row starts with the bias, and the product is added to it: that saves a second pass over out. */
    for (int64_t row = 0; row < rows && n_out > 0; row++) {
        if (bias != NULL)
            memcpy(out + row * n_out, bias, (size_t)n_out * sizeof *out);
        else
            memset(out + row * n_out, 0, (size_t)n_out * sizeof *out);
    }
    rounded_product(out, x, false, weight, true, true, rows, n_out, n_in, precision);
}

void device_linear_backward(Gradient dx, Gradient dweight, Gradient dbias, const void *dout, const void *x,
                            const void *weight, int64_t rows, int64_t n_in, int64_t n_out, DType precision)
{
    /* forward: out (rows, n_out) = x weight^T + bias, so dx = dout weight, dweight = dout^T x, dbias = sum of rows */
    if (dx.values != NULL)
        rounded_product(dx.values, dout, false, weight, false, dx.add, rows, n_in, n_out, precision);
    if (dweight.values != NULL)
        rounded_product(dweight.values, dout, true, x, false, dweight.add, n_out, n_in, rows, precision);
    clear_if_first(dbias, n_out);
    for (int64_t row = 0; row < rows && dbias.values != NULL; row++)
        rounded_accumulate(dbias.values, dout, row * n_out, precision, n_out);
}
