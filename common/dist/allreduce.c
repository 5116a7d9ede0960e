/* allreduce.c: all-reduce written by hand over point-to-point messages.
 *
 * note: ordered
 * all_reduce_ordered: rank c owns chunk c of the buffer.
 *   1. every rank sends each owner its part of the owner's chunk
 *   2. the owner adds the parts IN RANK ORDER, element by element
 *   3. every owner sends its finished chunk to all
 * Each rank sends and receives 2(N-1)/N of the buffer, which is the least an all-reduce can do. And as each element
 * is always part0 + part1 + part2 + ..., the result is the same bits however a gradient is cut into buckets,
 * and the same bits as one process that adds the same parts in the same order.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "device/device.h"
#include "dist/mpi_messages.h"

enum { TAG_PART = 1, TAG_RESULT = 2 };

/* Where rank's chunk begins: chunks are nearly equal and start at multiples of 16 elements, so that two chunks share
 * no cache line. chunk_start(count, N, N) is count. */
static size_t chunk_start(size_t count, int world_size, int rank)
{
    size_t blocks = (count + 15) / 16;
    size_t start = blocks * (size_t)rank / (size_t)world_size * 16;
    return start < count ? start : count;
}

static void combine_f32(float *total, const float *part, size_t count, ReduceOp op)
{
    for (size_t i = 0; op == REDUCE_SUM && i < count; i++)
        total[i] += part[i];
    for (size_t i = 0; op == REDUCE_MAX && i < count; i++)
        total[i] = part[i] > total[i] || part[i] != part[i] ? part[i] : total[i]; /* a NaN stays visible */
}

static void combine_f64(double *total, const double *part, size_t count, ReduceOp op)
{
    for (size_t i = 0; op == REDUCE_SUM && i < count; i++)
        total[i] += part[i];
    for (size_t i = 0; op == REDUCE_MAX && i < count; i++)
        total[i] = part[i] > total[i] || part[i] != part[i] ? part[i] : total[i];
}

static void combine_i64(int64_t *total, const int64_t *part, size_t count, ReduceOp op)
{
    for (size_t i = 0; op == REDUCE_SUM && i < count; i++)
        total[i] += part[i];
    for (size_t i = 0; op == REDUCE_MAX && i < count; i++)
        total[i] = part[i] > total[i] ? part[i] : total[i];
}

static void combine_i32(int32_t *total, const int32_t *part, size_t count, ReduceOp op)
{
    for (size_t i = 0; op == REDUCE_SUM && i < count; i++)
        total[i] += part[i];
    for (size_t i = 0; op == REDUCE_MAX && i < count; i++)
        total[i] = part[i] > total[i] ? part[i] : total[i];
}

/* 16-bit parts are added in float32 and rounded once, at the end. */
static void combine_half_parts(void *total, const unsigned char *parts, size_t count, int world_size, DType dtype,
                               ReduceOp op)
{
    float *sum = alloc_or_fault(count * sizeof *sum), *part = alloc_or_fault(count * sizeof *part);
    device_from_half(sum, parts, dtype, (int64_t)count);
    for (int rank = 1; rank < world_size; rank++) {
        device_from_half(part, parts + (size_t)rank * count * dtype_size(dtype), dtype, (int64_t)count);
        combine_f32(sum, part, count, op);
    }
    device_to_half(total, sum, dtype, (int64_t)count);
    free(sum);
    free(part);
}

/* total (count) = parts[0] op parts[1] op ..., in this order; parts (world_size, count). */
static void combine_parts(void *total, const unsigned char *parts, size_t count, int world_size, DType dtype,
                          ReduceOp op)
{
    size_t bytes = count * dtype_size(dtype);
    if (dtype == DTYPE_BF16 || dtype == DTYPE_F16) {
        combine_half_parts(total, parts, count, world_size, dtype, op);
        return;
    }
    memcpy(total, parts, bytes);
    for (int rank = 1; rank < world_size; rank++) {
        const void *part = parts + (size_t)rank * bytes;
        switch (dtype) {
        case DTYPE_F32: combine_f32(total, part, count, op); break;
        case DTYPE_F64: combine_f64(total, part, count, op); break;
        case DTYPE_I64: combine_i64(total, part, count, op); break;
        case DTYPE_I32: combine_i32(total, part, count, op); break;
        case DTYPE_BF16:
        case DTYPE_F16: break;
        }
    }
}

