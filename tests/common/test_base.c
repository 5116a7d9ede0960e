/* test_base.c: base/: how a process ends (check.h) on each rank of a job, with functions in place of MPI's; memory;
 * types; random numbers; hashes. */
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/dtype.h"
#include "base/hash.h"
#include "base/rng.h"
#include "expect.h"

/* ---- the end of a job: each function prints that it is called ---- */

#define EXPLAINED "[the end is explained]\n"
#define OUTPUT "loss 2.3\n"
#define ARRIVE "[do all arrive within 2 s?]\n"
#define LEAVE "[leave with status 2]\n"
#define STOP "[before the abort]\n"

enum { ABORTED = 40 }; /* added to the status with which the job is aborted */

static void print_explained(void)
{
    fputs(EXPLAINED, stderr);
}

static void print_stop(void)
{
    fputs(STOP, stderr);
}

static void print_leave(void)
{
    fprintf(stderr, "[leave with status %d]\n", job_status());
}

static bool all_arrive(double seconds)
{
    fprintf(stderr, "[do all arrive within %g s?]\n", seconds);
    return true;
}

static bool one_is_missing(double seconds)
{
    all_arrive(seconds);
    return false;
}

static void abort_job(int status)
{
    _exit(ABORTED + status);
}

static void begin_job(int rank, bool (*all_ranks_arrive)(double seconds))
{
    job_set((Job){rank, 4, all_ranks_arrive, print_leave, abort_job});
    job_on_explained_end(print_explained);
    job_before_abort(print_stop);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    printf(OUTPUT); /* waits in the buffer of stdout */
}

static void make_a_mistake_without_mpi(void *unused)
{
    dup2(STDERR_FILENO, STDOUT_FILENO);
    printf(OUTPUT);
    die("no %s", "data");
}

static void make_the_same_mistake(void *rank)
{
    begin_job(*(int *)rank, all_arrive);
    die("no %s", "data");
}

static void make_a_mistake_alone(void *rank)
{
    begin_job(*(int *)rank, one_is_missing);
    die("no %s", "data");
}

static void test_mistakes(void **state)
{
    int rank = 0;
    expect_dies(make_a_mistake_without_mpi, NULL, 2, OUTPUT "train: error: no data\n");
    expect_dies(make_the_same_mistake, &rank, 2, EXPLAINED OUTPUT "train: error: no data\n" ARRIVE LEAVE);
    expect_dies(make_a_mistake_alone, &rank, ABORTED + 2,
                EXPLAINED OUTPUT "train: error: no data\n" ARRIVE EXPLAINED STOP);
    rank = 3;
    expect_dies(make_the_same_mistake, &rank, 2, EXPLAINED ARRIVE LEAVE OUTPUT);
    expect_dies(make_a_mistake_alone, &rank, ABORTED + 2,
                EXPLAINED ARRIVE OUTPUT "train: error: no data (rank 3)\n" EXPLAINED STOP);
}

static void fault_in_step(void *step)
{
    begin_job(3, all_arrive);
    job_set_program("train_cuda");
    job_set_step(*(long *)step);
    FAULT("lost %d bytes", 7);
}

static void say_fault_and_abort(void *status)
{
    begin_job(0, all_arrive);
    job_say_fault("lost %d bytes", 7);
    job_abort(*(int *)status);
}

static void abort_without_a_word(void *status)
{
    begin_job(0, all_arrive);
    job_before_abort(NULL);
    job_abort(*(int *)status);
}

static void abort_without_a_job(void *status)
{
    job_abort(*(int *)status);
}

static void test_faults(void **state)
{
    long step = 0;
    expect_dies(fault_in_step, &step, ABORTED + 1,
                EXPLAINED OUTPUT "train_cuda: fault: rank 3, step 0: lost 7 bytes (test_base.c:");
    expect_dies(fault_in_step, &step, ABORTED + 1, ")\n" EXPLAINED STOP);
    step = -1;
    expect_dies(fault_in_step, &step, ABORTED + 1, "train_cuda: fault: rank 3: lost 7 bytes (");
    int status = 5;
    expect_dies(say_fault_and_abort, &status, ABORTED + 5,
                EXPLAINED OUTPUT "train: fault: rank 0: lost 7 bytes\n" EXPLAINED STOP);
    expect_dies(abort_without_a_word, &status, ABORTED + 5, EXPLAINED);
    expect_dies(abort_without_a_job, &status, 5, NULL);
}

/* ---- the line that is printed ---- */

