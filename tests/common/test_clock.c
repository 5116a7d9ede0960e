/* test_clock.c: the clock, sleeping, and what the timeline stores, also from several threads. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "expect.h"

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

static void test_sleeps(void **unused)
{
    const double before = now_seconds(), nothing[] = {0, -1, -(double)INFINITY, (double)NAN};
    for (int i = 0; i < 4; i++)
        sleep_seconds(nothing[i]);
    assert_true(now_seconds() < before + 1);
    const double again = now_seconds();
    sleep_seconds(0.02);
    assert_true(now_seconds() >= again + 0.02);
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
    return run_cases("clock", cmocka_unit_test(test_now), cmocka_unit_test(test_sleeps),
                     cmocka_unit_test(test_the_timeline_keeps_all), cmocka_unit_test(test_threads_add_at_once));
}
