/* wrong_sum.c: planted into bench/collectives, in place of its three collectives: on the last rank the middle element
 * of every result comes out wrong. test_collectives.sh sees that this is noticed. */
#include <string.h>

#include "comm/process_group.h"

static void spoil(ProcessGroup *pg, float *result, size_t count, const char *carries)
{
    if (strcmp(carries, "samples") == 0 && pg_rank(pg) == pg_world_size(pg) - 1)
        result[count / 2] += 1;
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
