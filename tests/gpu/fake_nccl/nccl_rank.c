/* nccl_rank.c: one rank of a job that uses pg_nccl.c with the fake NCCL. All memory except the stack counts as device
 * memory. test_nccl.sh starts it.
 *
 * usage: nccl_rank [absent RANK]      absent: that rank does not join the last collective
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "device/device.h"
#include "comm/process_group.h"
#include "base/dtype.h"
#include "backends/gpu/pg_nccl.h"
#include "train/guard/guard.h"
#include "train/report/trace.h"

enum { COUNT = 1000 };

static ProcessGroup *pg;
static float *device_memory; /* 64 * COUNT floats */

bool __wrap_device_owns(const void *memory);
bool __wrap_device_owns(const void *memory)
{
    const float *address = memory;
    return address >= device_memory && address < device_memory + 64 * COUNT;
}

/* The CPU has no ranges, so the test counts them: how many are open, and how many were NCCL's. */
static atomic_int open_ranges, nccl_ranges;

void __wrap_device_range_begin(const char *format, ...);
void __wrap_device_range_begin(const char *format, ...)
{
    (void)format;
    open_ranges++;
}

void __wrap_device_range_begin_on(void *stream, const char *format, ...);
void __wrap_device_range_begin_on(void *stream, const char *format, ...)
{
    CHECK(stream != NULL && strcmp(format, "NCCL") == 0, "a range %s on stream %p: is it NCCL's?", format, stream);
    open_ranges++;
    nccl_ranges++;
}

void __wrap_device_range_end(void);
void __wrap_device_range_end(void)
{
    open_ranges--;
}

static void expect(const char *what, double expected, double got)
{
    CHECK(got == expected, "%s: expected %g, got %g: read before it was written, or as another type?", what, expected,
          got);
}

static void fill(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(i % 100 + (size_t)pg_rank(pg));
}

static void expect_half(const char *operation, DType dtype, float expected, const uint16_t *got)
{
    char what[40];
    float number;
    half_to_floats(&number, got, dtype, 1);
    snprintf(what, sizeof what, "%s of %s", operation, dtype_name(dtype));
    expect(what, (double)expected, (double)number);
}

/* All numbers are so small that either 16-bit type holds them, and their sums, exactly. */
static void every_operation_in(DType dtype)
{
    int ranks = pg_world_size(pg), rank = pg_rank(pg), part = COUNT / ranks;
    uint16_t *x = (uint16_t *)(void *)device_memory, *y = x + 32 * COUNT;
    float numbers[COUNT], highest = (float)(ranks - 1), all = highest * (float)ranks / 2;
    for (int i = 0; i < COUNT; i++)
        numbers[i] = (float)(i % 8 + rank) + 0.5f;
    half_from_floats(x, numbers, dtype, COUNT);
    pg_all_reduce(pg, x, y, COUNT, dtype, REDUCE_SUM, "x");
    expect_half("sum", dtype, 7.5f * (float)ranks + all, &y[COUNT - 1]);
    pg_all_gather(pg, x, y, COUNT, dtype, "x");
    expect_half("all_gather", dtype, 5.5f + highest, &y[(ranks - 1) * COUNT + 5]);
    pg_reduce_scatter(pg, x, y, (size_t)part, dtype, REDUCE_SUM, "x");
    expect_half("reduce_scatter", dtype, ((float)(rank * part % 8) + 0.5f) * (float)ranks + all, &y[0]);
    pg_all_reduce(pg, x, x, COUNT, dtype, REDUCE_MAX, "x");
    expect_half("max, in place,", dtype, 7.5f + highest, &x[COUNT - 1]);
    half_from_floats(x, numbers, dtype, COUNT);
    pg_broadcast(pg, x, COUNT, dtype, ranks - 1, "x");
    expect_half("broadcast", dtype, 3.5f + highest, &x[3]);
}

static void every_operation(void)
{
    int ranks = pg_world_size(pg), rank = pg_rank(pg);
    float *x = device_memory, *y = device_memory + 16 * COUNT, all = (float)(ranks * (ranks - 1) / 2);
    fill(x, COUNT);
    pg_broadcast(pg, x, COUNT, DTYPE_F32, ranks - 1, "x");
    expect("broadcast", 7 + ranks - 1, (double)x[7]);
    fill(x, COUNT);
    pg_all_reduce(pg, x, y, COUNT, DTYPE_F32, REDUCE_SUM, "x");
    expect("sum", 99 * ranks + (double)all, (double)y[COUNT - 1]);
    pg_all_reduce(pg, x, x, COUNT, DTYPE_F32, REDUCE_MAX, "x");
    expect("max, in place", 99 + ranks - 1, (double)x[COUNT - 1]);
    fill(x, COUNT);
    pg_all_gather(pg, x, y, COUNT, DTYPE_F32, "x");
    expect("all_gather", 5 + ranks - 1, (double)y[(size_t)(ranks - 1) * COUNT + 5]);
    fill(x, (size_t)ranks * COUNT);
    pg_reduce_scatter(pg, x, y, COUNT, DTYPE_F32, REDUCE_SUM, "x");
    expect("reduce_scatter", 42 * ranks + (double)all, (double)y[42]);
    pg_reduce_scatter(pg, x, x + rank * COUNT, COUNT, DTYPE_F32, REDUCE_SUM, "x");
    expect("reduce_scatter, in place", 42 * ranks + (double)all, (double)x[rank * COUNT + 42]);
    x[rank * COUNT + 42] += (float)rank;
    pg_all_gather(pg, x + rank * COUNT, x, COUNT, DTYPE_F32, "x");
    for (int r = 0; r < ranks; r++)
        expect("all_gather, in place", 42 * ranks + (double)all + r, (double)x[r * COUNT + 42]);
    int64_t *whole = (int64_t *)(void *)x;
    whole[3] = 1000 + rank;
    pg_all_reduce(pg, whole, whole, 10, DTYPE_I64, REDUCE_MAX, "x");
    expect("int64", 1000 + ranks - 1, (double)whole[3]);
    double loss = rank; /* host memory */
    pg_all_reduce(pg, &loss, &loss, 1, DTYPE_F64, REDUCE_SUM, "loss");
    expect("host memory", (double)all, loss);
    every_operation_in(DTYPE_BF16);
    every_operation_in(DTYPE_F16);
    pg_barrier(pg);
    CHECK(nccl_ranges == 18 && open_ranges == 0, "18 collectives on the device had %d ranges, and %d ranges never "
          "ended", nccl_ranges, open_ranges);
}

