/* test_host_links.c: the bytes that an all-reduce sends between hosts, counted, beside the formulas of
 * notes/allreduce.md, "Two levels". Ranks in a row count as a host. (Hosts with unequal numbers of ranks are refused:
 * test_sharded_runs.sh.) Run on 4 and 6 ranks. */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "expect.h"
#include "mpi_main.h"

enum { SENT, RECEIVED, MOST_HOSTS = 3, UNIT = 128 /* bytes, of chunks */, EVEN = 6144 /* elements: equal chunks */ };
static ProcessGroup *pg;
static int ranks_per_host;
static int64_t bytes[2][MOST_HOSTS]; /* sent to other hosts, and received from them; by host */

/* The linker uses this one; the library's own is PMPI_Isend. Each level of hierarchical numbers its ranks anew. */
int MPI_Isend(const void *elements, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request)
{
    MPI_Group ranks, all;
    int rank_in_all, size, from_host = pg_rank(pg) / ranks_per_host;
    MPI_Comm_group(comm, &ranks);
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_translate_ranks(ranks, 1, &to, all, &rank_in_all);
    MPI_Type_size(type, &size);
    if (rank_in_all / ranks_per_host != from_host) {
        bytes[SENT][from_host] += (int64_t)count * size;
        bytes[RECEIVED][rank_in_all / ranks_per_host] += (int64_t)count * size;
    }
    MPI_Group_free(&ranks);
    MPI_Group_free(&all);
    return PMPI_Isend(elements, count, type, to, tag, comm, request);
}

/* expected: bytes of all hosts together. slack: by how many one may differ from its part, where chunks differ. */
static void check_links(AllReduceAlgorithm algorithm, int L, size_t count, int64_t expected, int64_t slack)
{
    const int hosts = pg_world_size(pg) / L;
    float *numbers = alloc_or_fault(count * sizeof *numbers);
    int64_t in_all = 0;
    pg_set_options(pg, &(ProcessGroupOptions){.algorithm = algorithm, .ranks_per_host = L, .timeout = tests_timeout()});
    ranks_per_host = L;
    memset(bytes, 0, sizeof bytes);
    pg_all_reduce(pg, numbers, numbers, count, DTYPE_F32, REDUCE_SUM, "test");
    MPI_Allreduce(MPI_IN_PLACE, bytes, 2 * MOST_HOSTS, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    for (int host = 0; host < hosts; host++) {
        const int64_t sent = bytes[SENT][host], received = bytes[RECEIVED][host], by_formula = expected / hosts;
        in_all += sent;
        if (llabs(sent - by_formula) > slack || llabs(received - by_formula) > slack)
            fail_msg("%s, %d hosts of %d ranks, %zu bytes: host %d sends %lld bytes to other hosts and receives %lld; "
                     "by the formula %lld", all_reduce_name(algorithm), hosts, L, count * sizeof *numbers, host,
                     (long long)sent, (long long)received, (long long)by_formula);
    }
    assert_int_equal(in_all, expected);
    free(numbers);
}

static void test_bytes_between_hosts(void **state)
{
    const size_t counts[] = {1025, 10007, 4 * EVEN, 600000 /* more than a segment */};
    const int64_t N = pg_world_size(pg), n = EVEN * sizeof(float);
    for (int L = 2; L <= N / 2; L++) { /* all of these divide 4, or 6 */
        const int64_t H = N / L;
        for (int i = 0; i < 4; i++)
            check_links(ALLREDUCE_HIERARCHICAL, L, counts[i], 2 * (H - 1) * (int64_t)(counts[i] * sizeof(float)),
                        (H - 2) * L * 2 * UNIT);
        check_links(ALLREDUCE_RING, L, EVEN, H * 2 * (N - 1) * n / N, 0);
        check_links(ALLREDUCE_ORDERED, L, EVEN, H * 2 * L * (N - L) * n / N, 0);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bytes_between_hosts)};
    job_set_program("test_host_links");
    pg = tests_start_group(&argc, &argv, &(ProcessGroupOptions){.timeout = tests_timeout()});
    int failures = cmocka_run_group_tests_name("host links", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
