/* test_messages.c: the chunks into which the algorithms cut a buffer, which algorithm runs, and MPI's errors. */
#include <mpi.h>

#include "comm/messages.h"
#include "expect.h"

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
    return run_cases("messages", cmocka_unit_test(test_chunks_cover_the_buffer),
                     cmocka_unit_test(test_algorithms), cmocka_unit_test(test_errors_of_mpi));
}
