/* test_shared_room.c: windows of shared memory where there is room for them, and where there is not. Run on 2 to 4
 * ranks. Linked with --wrap: statvfs() says how much room this test pretends, and each rank's part of a window begins
 * anywhere, as it may with Open MPI. (A /dev/shm that is really small: test_small_shm.sh.) */
#include <mpi.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "comm/shared_memory.h"
#include "mpi_main.h"

enum { PAGE = 4096 };

static ProcessGroup *pg;
static size_t room = SIZE_MAX;    /* bytes */
static bool room_is_known = true; /* false: statvfs() fails */
static int shift = 24;            /* where the parts of a window begin */
static size_t allocated;          /* for this rank's part of the last window */
static unsigned char *my_part;    /* of the last window */

int __wrap_statvfs(const char *path, struct statvfs *system);
int __wrap_MPI_Win_allocate_shared(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void *part, MPI_Win *window);
int __real_MPI_Win_allocate_shared(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void *part, MPI_Win *window);
int __wrap_MPI_Win_shared_query(MPI_Win window, int rank, MPI_Aint *size, int *unit, void *part);
int __real_MPI_Win_shared_query(MPI_Win window, int rank, MPI_Aint *size, int *unit, void *part);

int __wrap_statvfs(const char *path, struct statvfs *system)
{
    assert_string_equal(path, "/dev/shm");
    *system = (struct statvfs){.f_blocks = room == SIZE_MAX ? 0 : 1 << 20, .f_frsize = PAGE,
                              .f_bavail = room == SIZE_MAX ? 0 : room / PAGE};
    return room_is_known ? 0 : -1;
}

int __wrap_MPI_Win_allocate_shared(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void *part, MPI_Win *window)
{
    allocated = (size_t)size;
    return __real_MPI_Win_allocate_shared(size + shift, unit, info, comm, part, window);
}

int __wrap_MPI_Win_shared_query(MPI_Win window, int rank, MPI_Aint *size, int *unit, void *part)
{
    int code = __real_MPI_Win_shared_query(window, rank, size, unit, part);
    *(unsigned char **)part += shift;
    if (rank == pg_rank(pg))
        my_part = *(unsigned char **)part;
    return code;
}

/* Allocates memory that must, or must not, lie in a window. It is zeroed, and can be summed. */
static void check_memory(size_t bytes, bool in_window)
{
    unsigned char *memory = pg_alloc_shared(pg, bytes);
    assert_int_equal(shared_window_of(pg->shared, pg_rank(pg), memory, bytes) != NULL, in_window);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(memory[i], 0);
    if (in_window && (memory < my_part || memory + bytes > my_part + allocated || (uintptr_t)memory % 64 != 0))
        fail_msg("%zu bytes at %p do not begin on a cache line, or leave this rank's part of the window, %zu at %p",
                 bytes, (void *)memory, allocated, (void *)my_part);
    for (size_t i = 0; i + 4 <= bytes; i += 4)
        memory[i] = 1;
    pg_all_reduce(pg, memory, memory, bytes / 4, DTYPE_I32, REDUCE_SUM, "test");
    for (size_t i = 0; i + 4 <= bytes; i += 4)
        assert_int_equal(memory[i], pg_world_size(pg));
    pg_free_shared(pg, memory);
}

/* What is asked for is what is then allocated. */
static void test_exactly_enough_room(void **state)
{
    static const size_t sizes[] = {1, 4095, 4096, 4097, 100000};
    for (int k = 0; k < 5; k++) {
        room = SIZE_MAX;
        pg_set_algorithm(pg, ALLREDUCE_AUTO);
        shift = k % 2 == 0 ? 24 : 0;
        check_memory(sizes[k], true);
        assert_in_range(allocated, sizes[k], sizes[k] + 2 * PAGE);
        room = allocated * (size_t)pg_world_size(pg);
        check_memory(sizes[k], true);
        room -= PAGE;
        check_memory(sizes[k], false);
        room += PAGE;
        pg_set_algorithm(pg, ALLREDUCE_SHM); /* without room it would end */
        check_memory(sizes[k], true);
    }
}

