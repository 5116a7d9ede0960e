/* test_clock.c: how sleep_seconds() calls nanosleep(), which the test replaces, so the test does not wait. What the
 * timeline stores, also from several threads. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
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

/* now_seconds() lies between two readings of the same clock. */
static void test_now(void **unused)
{
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    const double now = now_seconds();
    clock_gettime(CLOCK_MONOTONIC, &after);
    assert_true(now >= (double)before.tv_sec + (double)before.tv_nsec / 1e9 - 1e-6);
    assert_true(now <= (double)after.tv_sec + (double)after.tv_nsec / 1e9 + 1e-6);
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
    expect_sleep(0.25, 0, 250000000);
    expect_sleep(3.5, 3, 500000000);
    expect_sleep(1e9, 1000000000, 0);
}

static void test_longer_than_time_has_numbers_for(void **unused)
{
    expect_sleep(1e10, 1000000000, 0);
    expect_sleep(1e300, 1000000000, 0);
    expect_sleep((double)INFINITY, 1000000000, 0);
}

static void test_nothing_to_sleep(void **unused)
{
    calls = 0;
    sleep_seconds(0);
    sleep_seconds(-1);
    sleep_seconds(-(double)INFINITY);
    sleep_seconds((double)NAN);
    assert_int_equal(calls, 0);
}

static void test_goes_on_after_a_signal(void **unused)
{
    calls = 0;
    interruptions = 2;
    sleep_seconds(1);
    assert_int_equal(calls, 3);
    assert_int_equal(asked.tv_sec, 0); /* the rest of the interrupted sleep */
    assert_int_equal(asked.tv_nsec, 5000);
}

/* So many events that the array must grow twice. */
static void test_the_timeline_keeps_all(void **unused)
{
    enum { COUNT = 2500 };
    const TimelineEvent *events;
    char name[40];
    timeline_add(ROW_COMPUTE, 1, 2, "before it is on");
    assert_int_equal(timeline_events(&events), 0);
    timeline_enable();
    for (int i = 0; i < COUNT; i++) {
        timeline_set_step(i / 7);
        timeline_add(i % 2 ? ROW_COMMUNICATION : ROW_COMPUTE, i, i + 0.5, "bucket %d", i);
    }
    assert_int_equal(timeline_events(&events), COUNT);
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "bucket %d", i);
        assert_string_equal(events[i].name, name);
        assert_int_equal(events[i].row, i % 2 ? ROW_COMMUNICATION : ROW_COMPUTE);
        assert_int_equal(events[i].step, i / 7);
        assert_true(events[i].start == i && events[i].end == i + 0.5);
    }
}

enum { THREADS = 3, EVENTS_EACH = 5000 };

static void *add_events(void *name)
{
    for (int i = 0; i < EVENTS_EACH; i++)
        timeline_add(ROW_COMPUTE, i, i, "%s", (const char *)name);
    return NULL;
}

/* All events of several threads are kept, those of each thread in their order. */
static void test_threads_add_at_once(void **unused)
{
    char *names[THREADS] = {"first", "second", "third"};
    pthread_t threads[THREADS];
    const TimelineEvent *events;
    timeline_enable();
    const int before = timeline_events(&events);
    for (int t = 0; t < THREADS; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, add_events, names[t]), 0);
    for (int i = 0; i < 1000; i++) /* while they add */
        assert_true(timeline_events(&events) >= before);
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    assert_int_equal(timeline_events(&events), before + THREADS * EVENTS_EACH);
    for (int t = 0; t < THREADS; t++) {
        int found = 0;
        for (int i = before; i < before + THREADS * EVENTS_EACH; i++)
            if (strcmp(events[i].name, names[t]) == 0)
                assert_true(events[i].start == found++);
        assert_int_equal(found, EVENTS_EACH);
    }
}

int main(void)
{
    return run_cases("clock", cmocka_unit_test(test_now), cmocka_unit_test(test_sleeps_as_long_as_asked),
                     cmocka_unit_test(test_longer_than_time_has_numbers_for), cmocka_unit_test(test_nothing_to_sleep),
                     cmocka_unit_test(test_goes_on_after_a_signal), cmocka_unit_test(test_the_timeline_keeps_all),
                     cmocka_unit_test(test_threads_add_at_once));
}
