/* test_group.c: what a group does around its backend: the queue of the communication thread, counting, the emulated
 * link, observers, faults. The backend and the clock are the test's own, so this needs no other rank. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/messages.h"
#include "device/device.h"
#include "expect.h"

enum { LONG = 1 << 18 /* elements: a collective that is worth waking a thread for */ };

/* ---- a clock of its own, which only sleeping and the backend move; 0: the real one ---- */

static double clock_now, slept[20];
static int sleeps;

double __real_now_seconds(void);
double __wrap_now_seconds(void)
{
    return clock_now > 0 ? clock_now : __real_now_seconds();
}

void __real_sleep_seconds(double seconds);
void __wrap_sleep_seconds(double seconds)
{
    slept[sleeps++ % 20] = seconds;
    if (clock_now > 0 && seconds > 0)
        clock_now += seconds;
}

/* ---- a device that is busy for a while ---- */

static char event_memory;
#define AN_EVENT ((DeviceEvent *)(void *)&event_memory)
static DeviceEvent *next_event /* what device_event_record() returns */, *waited_event;
static int event_waits, busy_looks;
static atomic_int threads_initialized;

DeviceEvent *__wrap_device_event_record(void)
{
    return next_event;
}

void __wrap_device_event_wait(DeviceEvent *event)
{
    waited_event = event;
    event_waits++;
}

bool __wrap_device_is_idle(void)
{
    return busy_looks == 0 || --busy_looks == 0;
}

void __wrap_device_init_thread(void)
{
    threads_initialized++;
}

/* ---- a backend that carries nothing, but remembers what it was given ---- */

typedef struct Seen {
    long sequence;
    bool own_thread, measuring;
    AllReduceAlgorithm algorithm;
} Seen;

static Seen seen[8];
static atomic_int runs;
static pthread_t training_thread;
static double takes; /* seconds of the test's own clock */
static bool until_training_waits;
static char told[1000];

/* False if they do not within 20 s. */
static bool runs_reach(int count)
{
    for (double end = __real_now_seconds() + 20; runs < count && __real_now_seconds() < end;)
        __real_sleep_seconds(1e-3);
    return runs >= count;
}

static void run(Backend *self, ProcessGroup *pg, const Collective *collective)
{
    (void)self;
    for (double end = __real_now_seconds() + 20; until_training_waits && !pg->training_waits;) {
        if (__real_now_seconds() > end)
            fail_msg("work_wait() does not say that the training thread waits");
        __real_sleep_seconds(1e-3);
    }
    if (clock_now > 0)
        clock_now += takes;
    seen[runs % 8] = (Seen){collective->sequence, pthread_equal(pthread_self(), training_thread), pg->measuring,
                            pg->options.algorithm};
    runs++;
}

static void close_backend(Backend *self, ProcessGroup *pg)
{
    (void)self;
    if (pg->worker != NULL)
        fail_msg("the communication thread still runs when MPI ends");
    strcat(told, "closed ");
}

static ProcessGroup *make_group(void)
{
    static Backend backend = {.name = "test", .run = run, .close = close_backend};
    ProcessGroup *pg = alloc_or_fault(sizeof *pg);
    *pg = (ProcessGroup){.rank = 1, .world_size = 4, .one_host = true, .backend = &backend, .measuring = true};
    pthread_mutex_init(&pg->lock, NULL);
    runs = sleeps = event_waits = busy_looks = 0;
    clock_now = takes = 0;
    next_event = NULL;
    until_training_waits = false;
    told[0] = '\0';
    training_thread = pthread_self();
    return pg;
}

/* From now on a small sum does not wake the communication thread. */
static ProcessGroup *make_group_in_shared_memory(void)
{
    static char shared;
    ProcessGroup *pg = make_group();
    pg->shared = (struct SharedMemory *)(void *)&shared;
    return pg;
}

static float buffer[LONG];

