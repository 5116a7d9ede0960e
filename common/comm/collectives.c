/* collectives.c: the blocking collectives: numbers them and keeps them in order. */
#include "base/clock.h"
#include "comm/group.h"

/* A blocking collective runs on the caller's thread, after all collectives in the queue of the communication thread. So
 * on every rank the collectives run in the order of the calls. */
static void run_blocking(ProcessGroup *pg, Collective collective)
{
    collective.queued = now_seconds();
    worker_drain(pg);
    group_count_sum(pg, &collective);
    collective.sequence = pg->sequence++;
    group_add_exposed(pg, &collective, collective.queued, group_carry_out(pg, &collective));
}

void pg_barrier(ProcessGroup *pg)
{
    run_blocking(pg, (Collective){.operation = OP_BARRIER, .dtype = DTYPE_F32, .carries = ""});
}

void pg_broadcast(ProcessGroup *pg, void *buffer, size_t count, DType dtype, int root, const char *carries)
{
    run_blocking(pg, (Collective){.operation = OP_BROADCAST, .send = buffer, .receive = buffer, .count = count,
                                  .dtype = dtype, .root = root, .carries = carries});
}

void pg_all_reduce(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                   const char *carries)
{
    run_blocking(pg, (Collective){.operation = OP_ALL_REDUCE, .send = send, .receive = receive, .count = count,
                                  .dtype = dtype, .op = op, .carries = carries});
}

void pg_all_gather(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, const char *carries)
{
    run_blocking(pg, (Collective){.operation = OP_ALL_GATHER, .send = send, .receive = receive, .count = count,
                                  .dtype = dtype, .carries = carries});
}

void pg_reduce_scatter(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                       const char *carries)
{
    run_blocking(pg, (Collective){.operation = OP_REDUCE_SCATTER, .send = send, .receive = receive, .count = count,
                                  .dtype = dtype, .op = op, .carries = carries});
}
