/* wrong_sum.c: planted into bench/collectives, in place of its pg_all_reduce(): on the last rank the middle element of
 * every buffer comes out wrong. test_collectives.sh sees that this is noticed. */
#include <string.h>

#include "comm/process_group.h"

void __real_pg_all_reduce(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                          const char *carries);
void __wrap_pg_all_reduce(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                          const char *carries);

void __wrap_pg_all_reduce(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                          const char *carries)
{
    __real_pg_all_reduce(pg, send, receive, count, dtype, op, carries);
    if (strcmp(carries, "samples") == 0 && pg_rank(pg) == pg_world_size(pg) - 1)
        ((float *)receive)[count / 2] += 1;
}
