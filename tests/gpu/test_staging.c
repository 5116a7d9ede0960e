/* test_staging.c: collectives on device memory over MPI, with a simulated device. Its addresses cannot be read: a
 * collective that touches them without copying crashes, as with a GPU's memory. Only the copying functions know where
 * the bytes really are. (The linker's --wrap replaces the CPU's functions by the test's.) */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"
#include "device/device.h"
#include "comm/process_group.h"
#include "expect.h"
#include "mpi_main.h"
#include "backends/gpu/staging.h"
#include "train/guard/guard.h"

enum { COUNT = 3000, MAX_RANKS = 8, ROOM = MAX_RANKS * COUNT };

static ProcessGroup *pg;

/* ---- the device ---- */

static float *device_address; /* 2 * ROOM floats that cannot be read or written */
static float *real_memory;    /* ... and what they hold */
static atomic_int copies;     /* to and from the device */
static atomic_int events_recorded, events_waited_for;
static pthread_t waited_in;   /* the thread that waited for the last event */
static atomic_bool thread_announced;
static _Thread_local int questions; /* whether this thread's work is done; every third time it is */

static unsigned char *real_address(const void *memory)
{
    return (unsigned char *)real_memory + ((const unsigned char *)memory - (unsigned char *)device_address);
}

bool __wrap_device_owns(const void *memory);
bool __wrap_device_owns(const void *memory)
{
    const float *address = memory;
    return address >= device_address && address < device_address + 2 * ROOM;
}

void __wrap_device_to_host(void *host, const void *device, size_t bytes);
void __wrap_device_to_host(void *host, const void *device, size_t bytes)
{
    CHECK(!__wrap_device_owns(host) && __wrap_device_owns(device), "device_to_host() between the wrong memories");
    CHECK(questions > 0 && questions % 3 == 0, "a collective reads its buffer before that has been computed");
    memcpy(host, real_address(device), bytes);
    copies++;
}

void __wrap_device_from_host(void *device, const void *host, size_t bytes);
void __wrap_device_from_host(void *device, const void *host, size_t bytes)
{
    CHECK(!__wrap_device_owns(host) && __wrap_device_owns(device), "device_from_host() between the wrong memories");
    memcpy(real_address(device), host, bytes);
    copies++;
}

bool __wrap_device_is_idle(void);
bool __wrap_device_is_idle(void)
{
    return ++questions % 3 == 0;
}

DeviceEvent *__wrap_device_event_record(void);
DeviceEvent *__wrap_device_event_record(void)
{
    events_recorded++;
    return alloc_or_fault(1);
}

void __wrap_device_event_wait(DeviceEvent *event);
void __wrap_device_event_wait(DeviceEvent *event)
{
    CHECK(event != NULL, "device_event_wait() without an event");
    events_waited_for++;
    waited_in = pthread_self();
    free(event);
}

void __wrap_device_init_thread(void);
void __wrap_device_init_thread(void)
{
    thread_announced = true;
}

/* ---- buffers: number 0 and 1 of the device, and one of the host ---- */

static float value_of(int rank, size_t i)
{
    return (float)(int)((i * 7 + (size_t)rank * 31) % 64);
}

static float *device_buffer(int number)
{
    return device_address + number * ROOM;
}

static void fill(float *real, int rank, size_t count)
{
    for (size_t i = 0; i < ROOM; i++)
        real[i] = i < count ? value_of(rank, i) : -1;
}

static void expect_element(const char *what, float expected, float got, size_t i)
{
    if (!(got == expected))
        fail_msg("%s on rank %d of %d, element %zu: expected %g, got %g; usual cause: a buffer that was not copied, or "
                 "copied with the wrong size", what, pg_rank(pg), pg_world_size(pg), i, (double)expected, (double)got);
}

static void expect_sums(const char *what, const float *got, size_t first, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (int rank = 0; rank < pg_world_size(pg); rank++)
            sum += value_of(rank, first + i);
        expect_element(what, sum, got[i], i);
    }
}

/* ---- the tests ---- */

static void test_all_reduce(void **state)
{
    static const AllReduceAlgorithm algorithms[] = {ALLREDUCE_MPI, ALLREDUCE_RING, ALLREDUCE_ORDERED};
    float *send = device_buffer(0), *receive = device_buffer(1);
    float *host = alloc_or_fault(ROOM * sizeof *host);
    for (size_t a = 0; a < sizeof algorithms / sizeof algorithms[0]; a++) {
        pg_set_algorithm(pg, algorithms[a]);
        fill(real_memory, pg_rank(pg), COUNT);
        pg_all_reduce(pg, send, receive, COUNT, DTYPE_F32, REDUCE_SUM, "device to device");
        expect_sums("out of place", real_memory + ROOM, 0, COUNT);
        pg_all_reduce(pg, send, host, COUNT, DTYPE_F32, REDUCE_SUM, "device to host");
        expect_sums("into host memory", host, 0, COUNT);
        fill(host, pg_rank(pg), COUNT);
        pg_all_reduce(pg, host, receive, COUNT, DTYPE_F32, REDUCE_SUM, "host to device");
        expect_sums("from host memory", real_memory + ROOM, 0, COUNT);
        pg_all_reduce(pg, send, send, COUNT, DTYPE_F32, REDUCE_SUM, "in place");
        expect_sums("in place", real_memory, 0, COUNT);
        expect_element("behind the end", -1, real_memory[COUNT], COUNT);
    }
    pg_set_algorithm(pg, ALLREDUCE_MPI);
    free(host);
}