static Work *start(ProcessGroup *pg, size_t count, const char *carries)
{
    return pg_all_reduce_async(pg, buffer, buffer, count, DTYPE_F32, REDUCE_SUM, carries);
}

/* ---- the queue ---- */

/* What is quick may stay in the queue until training asks for it; whatever comes with it or after it is not forgotten. */
static void test_who_carries_out(void **unused)
{
    ProcessGroup *pg = make_group_in_shared_memory();
    threads_initialized = 0;
    Work *first = start(pg, LONG, "long");
    assert_true(runs_reach(1));
    work_wait(first);
    assert_false(seen[0].own_thread);
    assert_int_equal(threads_initialized, 1);

    Work *quick = start(pg, 1, "quick"), *next = start(pg, 1, "next");
    work_wait(quick);
    work_wait(next);
    assert_int_equal(runs, 3);

    pg->options.wire_gbps = 0.5; /* over a link, nothing is quick */
    Work *linked = start(pg, 1, "over a link");
    assert_true(runs_reach(4));
    work_wait(linked);
    pg->options.wire_gbps = 0;
    next_event = AN_EVENT; /* the device has not computed it yet */
    Work *late = start(pg, 1, "late");
    assert_true(runs_reach(5));
    work_wait(late);
    next_event = NULL;
    quick = start(pg, 1, "quick");
    next = start(pg, 1, "next");
    Work *last = start(pg, LONG, "long"); /* wakes the thread, which carries out what is before it, too */
    assert_true(runs_reach(8));
    work_wait(quick);
    work_wait(next);
    work_wait(last);
    for (int i = 0; i < 8; i++)
        assert_int_equal(seen[i].sequence, i);
    job_close(pg);
}

/* The thread whose stream is empty waits for the event. A blocking collective has none. */
static void test_waits_until_computed(void **unused)
{
    ProcessGroup *pg = make_group_in_shared_memory();
    pg_set_measuring(pg, false); /* no sleep for a link */
    pg_barrier(pg);
    assert_int_equal(event_waits, 0);
    next_event = AN_EVENT;
    busy_looks = 6;
    Work *work = start(pg, 1, "late");
    assert_true(runs_reach(2));
    work_wait(work);
    assert_int_equal(event_waits, 1);
    assert_ptr_equal(waited_event, AN_EVENT);
    assert_false(seen[1].own_thread);
    assert_int_equal(sleeps, 5); /* one for each look that found it busy */
    assert_true(slept[0] > 0 && slept[4] > slept[0]);
    job_close(pg);
}

static void called(void *self, const Collective *collective)
{
    strcat(strcat(strcat(strcat(told, self), " called "), collective->carries), " ");
}

/* What changes the group for later collectives does not change it for those in the queue. */
static void test_changes_come_after_the_queue(void **unused)
{
    ProcessGroup *pg = make_group_in_shared_memory();
    pg->options.algorithm = ALLREDUCE_ORDERED;
    Work *works[] = {start(pg, 1, "counted"), NULL, NULL};
    pg_set_measuring(pg, false);
    assert_true(seen[0].measuring);
    works[1] = start(pg, 1, "not counted");
    pg_set_measuring(pg, true);
    assert_false(seen[1].measuring);
    assert_int_equal(pg_counters(pg).collectives, 1);
    works[2] = start(pg, 1, "before");
    pg_set_algorithm(pg, ALLREDUCE_RING);
    assert_int_equal(runs, 3);
    assert_int_equal(seen[2].algorithm, ALLREDUCE_ORDERED);
    assert_int_equal(pg_algorithm(pg), ALLREDUCE_RING);
    for (int i = 0; i < 3; i++)
        work_wait(works[i]);
    Work *unobserved = start(pg, 1, "unobserved");
    pg_observe(pg, &(GroupObserver){.self = "A", .called = called});
    work_wait(unobserved);
    assert_string_equal(told, "");
    job_close(pg);
}

/* ---- time ---- */

