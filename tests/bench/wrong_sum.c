/* wrong_sum.c: planted into bench/collectives, in place of its three collectives: on the last rank the middle element
 * of every result comes out wrong. With WRONG_SUM=stale the result is that of the call before (up to 1 KB).
 * test_collectives.sh sees that this is noticed. */
#include <stdlib.h>
#include <string.h>

#include "comm/process_group.h"

static void spoil(ProcessGroup *pg, float *result, size_t count, const char *carries)
{
    static float before[256];
    float now[256];
    if (strcmp(carries, "samples") != 0 || pg_rank(pg) != pg_world_size(pg) - 1)
        return;
    if (getenv("WRONG_SUM") == NULL) {
        result[count / 2] += 1;
        return;
    }
    memcpy(now, result, count * sizeof *result);
    memcpy(result, before, count * sizeof *result);
    memcpy(before, now, count * sizeof *result);
}

void __real_pg_all_reduce(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                          const char *carries);
void __wrap_pg_all_reduce(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                          const char *carries);

void __wrap_pg_all_reduce(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                          const char *carries)
{
    __real_pg_all_reduce(pg, send, receive, count, dtype, op, carries);
    spoil(pg, receive, count, carries);
}

void __real_pg_reduce_scatter(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                              const char *carries);
void __wrap_pg_reduce_scatter(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                              const char *carries);

void __wrap_pg_reduce_scatter(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                              const char *carries)
{
    __real_pg_reduce_scatter(pg, send, receive, count, dtype, op, carries);
    spoil(pg, receive, count, carries);
}

void __real_pg_all_gather(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                          const char *carries);
void __wrap_pg_all_gather(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                          const char *carries);

void __wrap_pg_all_gather(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                          const char *carries)
{
    __real_pg_all_gather(pg, send, receive, count, dtype, carries);
    spoil(pg, receive, count, carries);
}