static void advise_on_two_ranks(void *unused)
{
    fprintf(stderr, "[rank 1]\n");
    job_set((Job){.rank = 1, .world_size = 2});
    advise("not this one");
    fprintf(stderr, "[rank 0]\n");
    job_set((Job){.rank = 0, .world_size = 2});
    advise("use %d ranks", 4);
    advise("\n"); /* control characters would end the line, or change the terminal */
    advise("\033[1mx\t");
    exit(3);
}

static void test_advice(void **state)
{
    expect_dies(advise_on_two_ranks, NULL, 3,
                "[rank 1]\n[rank 0]\ntrain: note: use 4 ranks\ntrain: note: ?\ntrain: note: ?[1mx?\n");
}

/* ---- memory and int8 ---- */

static void allocate_too_much(void *unused)
{
    free(alloc_or_fault(SIZE_MAX));
}

static void test_memory(void **state)
{
    unsigned char *memory = alloc_or_fault(5);
    assert_int_equal((uintptr_t)memory % 64, 0);
    assert_int_equal(memory[0] | memory[1] | memory[2] | memory[3] | memory[4], 0);
    free(memory);
    expect_dies(allocate_too_much, NULL, 1, "cannot allocate 18446744073709551615 bytes: the size is not plausible");
}

/* Rounds 16 numbers to int8 and back. */
static void through_int8(const float x[INT8_BLOCK], float result[INT8_BLOCK])
{
    Int8Block block;
    int8_from_floats(&block, x, INT8_BLOCK);
    int8_to_floats(result, &block, INT8_BLOCK);
}

/* Each number is off by at most half a scale; the largest, and multiples of the scale, are exact; ties go to even. */
static void test_int8_rounds_to_the_nearest(void **state)
{
    float x[INT8_BLOCK] = {[3] = -127, [4] = 2.5f, [5] = 3.5f, [6] = -2.5f, [7] = 100, [8] = 0.49f}, result[INT8_BLOCK];
    const float expected[INT8_BLOCK] = {[3] = -127, [4] = 2, [5] = 4, [6] = -2, [7] = 100};
    through_int8(x, result);
    for (int i = 0; i < INT8_BLOCK; i++)
        if (!(result[i] == expected[i]))
            fail_msg("%g in a block whose largest number is 127 is %g, expected %g", (double)x[i], (double)result[i],
                     (double)expected[i]);
    Rng rng;
    rng_seed(&rng, 1);
    for (int trial = 0; trial < 2000; trial++) {
        const float size = ldexpf(1, (int)rng_below(&rng, 200) - 100);
        float largest = 0;
        for (int i = 0; i < INT8_BLOCK; i++) {
            x[i] = size * (float)rng_normal(&rng);
            largest = fmaxf(largest, fabsf(x[i]));
        }
        through_int8(x, result);
        for (int i = 0; i < INT8_BLOCK; i++)
            if (!(fabsf(result[i] - x[i]) <= (fabsf(x[i]) == largest ? 1e-6f * largest : largest / 254 * 1.00001f)))
                fail_msg("%g in a block whose largest number is %g is %g", (double)x[i], (double)largest,
                         (double)result[i]);
    }
}

static void test_int8_at_the_borders(void **state)
{
    const float largest[] = {NAN, -NAN, INFINITY, -INFINITY, FLT_MAX / 2, 0, -0.0f, 0x1p-149f, FLT_MIN, 200 * FLT_MIN};
    for (int i = 0; i < 10; i++) {
        float x[INT8_BLOCK] = {[1] = largest[i], [2] = largest[i] / 2}, result[INT8_BLOCK];
        through_int8(x, result);
        if (!isfinite(largest[i]) ? !isnan(result[0]) || !isnan(result[1])
                                  : result[0] != 0 || !(fabsf(result[1] - x[1]) <= 1e-6f * fabsf(x[1]) + 127 * FLT_MIN))
            fail_msg("a block with 0 and %g is %g, %g", (double)x[1], (double)result[0], (double)result[1]);
    }
}

/* ---- hashes ---- */

static void test_hashes_of_known_texts(void **state)
{
    assert_true(fnv1a(FNV1A_START, "", 0) == FNV1A_START);
    assert_true(fnv1a(FNV1A_START, "foobar", 6) == 0x85944171f73967e8u); /* RFC 9923 */
    assert_true(fnv1a(fnv1a(FNV1A_START, "foo", 3), "bar", 3) == 0x85944171f73967e8u);
}

int main(void)
{
    return run_cases("base", cmocka_unit_test(test_mistakes), cmocka_unit_test(test_faults),
                     cmocka_unit_test(test_advice), cmocka_unit_test(test_memory), cmocka_unit_test(test_int8_rounds_to_the_nearest), cmocka_unit_test(test_int8_at_the_borders),
                     cmocka_unit_test(test_hashes_of_known_texts));
}