static void test_unknown_room(void **state)
{
    pg_set_algorithm(pg, ALLREDUCE_AUTO);
    room = 0;
    check_memory(1000, false);
    room_is_known = false;
    check_memory(1000, true);
    room_is_known = true;
    room = SIZE_MAX;
    check_memory(1000, true);
}

/* If another program takes or frees memory between two ranks' looks, all ranks must still do the same. */
static void test_rank_0_decides(void **state)
{
    pg_set_algorithm(pg, ALLREDUCE_AUTO);
    room = pg_rank(pg) == 0 ? 0 : SIZE_MAX;
    check_memory(1000, false);
    room = pg_rank(pg) == 0 ? SIZE_MAX : 0;
    check_memory(1000, true);
    room = SIZE_MAX;
}

/* The system must not have to look for a page later, when the first write to it would end the process. */
static void test_pages_are_there_at_once(void **state)
{
    enum { PAGES = 50 };
    unsigned char there[PAGES], *memory = pg_alloc_shared(pg, (PAGES + 1) * PAGE);
    unsigned char *first = memory + (PAGE - (uintptr_t)memory % PAGE) % PAGE;
    assert_int_equal(mincore(first, PAGES * PAGE, there), 0);
    for (int page = 0; page < PAGES; page++)
        assert_int_equal(there[page] & 1, 1);
    pg_free_shared(pg, memory);
}

/* The first case, because the mailboxes are made only once. */
static void test_no_room_for_mailboxes(void **state)
{
    assert_null(pg->shared);
    room = 0;
    pg_set_algorithm(pg, ALLREDUCE_AUTO);
    assert_int_equal(pg_algorithm(pg), ALLREDUCE_MPI);
    assert_null(pg->shared);
    room = SIZE_MAX;
    pg_set_algorithm(pg, ALLREDUCE_AUTO);
    assert_int_equal(pg_algorithm(pg), ALLREDUCE_SHM);
}

/* Windows are allocated and freed many times, and a buffer may begin anywhere in one. */
static void test_memory_can_be_given_back(void **state)
{
    enum { COUNT = 10000 };
    pg_set_algorithm(pg, ALLREDUCE_AUTO); /* all ranks of this test are on one host */
    assert_int_equal(pg_algorithm(pg), ALLREDUCE_SHM);
    for (int round = 0; round < 4; round++) {
        float *first = pg_alloc_shared(pg, 3 * COUNT * sizeof *first), *second = pg_alloc_shared(pg, 100);
        float *values = first + 17 * (round + 1);
        for (int i = 0; i < 3 * COUNT; i++)
            if (first[i] != 0)
                fail_msg("pg_alloc_shared() gave memory that is not zeroed");
        for (int i = 0; i < COUNT; i++)
            values[i] = 1;
        pg_all_reduce(pg, values, values, COUNT, DTYPE_F32, REDUCE_SUM, "part of a window");
        for (int i = 0; i < COUNT; i++)
            if (values[i] != (float)pg_world_size(pg))
                fail_msg("round %d: element %d is %g, not the number of ranks", round, i, (double)values[i]);
        if (values[-1] != 0 || values[COUNT] != 0)
            fail_msg("the all-reduce wrote beside its part of the window");
        pg_free_shared(pg, round % 2 ? first : second);
        pg_free_shared(pg, round % 2 ? second : first);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_room_for_mailboxes), cmocka_unit_test(test_exactly_enough_room),
        cmocka_unit_test(test_unknown_room),          cmocka_unit_test(test_rank_0_decides),
        cmocka_unit_test(test_pages_are_there_at_once), cmocka_unit_test(test_memory_can_be_given_back),
    };
    pg = tests_start_group(&argc, &argv, &(ProcessGroupOptions){.timeout = tests_timeout()}); /* of MPI's algorithm */
    int failures = cmocka_run_group_tests_name("room for shared memory", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
