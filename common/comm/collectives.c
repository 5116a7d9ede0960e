/* collectives.c: a group's life, and its blocking collectives: numbers them and keeps them in order. */
#include "comm/group.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"

/* ---- a group's life ---- */

ProcessGroup *pg_create(const ProcessGroupOptions *options)
{
    ProcessGroup *pg = alloc_or_fault(sizeof *pg);
    pg->options = *options;
    pg->measuring = true;
    pthread_mutex_init(&pg->lock, NULL);
    pg_mpi_open(pg);
    return pg;
}

void pg_destroy(ProcessGroup *pg)
{
    worker_check_all_waited_for(pg, "this rank leaves the group");
    worker_stop(pg);
    group_tell_leaving(pg);
    pg->backend->close(pg);
    pthread_mutex_destroy(&pg->lock);
    free(pg);
}

int pg_rank(const ProcessGroup *pg)
{
    return pg->rank;
}

int pg_world_size(const ProcessGroup *pg)
{
    return pg->world_size;
}

int pg_local_rank(const ProcessGroup *pg)
{
    return pg->local_rank;
}

const char *pg_backend(const ProcessGroup *pg)
{
    return pg->backend->name;
}

void pg_set_options(ProcessGroup *pg, const ProcessGroupOptions *options)
{
    worker_drain(pg);
    pg->options = *options;
    pg_mpi_prepare(pg);
}

void pg_set_algorithm(ProcessGroup *pg, AllReduceAlgorithm algorithm)
{
    ProcessGroupOptions options = pg->options;
    options.algorithm = algorithm;
    pg_set_options(pg, &options);
}

AllReduceAlgorithm pg_algorithm(const ProcessGroup *pg)
{
    return pg->options.algorithm;
}

/* ---- blocking collectives ---- */

/* A blocking collective runs on the caller's thread, after all collectives in the queue of the communication thread. So
 * on every rank the collectives run in the order of the calls. */
static void run_blocking(ProcessGroup *pg, Collective collective)
{
    collective.queued = now_seconds();
    worker_drain(pg);
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
