/* test_messages.c: what the algorithms are made of: waiting, scratch memory, chunks; and which algorithm runs. The
 * clock and MPI_Test() are the test's own, so this needs no other rank. */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/messages.h"
#include "expect.h"

/* ---- a clock of its own, which only sleeping moves ---- */

static double clock_now, slept[20];
static int sleeps, yields;

double __wrap_now_seconds(void)
{
    return clock_now;
}

void __wrap_sleep_seconds(double seconds)
{
    slept[sleeps++ % 20] = seconds;
    clock_now += seconds;
}

int __wrap_sched_yield(void)
{
    yields++;
    return 0;
}

/* No more than waiting needs. */
static ProcessGroup *group(void)
{
    static ProcessGroup pg;
    pg = (ProcessGroup){.world_size = 4};
    clock_now = 1000;
    sleeps = yields = 0;
    return &pg;
}

/* ---- waiting ---- */

static void wait_once(ProcessGroup *pg, const Collective *collective, Backoff *backoff, double seconds)
{
    clock_now += seconds;
    back_off(pg, collective, backoff);
}

/* First it spins, then it yields, then it sleeps, longer and longer. */
static void check_waiting(bool core_per_rank, bool background, bool training_waits)
{
    ProcessGroup *pg = group();
    const Collective collective = {.background = background};
    Backoff backoff = {0};
    bool sleeps_at_once = background && !training_waits;
    pg->core_per_rank = core_per_rank;
    pg->training_waits = training_waits;
    wait_once(pg, &collective, &backoff, 0);
    assert_int_equal(sleeps, sleeps_at_once);
    assert_int_equal(yields, !sleeps_at_once && !core_per_rank);
    wait_once(pg, &collective, &backoff, 1e-3);
    assert_int_equal(sleeps, 2 * sleeps_at_once);
    assert_int_equal(yields, sleeps_at_once ? 0 : core_per_rank ? 1 : 2);
    for (int i = 0; i < 10000 && sleeps < 20; i++)
        wait_once(pg, &collective, &backoff, 1e-6);
    assert_true(sleeps == 20 && slept[0] > 0 && slept[1] > slept[0] && slept[18] < 1e-3 && slept[19] == slept[18]);
    for (int i = 1; i < 20; i++)
        assert_true(slept[i] >= slept[i - 1] && slept[i] < 2 * slept[i - 1]);
}

static void test_waiting(void **unused)
{
    for (int k = 0; k < 8; k++)
        check_waiting(k & 1, k & 2, k & 4);
}

/* ---- messages ---- */

static MPI_Request *tested[20]; /* in this order */
static int tests, tests_until_done;

/* The linker uses this one instead of the library's: each request is done when it has been tested so often. */
int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
    tested[tests % 20] = request;
    *flag = ++tests % tests_until_done == 0;
    return MPI_SUCCESS;
}

static void test_waits_for_all_messages(void **unused)
{
    ProcessGroup *pg = group();
    MPI_Request requests[3] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    tests = 0;
    tests_until_done = 4;
    wait_for_messages(pg, &(Collective){.background = true}, 3, requests);
    assert_int_equal(tests, 12);
    for (int i = 0; i < 12; i++)
        assert_ptr_equal(tested[i], &requests[i / 4]);
    assert_int_equal(sleeps, 9); /* one after each test that found nothing */
    assert_true(slept[0] > 0 && slept[8] > slept[0]);
}

/* The memory is kept, with what is in it, for all requests that are not larger. */
static void test_scratch_is_kept(void **unused)
{
    ProcessGroup *pg = group();
    for (size_t bytes = 100; bytes <= 10000; bytes *= 10) {
        char *memory = group_scratch(pg, bytes);
        memset(memory, 'x', bytes);
        assert_ptr_equal(group_scratch(pg, bytes), memory);
        assert_ptr_equal(group_scratch(pg, bytes / 2), memory);
        assert_int_equal(memory[bytes - 1], 'x');
    }
    free(pg->scratch);
}

static void test_chunks_cover_the_buffer(void **unused)
{
    for (int chunks = 1; chunks <= 9; chunks++)
        for (size_t count = 0; count < 1500; count++) {
            assert_int_equal(chunk_start(count, chunks, 0), 0);
            assert_int_equal(chunk_start(count, chunks, chunks), count);
            for (int chunk = 0; chunk < chunks; chunk++) {
                size_t chunk_begin = chunk_start(count, chunks, chunk), here = chunk_count(count, chunks, chunk);
                assert_true(chunk_begin % 32 == 0 || chunk_begin == count);
                assert_true(here <= (count / 32 / (size_t)chunks + 1) * 32);
                assert_true(here + 64 > count / (size_t)chunks);
                assert_true(chunk_begin <= chunk_start(count, chunks, chunk + 1));
            }
        }
}

/* ---- which algorithm ---- */

static void test_algorithms(void **unused)
{
    static const struct {
        AllReduceAlgorithm algorithm, for_half;
        bool rank_order;
        const char *name;
    } rows[] = {
        {ALLREDUCE_MPI, ALLREDUCE_ORDERED, false, "mpi"},
        {ALLREDUCE_ROOT, ALLREDUCE_ROOT, true, "root"},
        {ALLREDUCE_RING, ALLREDUCE_ORDERED, false, "ring"},
        {ALLREDUCE_DOUBLING, ALLREDUCE_ORDERED, false, "recursive-doubling"},
        {ALLREDUCE_ORDERED, ALLREDUCE_ORDERED, true, "ordered"},
        {ALLREDUCE_SHM, ALLREDUCE_SHM, true, "shm"},
        {ALLREDUCE_HIERARCHICAL, ALLREDUCE_ORDERED, false, "hierarchical"},
    };
    for (int i = 0; i < 7; i++) {
        assert_int_equal(all_reduce_algorithm(rows[i].algorithm, DTYPE_F32), rows[i].algorithm);
        assert_int_equal(all_reduce_algorithm(rows[i].algorithm, DTYPE_BF16), rows[i].for_half);
        assert_int_equal(all_reduce_in_rank_order(rows[i].algorithm, DTYPE_F64), rows[i].rank_order);
        assert_true(all_reduce_in_rank_order(rows[i].algorithm, DTYPE_F16));
        assert_string_equal(all_reduce_name(rows[i].algorithm), rows[i].name);
    }
}

static void fail_in_mpi(void *code)
{
    MPI_Init(NULL, NULL);
    int class, made;
    MPI_Add_error_class(&class);
    MPI_Add_error_code(class, &made);
    MPI_Add_error_string(made, "what happened\nwhere in MPI");
    check_mpi(MPI_SUCCESS, "MPI_Right()", "right.c", 1);
    check_mpi(*(int *)code == MPI_ERR_OTHER ? made : *(int *)code, "MPI_Wrong()", "wrong.c", 7);
}

/* Only the first line of MPI's text, in a message of one line. */
static void test_errors_of_mpi(void **unused)
{
    expect_dies(fail_in_mpi, &(int){MPI_ERR_OTHER}, 1, "MPI_Wrong() failed: what happened (wrong.c:7)");
    expect_dies(fail_in_mpi, &(int){MPI_ERR_TRUNCATE}, 1, ": a rank has sent more than this one expects");
}

int main(void)
{
    return run_cases("messages", cmocka_unit_test(test_waiting), cmocka_unit_test(test_waits_for_all_messages),
                     cmocka_unit_test(test_scratch_is_kept), cmocka_unit_test(test_chunks_cover_the_buffer),
                     cmocka_unit_test(test_algorithms), cmocka_unit_test(test_errors_of_mpi));
}
