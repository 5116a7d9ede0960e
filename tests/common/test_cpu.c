/* test_cpu.c: what only the CPU's device has: OpenBLAS, with which kernels and how many threads. The test replaces
 * OpenBLAS's name of its kernels, and execv(), so that the program is not started anew. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
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

static int restarts;
static const char *restarted;
static char *const *restarted_with;
int __wrap_execv(const char *path, char *const argv[]);
int __wrap_execv(const char *path, char *const argv[])
{
    restarts++;
    restarted = path;
    restarted_with = argv;
    return -1;
}

/* Prescott's kernels run everywhere, and are slow. */
static void test_better_kernels_need_a_new_start(void **state)
{
    (void)state;
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2"))
        skip();
    char *argv[] = {"train", NULL};
    unsetenv("OPENBLAS_CORETYPE");
    strcpy(kernels, "Haswell"); /* OpenBLAS knows the processor */
    device_choose_kernels(argv);
    assert_int_equal(restarts, 0);
    strcpy(kernels, "Prescott");
    device_choose_kernels(argv);
    assert_int_equal(restarts, 1);
    assert_string_equal(restarted, "/proc/self/exe");
    assert_ptr_equal(restarted_with, argv);
    const char *chosen = getenv("OPENBLAS_CORETYPE");
    assert_non_null(chosen);
    assert_string_equal(chosen, __builtin_cpu_supports("avx512bw") ? "SkylakeX" : "Haswell");
    device_choose_kernels(argv); /* in the new process, or because the user has chosen: once is enough */
    assert_int_equal(restarts, 1);
#endif
}

static void test_threads_and_description(void **state)
{
    (void)state;
    if (openblas_get_num_threads == NULL || openblas_get_parallel == NULL || openblas_get_parallel() == 0)
        skip();
    strcpy(kernels, "SomeCore");
    for (int threads = 2; threads >= 1; threads--) {
        char rest[40] = "", expected[40];
        device_init(0, threads);
        assert_int_equal(openblas_get_num_threads(), threads);
        sscanf(device_description(), "cpu, OpenBLAS %*[0-9]%*[^ ] %39[^\n]", rest); /* after the version */
        snprintf(expected, sizeof expected, "SomeCore kernels, %d thread%s", threads, threads == 2 ? "s" : "");
        assert_string_equal(rest, expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_better_kernels_need_a_new_start),
        cmocka_unit_test(test_threads_and_description),
    };
    return cmocka_run_group_tests_name("cpu", tests, NULL, NULL);
}
