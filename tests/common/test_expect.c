/* test_expect.c: a comparison that cannot fail proves nothing, so these tests make the helpers of expect.h fail.
 *
 * Each case that must fail runs as a cmocka group of its own in a child process, and expect_dies() checks the child's
 * message. */
#include "expect.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mpi_main.h"

static const float REFERENCE[4] = {1.0f, -2.0f, 0.0f, 4.0f};

/* Runs in a child: the test in `argument` must fail, and the child ends with 1. */
static void run_one_test(void *argument)
{
    unsetenv("CMOCKA_TEST_ABORT");
    if (freopen("/dev/null", "w", stdout) == NULL) /* a report with failures in it would only confuse */
        exit(100);
    const struct CMUnitTest tests[] = {*(const struct CMUnitTest *)argument};
    exit(cmocka_run_group_tests(tests, NULL, NULL));
}

static void expect_test_fails(void (*test)(void **state), const char *text)
{
    struct CMUnitTest inner = {.name = "inner", .test_func = test};
    expect_dies(run_one_test, &inner, 1, text);
}

static void test_close_accepts_what_is_allowed(void **state)
{
    const float actual[4] = {1.0f + 1e-6f, -2.0f, 1e-7f, 4.0f - 3e-6f};
    expect_close("nearly equal", actual, REFERENCE, 4, 1e-6, 1e-6, NULL);
}

static void inner_close_off(void **state)
{
    const float actual[4] = {1.0f, -2.5f, 0.0f, 5.0f};
    expect_close("dweight", actual, REFERENCE, 4, 1e-6, 1e-3, "gradients are summed, not averaged");
}

static void test_close_names_first_and_worst(void **state)
{
    expect_test_fails(inner_close_off, "dweight: 2 of 4 elements are off (allowed: 1e-06 + 0.001 * |expected|)");
    expect_test_fails(inner_close_off, "first [1]: expected -2, got -2.5, difference 0.5");
    expect_test_fails(inner_close_off, "worst [3]: expected 4, got 5, difference 1");
    expect_test_fails(inner_close_off, "usual cause: gradients are summed, not averaged");
    expect_test_fails(inner_close_off, "test_expect.c:");
}

/* ---- comparisons that must fail, each in a child process ---- */

typedef struct Comparison {
    const char *name;
    const float *actual, *expected;
    int64_t count;
    double absolute, relative; /* tolerance */
} Comparison;

static Comparison comparison;

static void inner_close(void **state)
{
    const Comparison *c = &comparison;
    expect_close(c->name, c->actual, c->expected, c->count, c->absolute, c->relative, NULL);
}

static void test_comparisons_fail(void **state)
{
    static const float later[] = {1.5f, -2, 0, 99}, nan[] = {1, -2, NAN, 4}, other[4];
    static const float nan_again[] = {NAN}, infinity[] = {INFINITY}, infinity_again[] = {INFINITY};
    static const struct {
        Comparison comparison;
        const char *text;
    } cases[] = {
        {{"x", later, REFERENCE, 4, 1e-6, 0}, "first [0]"},
        {{"x", later, REFERENCE, 4, 1e-6, 0}, "worst [3]: expected 4, got 99, difference 95"},
        {{"loss", nan, REFERENCE, 4, 1e30, 1e30}, "worst [2]: expected 0, got nan"},
        {{"loss", nan + 2, nan_again, 1, 1e30, 1e30}, "loss: 1 of 1 elements are off"},
        {{"loss", infinity, infinity_again, 1, 1e30, 1e30}, "expected inf, got inf"},
        {{"loss", other, REFERENCE, 4, (double)NAN, 0}, "loss: the tolerances nan and 0 are not numbers"},
        {{"loss", other, REFERENCE, 4, 0, (double)INFINITY}, "loss: the tolerances 0 and inf are not numbers"},
        {{"empty", other, REFERENCE, 0, 1, 1}, "empty: this comparison proves nothing"},
        {{"same array", REFERENCE, REFERENCE, 4, 1, 1}, "same array: this comparison proves nothing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        comparison = cases[i].comparison;
        expect_test_fails(inner_close, cases[i].text);
    }
}

static void inner_bits_of_zeros(void **state)
{
    const float actual[4] = {1.0f, -2.0f, -0.0f, 4.0f};
    expect_bits_equal("weights", actual, REFERENCE, 4, "another order of summation");
}

static void test_bits_equal(void **state)
{
    const float actual[4] = {1.0f, -2.0f, 0.0f, 4.0f};
    expect_bits_equal("weights", actual, REFERENCE, 4, NULL);
    expect_test_fails(inner_bits_of_zeros, "weights: 1 of 4 elements differ in their bits");
    expect_test_fails(inner_bits_of_zeros, "first [2]: expected 0 (0x00000000), got -0 (0x80000000)");
    expect_test_fails(inner_bits_of_zeros, "usual cause: another order of summation");
}

static void exit_with_message(void *argument)
{
    fprintf(stderr, "train: error: %s\n", (const char *)argument);
    exit(2);
}

static void return_quietly(void *argument)
{
}

static void inner_dies_but_returns(void **state)
{
    expect_dies(return_quietly, NULL, 2, "");
}

static void inner_dies_with_other_status(void **state)
{
    expect_dies(exit_with_message, "--lr: no number", 1, "--lr");
}

static void inner_dies_with_other_text(void **state)
{
    expect_dies(exit_with_message, "--lr: no number", 2, "--steps");
}

static void test_dies(void **state)
{
    expect_dies(exit_with_message, "--lr: no number", 2, "--lr");
    expect_test_fails(inner_dies_but_returns, "returned, as if all were well");
    expect_test_fails(inner_dies_with_other_status, "it ended with status 2");
    expect_test_fails(inner_dies_with_other_text, "said: train: error: --lr: no number");
}

static void hang(void *argument)
{
    tests_end_if_idle(1);
    for (;;)
        sleep(1);
}

static void test_end_if_idle(void **state)
{
    expect_dies(hang, NULL, 1, "fault: rank 0: it has called no collective for 1 s, and still runs");
}

int main(void)
{
    return run_cases("expect", cmocka_unit_test(test_close_accepts_what_is_allowed),
                     cmocka_unit_test(test_close_names_first_and_worst), cmocka_unit_test(test_comparisons_fail),
                     cmocka_unit_test(test_bits_equal), cmocka_unit_test(test_dies), cmocka_unit_test(test_end_if_idle));
}