static void expect_seconds(double got, double expected)
{
    if (!(got >= expected - 1e-9 && got <= expected + 1e-9))
        fail_msg("expected %.9g s, got %.9g", expected, got);
}

/* The link of a ring on 4 ranks: 6 steps for an all-reduce of 1 MiB, at 8 Mbit per second and 0.5 s per step. */
static void test_time(void **unused)
{
    const double link = 6 * 0.5 + 1.5 * LONG * 4 / 1e6;
    ProcessGroup *pg = make_group();
    clock_now = 1000;
    pg_barrier(pg); /* without a link */
    expect_seconds(pg_counters(pg).in_flight, 0);
    pg_reset_counters(pg);
    sleeps = 0;
    takes = 2;
    pg->options.wire_gbps = 8e-3;
    pg->options.wire_latency = 0.5;
    for (int i = 1; i <= 3; i++) {
        pg_all_reduce(pg, buffer, buffer, LONG, DTYPE_F32, REDUCE_SUM, "slow");
        assert_int_equal(sleeps, i);
        expect_seconds(slept[i - 1], link - 2);
        expect_seconds(pg_counters(pg).in_flight, i * link);
        expect_seconds(pg_counters(pg).exposed, i * link);
    }
    pg_set_measuring(pg, false);
    pg_all_reduce(pg, buffer, buffer, LONG, DTYPE_F32, REDUCE_SUM, "not counted");
    assert_int_equal(sleeps, 3);
    expect_seconds(pg_counters(pg).in_flight, 3 * link);
    pg_set_measuring(pg, true);
    next_event = AN_EVENT; /* the communication thread carries it out while this one waits */
    until_training_waits = true;
    work_wait(start(pg, LONG, "waited for"));
    assert_false(pg->training_waits);
    expect_seconds(pg_counters(pg).exposed, 4 * link);
    job_close(pg);
}

/* ---- observers ---- */

static void ready(void *self, const Collective *collective)
{
    strcat(strcat(told, self), " ready ");
}

static void carried(void *self, const Collective *collective)
{
    strcat(strcat(told, self), " carried ");
}

static void done(void *self, const Collective *collective)
{
    assert_true(collective->start == 1000 && collective->end == 1003);
    strcat(strcat(told, self), " done ");
}

static void leaving(void *self)
{
    strcat(strcat(told, self), " leaving ");
}

static void test_observers_in_order(void **unused)
{
    ProcessGroup *pg = make_group();
    pg_observe(pg, &(GroupObserver){.self = "A", .called = called, .carried = carried, .leaving = leaving});
    pg_observe(pg, &(GroupObserver){.self = "B", .ready = ready, .done = done});
    pg_observe(pg, &(GroupObserver){.self = "C", .called = called, .ready = ready, .carried = carried, .done = done,
                                    .leaving = leaving});
    clock_now = 1000;
    takes = 3;
    pg_broadcast(pg, buffer, 1, DTYPE_F32, 0, "x");
    job_close(pg);
    assert_string_equal(told, "A called x C called x B ready C ready A carried C carried B done C done "
                              "A leaving C leaving closed ");
}

/* ---- faults: each in a process of its own ---- */

enum Mistake { NULL_SENT, NULL_RECEIVED, NEGATIVE, GATHERED_BEYOND, SCATTERED_BEYOND, TEST_OF_NOTHING, WAIT_FOR_NOTHING,
               WAIT_TWICE, SCATTERED_OVER, GATHERED_OVER, LEAVE_WITHOUT_WAIT, SIX_OBSERVERS, DESTROY_WORLD,
               LEAVE_BEFORE_PARTS, NEGATIVE_COLOR };

