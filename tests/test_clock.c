/* test_clock.c: what sleep_seconds() asks of the system, which the test plays: so nobody waits. */
#include <errno.h>
#include <math.h>
#include <time.h>

#include "base/clock.h"
#include "expect.h"

static struct timespec asked; /* by the last call */
static int calls, interruptions;

int __wrap_nanosleep(const struct timespec *wish, struct timespec *left);
int __wrap_nanosleep(const struct timespec *wish, struct timespec *left)
{
    asked = *wish;
    calls++;
    if (interruptions == 0)
        return 0;
    interruptions--;
    *left = (struct timespec){.tv_sec = 0, .tv_nsec = 5000};
    errno = EINTR;
    return -1;
}

static void expect_sleep(double seconds, long whole, long nanoseconds)
{
    calls = 0;
    sleep_seconds(seconds);
    if (calls != 1 || asked.tv_sec != whole || asked.tv_nsec != nanoseconds)
        fail_msg("sleep_seconds(%g): expected one sleep of %ld s + %ld ns, got %d, of %ld s + %ld ns; too much for a "
                 "time_t?", seconds, whole, nanoseconds, calls, (long)asked.tv_sec, asked.tv_nsec);
}

static void test_sleeps_as_long_as_asked(void **unused)
{
    (void)unused;
    expect_sleep(0.25, 0, 250000000);
    expect_sleep(3.5, 3, 500000000);
    expect_sleep(1e9, 1000000000, 0);
}

static void test_longer_than_time_has_numbers_for(void **unused)
{
    (void)unused;
    expect_sleep(1e10, 1000000000, 0);
    expect_sleep(1e300, 1000000000, 0);
    expect_sleep((double)INFINITY, 1000000000, 0);
}

static void test_nothing_to_sleep(void **unused)
{
    (void)unused;
    calls = 0;
    sleep_seconds(0);
    sleep_seconds(-1);
    sleep_seconds(-(double)INFINITY);
    sleep_seconds((double)NAN);
    assert_int_equal(calls, 0);
}

static void test_goes_on_after_a_signal(void **unused)
{
    (void)unused;
    calls = 0;
    interruptions = 2;
    sleep_seconds(1);
    assert_int_equal(calls, 3);
    assert_int_equal(asked.tv_sec, 0); /* what was left */
    assert_int_equal(asked.tv_nsec, 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sleeps_as_long_as_asked),
        cmocka_unit_test(test_longer_than_time_has_numbers_for),
        cmocka_unit_test(test_nothing_to_sleep),
        cmocka_unit_test(test_goes_on_after_a_signal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
