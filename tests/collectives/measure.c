/* measure.c: runs two all-reduces of collectives.c over MPI, and prints their times: on 2 or more ranks, under mpiexec.
 *
 *   mpiexec -n 4 measure [--calls 200]
 *
 * Each row is one count. All ranks meet before each call; the time is that of the slowest rank, the median of all
 * calls. The sum is checked.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "collectives.h"

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of `calls` calls, in microseconds. */
static double median_time(ProcessGroup *pg, void (*function)(ProcessGroup *, const Collective *), size_t count,
                          int calls)
{
    float *numbers = alloc_or_fault(count * sizeof *numbers);
    double *times = alloc_or_fault((size_t)calls * sizeof *times);
    const Collective c = {.operation = OP_ALL_REDUCE, .send = numbers, .receive = numbers, .count = count,
                          .stride = count, .dtype = DTYPE_F32, .op = REDUCE_SUM, .carries = "numbers"};
    for (int call = 0; call < calls; call++) {
        for (size_t i = 0; i < count; i++)
            numbers[i] = (float)pg->rank;
        MPI_Barrier(pg->comm);
        double start = now_seconds(), seconds;
        function(pg, &c);
        seconds = now_seconds() - start;
        MPI_Allreduce(&seconds, &times[call], 1, MPI_DOUBLE, MPI_MAX, pg->comm);
        for (size_t i = 0; i < count; i++)
            CHECK(numbers[i] == (float)(pg->world_size * (pg->world_size - 1) / 2), "element %zu is %g", i,
                  (double)numbers[i]);
    }
    qsort(times, (size_t)calls, sizeof *times, compare);
    double median = times[calls / 2] * 1e6;
    free(times);
    free(numbers);
    return median;
}

int main(int argc, char **argv)
{
    ProcessGroup pg = {.core_per_rank = false};
    int calls = argc == 3 && strcmp(argv[1], "--calls") == 0 ? atoi(argv[2]) : argc == 1 ? 200 : 0;
    MPI_Init(&argc, &argv);
    pg.comm = MPI_COMM_WORLD;
    MPI_Comm_rank(pg.comm, &pg.rank);
    MPI_Comm_size(pg.comm, &pg.world_size);
    job_set_program("measure");
    job_set((Job){.rank = pg.rank, .world_size = pg.world_size});
    if (calls < 1)
        die("usage: measure [--calls NUMBER]");
    if (pg.rank == 0)
        printf("%d ranks, median microseconds\n%10s %12s %12s %18s\n", pg.world_size, "elements", "KB", "ring",
               "halving-doubling");
    for (size_t count = 16; count <= (size_t)4 << 20; count *= 4) {
        int repeated = count > 1 << 16 ? (calls + 9) / 10 : calls;
        double ring = median_time(&pg, ring_all_reduce, count, repeated);
        double halving = median_time(&pg, halving_doubling_all_reduce, count, repeated);
        if (pg.rank == 0)
            printf("%10zu %12.1f %12.1f %18.1f\n", count, (double)(count * sizeof(float)) / 1e3, ring, halving);
    }
    free(pg.scratch);
    MPI_Finalize();
    return 0;
}