/* Step 1: collects every rank's part of this rank's chunk in parts (world_size, my_count). */
static void exchange_parts(ProcessGroup *pg, const Collective *c, unsigned char *parts, MPI_Request *requests)
{
    size_t size = dtype_size(c->dtype);
    const unsigned char *send = c->send;
    size_t mine = chunk_start(c->count, pg->world_size, pg->rank);
    size_t my_count = chunk_start(c->count, pg->world_size, pg->rank + 1) - mine;
    int pending = 0;
    memcpy(parts + (size_t)pg->rank * my_count * size, send + mine * size, my_count * size);
    for (int rank = 0; rank < pg->world_size; rank++) {
        if (rank == pg->rank)
            continue;
        size_t start = chunk_start(c->count, pg->world_size, rank);
        size_t count = chunk_start(c->count, pg->world_size, rank + 1) - start;
        if (my_count > 0)
            CHECK_MPI(MPI_Irecv(parts + (size_t)rank * my_count * size, (int)my_count, mpi_datatype(c->dtype), rank,
                                TAG_PART, group_communicator(pg), &requests[pending++]));
        if (count > 0)
            CHECK_MPI(MPI_Isend(send + start * size, (int)count, mpi_datatype(c->dtype), rank, TAG_PART,
                                group_communicator(pg), &requests[pending++]));
    }
    wait_for_messages(pg, c, pending, requests);
}

/* Step 3: every owner's finished chunk goes to all, into its place in receive. */
static void exchange_results(ProcessGroup *pg, const Collective *c, MPI_Request *requests)
{
    size_t size = dtype_size(c->dtype);
    unsigned char *receive = c->receive;
    size_t mine = chunk_start(c->count, pg->world_size, pg->rank);
    size_t my_count = chunk_start(c->count, pg->world_size, pg->rank + 1) - mine;
    int pending = 0;
    for (int rank = 0; rank < pg->world_size; rank++) {
        if (rank == pg->rank)
            continue;
        size_t start = chunk_start(c->count, pg->world_size, rank);
        size_t count = chunk_start(c->count, pg->world_size, rank + 1) - start;
        if (count > 0)
            CHECK_MPI(MPI_Irecv(receive + start * size, (int)count, mpi_datatype(c->dtype), rank, TAG_RESULT,
                                group_communicator(pg), &requests[pending++]));
        if (my_count > 0)
            CHECK_MPI(MPI_Isend(receive + mine * size, (int)my_count, mpi_datatype(c->dtype), rank, TAG_RESULT,
                                group_communicator(pg), &requests[pending++]));
    }
    wait_for_messages(pg, c, pending, requests);
}

void all_reduce_ordered(ProcessGroup *pg, const Collective *c)
{
    size_t mine = chunk_start(c->count, pg->world_size, pg->rank);
    size_t my_count = chunk_start(c->count, pg->world_size, pg->rank + 1) - mine;
    size_t size = dtype_size(c->dtype);
    CHECK(c->count <= INT_MAX, "all_reduce of %s: MPI counts %d elements at most, not %zu", c->carries, INT_MAX,
          c->count);
    unsigned char *parts = alloc_or_fault((size_t)pg->world_size * my_count * size);
    MPI_Request *requests = alloc_or_fault(2 * (size_t)pg->world_size * sizeof *requests);
    exchange_parts(pg, c, parts, requests);
    /* All parts have left `send`, so from here on `receive` may be the same buffer. */
    combine_parts((unsigned char *)c->receive + mine * size, parts, my_count, pg->world_size, c->dtype, c->op);
    exchange_results(pg, c, requests);
    free(parts);
    free(requests);
}