static void make_mistake(void *which)
{
    ProcessGroup *pg = make_group();
    float *memory = pg_alloc_shared(pg, 99 * sizeof *memory);
    Work *work;
    switch ((enum Mistake)*(int *)which) {
    case NULL_SENT: pg_all_reduce(pg, NULL, buffer, 1, DTYPE_F32, REDUCE_SUM, "frozen"); break;
    case NULL_RECEIVED: pg_all_reduce(pg, buffer, NULL, 1, DTYPE_F32, REDUCE_SUM, "frozen"); break;
    case NEGATIVE: pg_all_reduce(pg, buffer, buffer, (size_t)-1, DTYPE_F32, REDUCE_SUM, "many"); break;
    case GATHERED_BEYOND: pg_all_gather(pg, buffer, memory, 25, DTYPE_F32, "parts"); break; /* 4 of them */
    case SCATTERED_BEYOND: pg_reduce_scatter(pg, memory, buffer, 25, DTYPE_F32, REDUCE_SUM, "parts"); break;
    case TEST_OF_NOTHING: work_test(NULL); break;
    case WAIT_FOR_NOTHING: work_wait(NULL); break;
    case WAIT_TWICE: work_wait(work = start(pg, 1, "a")), work_wait(work); break;
    case SCATTERED_OVER: pg_reduce_scatter(pg, memory, memory + 79, 20, DTYPE_F32, REDUCE_SUM, "parts"); break;
    case GATHERED_OVER: pg_all_gather(pg, memory + 1, memory, 20, DTYPE_F32, "parts"); break;
    case LEAVE_WITHOUT_WAIT:
        work_wait(start(pg, 1, "a"));
        start(pg, 1, "b");
        job_close(pg);
        break;
    case SIX_OBSERVERS:
        for (int i = 0; i < 6; i++) {
            pg_observe(pg, &(GroupObserver){0});
            fprintf(stderr, "observer %d\n", i + 1);
        }
        break;
    case DESTROY_WORLD: pg_destroy(pg); break;
    case LEAVE_BEFORE_PARTS: pg->children = 2, job_close(pg); break;
    case NEGATIVE_COLOR: pg_split(pg, -1);
    }
}

static void test_faults(void **unused)
{
    static const char *const texts[] = {
        [NULL_SENT] = "all_reduce number 0 (frozen, 1 x float32): a buffer is NULL",
        [NULL_RECEIVED] = "all_reduce number 0 (frozen, 1 x float32): a buffer is NULL",
        [NEGATIVE] = "was it negative as an int?",
        [GATHERED_BEYOND] = "25 x float32) for each rank goes beyond the end of its memory",
        [SCATTERED_BEYOND] = "25 x float32) for each rank goes beyond the end of its memory",
        [TEST_OF_NOTHING] = "work_test(NULL): this collective was never started",
        [WAIT_FOR_NOTHING] = "work_wait(NULL): this collective was never started",
        [WAIT_TWICE] = "work_wait(): all_reduce number 0 has had its work_wait() before",
        [SCATTERED_OVER] = "its buffers overlap",
        [GATHERED_OVER] = "its buffers overlap",
        [LEAVE_WITHOUT_WAIT] = "this rank leaves the group while 1 collective(s) may be under way",
        [SIX_OBSERVERS] = "observer 5\ntest: fault: rank 0: a group has 5 observers at most",
        [DESTROY_WORLD] = "pg_destroy() of the world, which lives as long as the job",
        [LEAVE_BEFORE_PARTS] = "2 group(s) from pg_split() are left",
        [NEGATIVE_COLOR] = "pg_split() with the color -1, which is negative",
    };
    for (int i = NULL_SENT; i <= NEGATIVE_COLOR; i++)
        expect_dies(make_mistake, &i, 1, texts[i]);
}

int main(void)
{
    job_set_program("test");
    return run_cases("a group without ranks", cmocka_unit_test(test_who_carries_out),
                     cmocka_unit_test(test_waits_until_computed), cmocka_unit_test(test_changes_come_after_the_queue),
                     cmocka_unit_test(test_time), cmocka_unit_test(test_observers_in_order),
                     cmocka_unit_test(test_faults));
}
