/* test_cpu.c: what only the CPU's device has. It chooses OpenBLAS's kernels and threads (the test replaces the name that
 * OpenBLAS gives its kernels), gives memory back to the system, and has its own exp(). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/device.h"
#include "device/device_cpu_math.h"
#include "expect.h"

/* Weak: NULL with another BLAS. */
extern int openblas_get_num_threads(void) __attribute__((weak));
extern int openblas_get_parallel(void) __attribute__((weak)); /* 0: built for one thread */

static char kernels[20];
char *__wrap_openblas_get_corename(void);
char *__wrap_openblas_get_corename(void)
{
    return kernels;
}

static void test_threads_and_description(void **state)
{
    if (openblas_get_num_threads == NULL || openblas_get_parallel == NULL || openblas_get_parallel() == 0)
        skip();
    strcpy(kernels, "SomeCore");
    for (int threads = 2; threads >= 1; threads--) {
        char rest[100] = "", expected[100];
        device_init(0, threads);
        assert_int_equal(openblas_get_num_threads(), threads);
        sscanf(device_description(), "cpu, OpenBLAS %*[0-9]%*[^ ] %99[^\n]", rest); /* after the version */
        snprintf(expected, sizeof expected, "SomeCore kernels, %d thread%s%s", threads, threads == 2 ? "s" : "",
                 rounded_products_by());
        assert_string_equal(rest, expected);
    }
}

static long resident_pages(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*d %ld", &pages), 1);
    fclose(file);
    return pages;
}

/* By default the C library keeps blocks of a size that was freed once, as the arena's after the first step. */
static void test_freed_memory_goes_back(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* they have an allocator of their own */
#endif
    enum { BLOCKS = 64, MIB = 1 << 20 };
    void *blocks[BLOCKS];
    device_init(0, 1);
    device_free(device_alloc(MIB));
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = device_alloc(MIB);
    void *above = device_alloc(MIB / 8); /* what lies above it could go back in any case */
    const long before = resident_pages();
    for (int i = 0; i < BLOCKS; i++)
        device_free(blocks[i]);
    assert_true((before - resident_pages()) * sysconf(_SC_PAGESIZE) > (BLOCKS - 4) * MIB);
    device_free(above);
}

/* All x for which exp(x) is a normal float32. */
static void test_exp_is_exact(void **state)
{
    double worst = 0;
    for (float x = -87.33654f; x <= 88.72283f; x += 0.0007f) {
        const double expected = exp((double)x), off = fabs((double)exp_of(x) / expected - 1);
        worst = off > worst ? off : worst;
    }
    if (worst > 0x1p-23)
        fail_msg("exp_of(): a relative error of %g, more than one unit in the last place (%g)", worst, 0x1p-23);
    assert_true(isfinite(exp_of(88.72283f)) && exp_of(nextafterf(88.72283f, 100)) == INFINITY);
    assert_true(exp_of(-87.33654f) > 0 && exp_of(nextafterf(-87.33654f, -100)) == 0);
    assert_true(exp_of(1e30f) == INFINITY && exp_of(-1e30f) == 0 && exp_of(0) == 1);
    assert_true(exp_of(INFINITY) == INFINITY && exp_of(-INFINITY) == 0 && isnan(exp_of(NAN)));
}

int main(void)
{
    return run_cases("cpu", cmocka_unit_test(test_threads_and_description),
                     cmocka_unit_test(test_freed_memory_goes_back),
                     cmocka_unit_test(test_exp_is_exact));
}