static void test_other_operations(void **state)
{
    float *send = device_buffer(0), *receive = device_buffer(1);
    int ranks = pg_world_size(pg);
    for (int root = 0; root < ranks; root++) {
        fill(real_memory, pg_rank(pg), COUNT);
        pg_broadcast(pg, send, COUNT, DTYPE_F32, root, "test");
        for (size_t i = 0; i < COUNT; i++)
            expect_element("broadcast", value_of(root, i), real_memory[i], i);
        expect_element("behind the end of a broadcast", -1, real_memory[COUNT], COUNT);
    }

    /* In place, and before any copy in host memory had to be longer than a part. */
    float *mine = send + pg_rank(pg) * COUNT, *real_mine = real_memory + pg_rank(pg) * COUNT;
    fill(real_memory, pg_rank(pg), (size_t)ranks * COUNT);
    work_wait(pg_reduce_scatter_async(pg, send, mine, COUNT, DTYPE_F32, REDUCE_SUM, "test"));
    expect_sums("reduce_scatter, in place", real_mine, (size_t)pg_rank(pg) * COUNT, COUNT);
    work_wait(pg_all_gather_async(pg, mine, send, COUNT, DTYPE_F32, "test"));
    expect_sums("all_gather, in place", real_memory, 0, (size_t)ranks * COUNT);

    fill(real_memory, pg_rank(pg), COUNT);
    pg_all_gather(pg, send, receive, COUNT, DTYPE_F32, "test");
    for (size_t i = 0; i < (size_t)ranks * COUNT; i++)
        expect_element("all_gather", value_of((int)(i / COUNT), i % COUNT), real_memory[ROOM + i], i);
    fill(real_memory, pg_rank(pg), (size_t)ranks * COUNT);
    pg_reduce_scatter(pg, send, receive, COUNT, DTYPE_F32, REDUCE_SUM, "test");
    expect_sums("reduce_scatter", real_memory + ROOM, (size_t)pg_rank(pg) * COUNT, COUNT);
}

/* The communication thread reads the gradients: it must first wait for the work that computes them. */
static void test_asynchronous(void **state)
{
    enum { WORKS = 5, PART = COUNT / WORKS };
    Work *works[WORKS];
    int recorded = events_recorded;
    fill(real_memory, pg_rank(pg), COUNT);
    for (int i = 0; i < WORKS; i++)
        works[i] = pg_all_reduce_async(pg, device_buffer(0) + i * PART, device_buffer(0) + i * PART, PART, DTYPE_F32,
                                       REDUCE_SUM, "test");
    for (int i = 0; i < WORKS; i++) {
        work_wait(works[i]);
        expect_sums("all_reduce_async", real_memory + i * PART, (size_t)i * PART, PART);
    }
    assert_int_equal(events_recorded - recorded, WORKS);
    assert_int_equal(events_waited_for, events_recorded);
    assert_true(thread_announced);
    if (pthread_equal(waited_in, pthread_self()))
        fail_msg("the training thread waited for the event: it must be the thread that reads the buffer");
}

static void test_host_memory_is_not_copied(void **state)
{
    float *host = alloc_or_fault(ROOM * sizeof *host);
    int before = copies;
    fill(host, pg_rank(pg), COUNT);
    pg_all_reduce(pg, host, host, COUNT, DTYPE_F32, REDUCE_SUM, "test");
    pg_barrier(pg);
    expect_sums("host memory", host, 0, COUNT);
    assert_int_equal(copies, before);
    free(host);
}

int main(int argc, char **argv)
{
    device_address = mmap(NULL, 2 * ROOM * sizeof(float), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    real_memory = alloc_or_fault(2 * ROOM * sizeof(float));
    pg = job_open(&argc, &argv);
    guard_job(pg);
    CHECK(device_address != MAP_FAILED, "mmap gave no addresses");
    /* With the calls compared, so that host memory goes through the group in between. */
    pg_set_options(pg, &(ProcessGroupOptions){.timeout = tests_timeout(), .debug_collectives = true});
    staging_use(pg);
    CHECK(pg_world_size(pg) <= MAX_RANKS, "this test has room for %d ranks", MAX_RANKS);
    tests_run_as_rank(pg_rank(pg));
    int failures = run_cases("staging", cmocka_unit_test(test_all_reduce), cmocka_unit_test(test_other_operations),
                             cmocka_unit_test(test_asynchronous), cmocka_unit_test(test_host_memory_is_not_copied));
    job_close(pg);
    free(real_memory);
    return failures != 0;
}
