/* test_observer.c: what an observer of a group is told around each collective, and in which order. Run on 1 to 3
 * ranks. The group has no other observer, not even the watchdog, so no one is told instead of it. And what a group does
 * without room for shared memory, and leaves when it ends. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "comm/observer.h"
#include "device/device.h"
#include "mpi_main.h"

static ProcessGroup *pg;
static char told[4096]; /* one word for each event */
static double started, ended;
static long sequence = -1; /* of the last call */

static void tell(const char *event, const Collective *collective)
{
    const size_t used = strlen(told);
    if (pg_is_measuring(pg)) /* the events that this test causes */
        snprintf(told + used, sizeof told - used, "%s %s %s%s\n", event, operation_name(collective->operation),
                 collective->carries, collective->background ? " (background)" : "");
}

static void called(void *self, const Collective *collective)
{
    assert_ptr_equal(self, told);
    assert_true(sequence == -1 || collective->sequence == sequence + 1);
    sequence = collective->sequence;
    tell("called", collective);
}

static void ready(void *self, const Collective *collective)
{
    assert_ptr_equal(self, told);
    tell("ready", collective);
}

static void carried(void *self, const Collective *collective)
{
    assert_ptr_equal(self, told);
    tell("carried", collective);
}

static void done(void *self, const Collective *collective)
{
    assert_ptr_equal(self, told);
    tell("done", collective);
    started = collective->start;
    ended = collective->end;
}

static void expect_told(const char *expected)
{
    if (strcmp(told, expected) != 0)
        fail_msg("an observer was told:\n%sexpected:\n%s", told, expected);
    told[0] = '\0';
}

static void test_blocking_collectives(void **state)
{
    float number = 1, *all = alloc_or_fault((size_t)pg_world_size(pg) * sizeof *all);
    pg_barrier(pg);
    expect_told("called barrier \nready barrier \ncarried barrier \ndone barrier \n");
    assert_true(ended >= started && started > 0);
    pg_broadcast(pg, &number, 1, DTYPE_F32, 0, "a");
    expect_told("called broadcast a\nready broadcast a\ncarried broadcast a\ndone broadcast a\n");
    pg_all_reduce(pg, &number, &number, 1, DTYPE_F32, REDUCE_SUM, "b");
    expect_told("called all_reduce b\nready all_reduce b\ncarried all_reduce b\ndone all_reduce b\n");
    pg_all_gather(pg, &number, all, 1, DTYPE_F32, "c");
    expect_told("called all_gather c\nready all_gather c\ncarried all_gather c\ndone all_gather c\n");
    free(all);
}

static void test_asynchronous_all_reduce(void **state)
{
    float numbers[100] = {1};
    Work *work = pg_all_reduce_async(pg, numbers, numbers, 100, DTYPE_F32, REDUCE_SUM, "d");
    work_wait(work);
    expect_told("called all_reduce d (background)\nready all_reduce d (background)\n"
                "carried all_reduce d (background)\ndone all_reduce d (background)\n");
}

/* Making and freeing a window are collective, too: a time-out must see them. On one rank there is no window. The group
 * was created with ALLREDUCE_SHM. */
static void test_shared_memory(void **state)
{
    void *memory = pg_alloc_shared(pg, 1000);
    const char *making = "called barrier making shared memory\nready barrier making shared memory\n"
                         "carried barrier making shared memory\ndone barrier making shared memory\n";
    expect_told(pg_world_size(pg) > 1 ? making : "");
    float number = 1; /* a sum so small that it stays in the queue until someone waits for the queue */
    Work *work = pg_all_reduce_async(pg, &number, &number, 1, DTYPE_F32, REDUCE_SUM, "e");
    void *more = pg_alloc_shared(pg, 1000);
    const char *sum = "called all_reduce e (background)\nready all_reduce e (background)\n"
                      "carried all_reduce e (background)\ndone all_reduce e (background)\n";
    const size_t length = strlen(sum);
    if (strncmp(told, sum, length) != 0)
        fail_msg("memory was made before the collectives that were queued earlier:\n%s", told);
    memmove(told, told + length, strlen(told) - length + 1);
    expect_told(pg_world_size(pg) > 1 ? making : "");
    work_wait(work);
    pg_free_shared(pg, more);
    told[0] = '\0';
    pg_free_shared(pg, memory);
    const char *freeing = "called barrier freeing shared memory\nready barrier freeing shared memory\n"
                          "carried barrier freeing shared memory\ndone barrier freeing shared memory\n";
    expect_told(pg_world_size(pg) > 1 ? freeing : "");
}

/* ---- what MPI has made and not freed. The linker uses these; the library's own are PMPI_... ---- */

static int communicators, windows;

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *part)
{
    communicators++;
    return PMPI_Comm_split(comm, color, key, part);
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *part)
{
    communicators++;
    return PMPI_Comm_split_type(comm, type, key, info, part);
}

int MPI_Comm_free(MPI_Comm *comm)
{
    communicators--;
    return PMPI_Comm_free(comm);
}

int MPI_Win_allocate_shared(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void *memory, MPI_Win *window)
{
    windows++;
    return PMPI_Win_allocate_shared(size, unit, info, comm, memory, window);
}

int MPI_Win_free(MPI_Win *window)
{
    windows--;
    return PMPI_Win_free(window);
}

static bool all_is_freed(void)
{
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (communicators != 0 || windows != 0 || !finalized)
        fprintf(stderr, "rank %d: after job_close(), %d communicators and %d windows are left, and MPI %s\n",
                job_rank(), communicators, windows, finalized ? "has ended" : "has not ended");
    return communicators == 0 && windows == 0 && finalized;
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocking_collectives),
        cmocka_unit_test(test_asynchronous_all_reduce),
        cmocka_unit_test(test_shared_memory),
    };
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    pg = job_open(&argc, &argv);
    pg_set_options(pg, &(ProcessGroupOptions){.algorithm = ALLREDUCE_SHM});
    device_init(pg_local_rank(pg), 1);
    tests_run_as_rank(pg_rank(pg));
    pg_observe(pg, &(GroupObserver){.self = told, .called = called, .ready = ready, .carried = carried, .done = done});
    told[0] = '\0';
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    pg_set_measuring(pg, false);
    job_close(pg);
    return failures != 0 || !all_is_freed();
}
