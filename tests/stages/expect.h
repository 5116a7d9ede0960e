/* expect.h: comparisons for cmocka tests, with failure messages that explain; and a main() of one line.
 *
 * Interface:
 *   expect_close("dweight", actual, expected, count, 1e-6, 1e-5, "hint")
 *       every |actual - expected| <= atol + rtol * |expected|. NaN and infinity never pass in either array.
 *   expect_bits_equal("weights", actual, expected, count, "hint")
 *       the same bits, element by element: 0.0 and -0.0 differ.
 *   expect_dies(function, argument, 2, "--lr")
 *       the function ends its process with that exit status, after writing that text to stderr.
 *
 * A hint is one sentence: the usual cause of this failure. It may be NULL.
 * Include this header instead of <cmocka.h>, which needs four other headers before it.
 */
#ifndef LOCKSTEP_TESTS_EXPECT_H
#define LOCKSTEP_TESTS_EXPECT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* cmocka gives each case a `state` that few cases use. So in files that include this header, no parameter must be. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* Runs cases: run_cases("clock", cmocka_unit_test(test_a), cmocka_unit_test(test_b)). What it returns, main() returns. */
#define run_cases(name, ...) cmocka_run_group_tests_name(name, ((const struct CMUnitTest[]){__VA_ARGS__}), NULL, NULL)

/* The macros add the test's file and line, as cmocka's own macros do. */
#define expect_close(...) expect_close_at(__FILE__, __LINE__, __VA_ARGS__)
#define expect_bits_equal(...) expect_bits_equal_at(__FILE__, __LINE__, __VA_ARGS__)
#define expect_dies(...) expect_dies_at(__FILE__, __LINE__, __VA_ARGS__)

/* A comparison of 0 elements, or of an array with itself, is a mistake in the test, and fails. */
void expect_close_at(const char *file, int line, const char *name, const float *actual, const float *expected,
                     int64_t count, double atol, double rtol, const char *hint);
void expect_bits_equal_at(const char *file, int line, const char *name, const float *actual, const float *expected,
                          int64_t count, const char *hint);

/* Calls function(argument) in a forked child, so that the test continues. `text` may be anywhere in what the child
 * wrote to stderr; NULL or "" checks only the status. After 30 s the child is ended, and the test fails. Do not use
 * cmocka's assertions in the function: in the child they would jump back into the test runner. Do not call it in a
 * process that has initialized MPI, because a forked child must not use MPI. */
void expect_dies_at(const char *file, int line, void (*function)(void *argument), void *argument, int status,
                    const char *text);

#endif
