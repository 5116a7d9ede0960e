/* test_message_count.c: how many messages a sum, a reduce-scatter and an all-gather cost. Run on 2 to 5 ranks. */
#include "expect.h"

#include <mpi.h>
#include <stdlib.h>

#include "base/check.h"
#include "comm/group.h" /* to choose the algorithm */
#include "mpi_main.h"

static ProcessGroup *pg;
static long messages;

/* The linker uses this one; the library's own is PMPI_Isend. */
int MPI_Isend(const void *elements, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request)
{
    messages++;
    return PMPI_Isend(elements, count, type, to, tag, comm, request);
}

/* The ordered algorithm: a small sum takes log2(N) messages of each rank, a long one 2 (N-1) for each segment of 2 MiB.
 * (In the other two operations, a segment's parts have this size together.) */
static void test_messages_by_size(void **state)
{
    const size_t segment = (size_t)2 << 20, N = (size_t)pg_world_size(pg), part = segment / N / sizeof(float);
    float *numbers = alloc_or_fault(2 * segment), *mine = numbers + (size_t)pg_rank(pg) * 2 * part;
    const struct {
        size_t bytes, expected;
    } sums[] = {{40, (N > 1) + (N > 2) + (N > 4)}, {1 << 15, 2 * (N - 1)}, {segment, 2 * (N - 1)}, {2 * segment, 4 * (N - 1)}};
    pg->options.algorithm = ALLREDUCE_ORDERED;
    for (int i = 0; i < 4; i++) {
        messages = 0;
        pg_all_reduce(pg, numbers, numbers, sums[i].bytes / sizeof *numbers, DTYPE_F32, REDUCE_SUM, "test");
        assert_int_equal(messages, sums[i].expected);
    }
    messages = 0;
    pg_reduce_scatter(pg, numbers, mine, 2 * part, DTYPE_F32, REDUCE_SUM, "test");
    assert_int_equal(messages, 2 * (N - 1));
    pg_all_gather(pg, mine, numbers, 2 * part, DTYPE_F32, "test");
    assert_int_equal(messages, 4 * (N - 1));
    pg->options.algorithm = ALLREDUCE_MPI;
    free(numbers);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_messages_by_size)};
    job_set_program("test_message_count");
    pg = tests_start_group(&argc, &argv, &(ProcessGroupOptions){.timeout = tests_timeout()});
    int failures = cmocka_run_group_tests_name("message count", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