/* Bucket after bucket, and a blocking collective behind them. Every second bucket in two halves. */
static void asynchronous(void)
{
    enum { WORKS = 8 };
    int ranks = pg_world_size(pg), part = COUNT / ranks, last = part * ranks - 1;
    Work *works[WORKS], *halves[WORKS];
    fill(device_memory, WORKS * COUNT);
    for (int i = 0; i < WORKS; i++) {
        float *bucket = device_memory + i * COUNT, *mine = bucket + pg_rank(pg) * part;
        if (i % 2 == 0) {
            works[i] = pg_all_reduce_async(pg, bucket, bucket, COUNT, DTYPE_F32, REDUCE_SUM, "bucket");
            continue;
        }
        halves[i] = pg_reduce_scatter_async(pg, bucket, mine, (size_t)part, DTYPE_F32, REDUCE_SUM, "bucket");
        works[i] = pg_all_gather_async(pg, mine, bucket, (size_t)part, DTYPE_F32, "bucket");
    }
    float *y = device_memory + 32 * COUNT;
    fill(y, COUNT);
    pg_all_reduce(pg, y, y, COUNT, DTYPE_F32, REDUCE_SUM, "behind");
    for (int i = 0; i < WORKS; i++) {
        if (i % 2 == 1)
            work_wait(halves[i]);
        work_wait(works[i]);
        expect("asynchronous sum", 3 * ranks + ranks * (ranks - 1) / 2.0, (double)device_memory[i * COUNT + 3]);
        expect("its last element", last % 100 * ranks + ranks * (ranks - 1) / 2.0,
               (double)device_memory[i * COUNT + last]);
    }
}

/* The two halves of the ranks, and all of them, at the same time. Each sums its own numbers. */
static void two_groups(ProcessGroup *world)
{
    enum { WORKS = 6 };
    ProcessGroup *half = pg_split(world, pg_rank(world) % 2);
    float *mine = device_memory, *ours = device_memory + 32 * COUNT;
    Work *in_half[WORKS], *in_world[WORKS];
    CHECK(strcmp(pg_backend(half), "nccl") == 0, "the half's backend is %s", pg_backend(half));
    for (int i = 0; i < WORKS; i++) {
        mine[i * COUNT] = (float)(i + 1 + pg_rank(world));
        ours[i * COUNT] = (float)i;
        in_half[i] = pg_all_reduce_async(half, mine + i * COUNT, mine + i * COUNT, COUNT, DTYPE_F32, REDUCE_SUM, "half");
        in_world[i] = pg_all_reduce_async(world, ours + i * COUNT, ours + i * COUNT, COUNT, DTYPE_F32, REDUCE_SUM, "all");
    }
    for (int i = WORKS - 1; i >= 0; i--) {
        float sum = 0;
        for (int rank = pg_rank(world) % 2; rank < pg_world_size(world); rank += 2)
            sum += (float)(i + 1 + rank);
        work_wait(in_half[i]);
        work_wait(in_world[i]);
        expect("the half's sum", (double)sum, (double)mine[i * COUNT]);
        expect("the sum of all", i * pg_world_size(world), (double)ours[i * COUNT]);
    }
    pg_destroy(half);
}

int main(int argc, char **argv)
{
    device_memory = alloc_or_fault(64 * COUNT * sizeof *device_memory);
    job_set_program("nccl_rank");
    ProcessGroup *world = pg = job_open(&argc, &argv);
    guard_job(pg);
    bool all_come = argc < 3; /* otherwise NCCL must miss the absent rank, not the comparison of calls */
    pg_set_options(pg, &(ProcessGroupOptions){.timeout = 3, .debug_collectives = all_come});
    CHECK(pg_world_size(pg) <= 16, "room for 16 ranks");
    timeline_observe(pg);
    pg_use_nccl(pg);
    CHECK(strcmp(pg_backend(pg), "nccl") == 0, "the backend is %s", pg_backend(pg));
    every_operation();
    asynchronous();
    if (!all_come && atoi(argv[2]) == pg_rank(pg))
        sleep_seconds(60);
    pg_all_reduce(pg, device_memory, device_memory, COUNT, DTYPE_F32, REDUCE_SUM, "the last one");
    two_groups(world);
    job_close(world);
    free(device_memory);
    return 0;
}
