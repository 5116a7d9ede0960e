/* test_device_ranges.c: device.h's ranges in the timeline, on the device that this is linked with. On the CPU there are
 * none; on CUDA each has times of the GPU's clock, converted to the host's. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/device.h"
#include "expect.h"

enum { N = 1000, ATTEMPTS = 100 };

static float *x; /* (N) on the device */

static bool is_cuda(void)
{
    return device_kind() == DEVICE_CUDA;
}

static int timeline_length(void)
{
    const TimelineEvent *events;
    return timeline_events(&events);
}

/* The event `place` behind the first `from`. */
static TimelineEvent event_at(int from, int place)
{
    const TimelineEvent *events = NULL;
    const int count = timeline_events(&events);
    if (from + place >= count)
        fail_msg("expected at least %d ranges, got %d: is each one added to the timeline?", place + 1, count - from);
    return events[from + place];
}

/* Another thread's work, on its own stream. */
static void *copy_in_a_thread(void *unused)
{
    float host[N];
    device_init_thread();
    device_range_begin("copy");
    device_to_host(host, x, sizeof host);
    device_range_end();
    device_synchronize(); /* otherwise this stream's range may end after the step's range in the other stream */
    return unused;
}

static void queue_work(int step)
{
    pthread_t thread;
    device_range_begin("step %d", step);
    device_range_begin("first");
    device_scale(x, 1, N);
    device_range_end();
    device_mark("between");
    device_range_begin("second");
    device_scale(x, 1, N);
    device_range_end();
    device_synchronize();
    assert_int_equal(pthread_create(&thread, NULL, copy_in_a_thread, NULL), 0);
    pthread_join(thread, NULL);
    device_range_end();
}

static void test_nothing_while_the_timeline_is_off(void **state)
{
    device_timeline_begin();
    queue_work(0);
    device_timeline_end();
    assert_int_equal(timeline_length(), 0);
}

static void test_nothing_outside_a_step(void **state)
{
    const int from = timeline_length();
    for (int step = 0; step < 2; step++) {
        queue_work(0);
        device_timeline_end(); /* of a step that never began, or has ended */
        assert_int_equal(timeline_length(), from);
        device_timeline_begin();
        device_timeline_end();
    }
}

/* All of the step's ranges, in the order in which they began, and each within those around it. */
static void expect_ranges(int from, int step)
{
    char outer[32];
    snprintf(outer, sizeof outer, "step %d", step);
    const char *names[] = {outer, "first", "between", "second", "copy"};
    enum { COUNT = sizeof names / sizeof *names };
    assert_int_equal(timeline_length() - from, COUNT);
    TimelineEvent all[COUNT];
    for (int i = 0; i < COUNT; i++) {
        all[i] = event_at(from, i);
        assert_string_equal(all[i].name, names[i]);
        assert_int_equal(all[i].row, i == 4 ? ROW_GPU_COMMUNICATION : ROW_GPU);
        assert_int_equal(all[i].step, step);
        if (!(all[i].start <= all[i].end && all[0].start <= all[i].start && all[i].end <= all[0].end))
            fail_msg("%s: %.9f to %.9f does not lie within %s: %.9f to %.9f", names[i], all[i].start, all[i].end,
                     names[0], all[0].start, all[0].end);
        if (i > 1 && !(all[i - 1].end <= all[i].start))
            fail_msg("%s, at %.9f, begins before the end of %s, at %.9f, though it was queued later", names[i],
                     all[i].start, names[i - 1], all[i - 1].end);
    }
    assert_true(all[2].start == all[2].end); /* a mark */
}

static void test_each_step_has_its_ranges(void **state)
{
    for (int step = 0; step < 3; step++) {
        const int from = timeline_length();
        timeline_set_step(step);
        device_timeline_begin();
        queue_work(step);
        assert_int_equal(timeline_length(), from); /* the GPU's times are read at the end */
        device_timeline_end();
        if (is_cuda())
            expect_ranges(from, step);
        else
            assert_int_equal(timeline_length(), from);
    }
}

/* More ranges than the array's first size: it must grow and keep its contents. */
static void test_many_ranges(void **state)
{
    enum { MANY = 1000 };
    const int from = timeline_length();
    device_timeline_begin();
    for (int i = 0; i < MANY; i++) {
        device_range_begin("%d", i);
        device_scale(x, 1, N);
        device_range_end();
    }
    device_timeline_end();
    assert_int_equal(timeline_length() - from, is_cuda() ? MANY : 0);
    for (int i = 1; i < MANY && is_cuda(); i++)
        assert_true(event_at(from, i - 1).end <= event_at(from, i).start && atoi(event_at(from, i).name) == i);
}

/* A range of 20 ms must be where the host's clock puts it, to a millisecond. If the system suspends this thread at the
 * wrong moment, an attempt proves nothing; so there are several, and a wrong clock fails all of them. */
static void test_times_are_the_hosts(void **state)
{
    const double slack = 1e-3;
    for (int attempt = 0; attempt < ATTEMPTS && is_cuda(); attempt++) {
        const int from = timeline_length();
        device_timeline_begin();
        const double before = now_seconds();
        device_range_begin("sleep");
        device_synchronize();
        const double begun = now_seconds();
        sleep_seconds(20e-3);
        const double slept = now_seconds();
        device_range_end();
        device_synchronize();
        const double after = now_seconds();
        device_timeline_end();
        const TimelineEvent event = event_at(from, 0);
        if (before - slack <= event.start && event.start <= begun + slack && slept - slack <= event.end &&
            event.end <= after + slack)
            return;
        if (attempt + 1 == ATTEMPTS)
            fail_msg("a range of the GPU's: %.6f to %.6f s; it began between %.6f and %.6f by the host's clock, and ended "
                     "between %.6f and %.6f: milliseconds taken for seconds, or a reference from another moment?",
                     event.start, event.end, before, begun, slept, after);
    }
}

int main(void)
{
    device_init(0, 1);
    x = device_alloc(N * sizeof *x);
    const struct CMUnitTest off[] = {cmocka_unit_test(test_nothing_while_the_timeline_is_off)};
    const struct CMUnitTest on[] = {
        cmocka_unit_test(test_nothing_outside_a_step), cmocka_unit_test(test_each_step_has_its_ranges),
        cmocka_unit_test(test_many_ranges),            cmocka_unit_test(test_times_are_the_hosts),
    };
    int failed = cmocka_run_group_tests(off, NULL, NULL);
    timeline_enable();
    failed += cmocka_run_group_tests(on, NULL, NULL);
    device_free(x);
    return failed != 0;
}
