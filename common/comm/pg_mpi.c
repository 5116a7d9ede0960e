/* pg_mpi.c: the MPI backend: carries collectives out over MPI. Each one is started with MPI's non-blocking call; a loop
 * of our own (messages.c) then waits for it. */
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "comm/allreduce.h"
#include "comm/shared_memory.h"

/* ---- carrying a collective out ---- */

/* Starts the collective with MPI's own call, and waits for it. (In place, MPI's reduce-scatter would write its result
 * to the start of `send`, so it gets another buffer.) */
static void run_by_mpi(ProcessGroup *pg, const Collective *c)
{
    CHECK(c->count <= INT_MAX, "%s: MPI counts %d elements at most", collective_name(pg, c), INT_MAX);
    MPI_Comm comm = pg->comm;
    MPI_Datatype type = mpi_datatype(c->dtype);
    MPI_Request request = MPI_REQUEST_NULL;
    int count = (int)c->count;
    bool in_place = c->operation == OP_REDUCE_SCATTER && c->receive == part_sent(pg, c, pg->rank);
    size_t bytes = c->count * dtype_size(c->dtype);
    void *receive = in_place ? group_scratch(pg, bytes) : c->receive;
    bool gathers_in_place = c->operation == OP_ALL_GATHER && c->send == part_received(pg, c, pg->rank);
    const void *send = gathers_in_place ? MPI_IN_PLACE : c->send;
    switch (c->operation) {
    case OP_BARRIER: CHECK_MPI(MPI_Ibarrier(comm, &request)); break;
    case OP_BROADCAST: CHECK_MPI(MPI_Ibcast(c->receive, count, type, c->root, comm, &request)); break;
    case OP_ALL_REDUCE: FAULT("run() has a table for it");
    case OP_ALL_GATHER: CHECK_MPI(MPI_Iallgather(send, count, type, receive, count, type, comm, &request)); break;
    case OP_REDUCE_SCATTER:
        CHECK_MPI(MPI_Ireduce_scatter_block(send, receive, count, type, mpi_op(c->op), comm, &request));
        break;
    }
    wait_for_messages(pg, c, 1, &request);
    if (in_place)
        memcpy(c->receive, receive, bytes);
}

/* ---- all-reduce: MPI's own ---- */

/* note: mpi-pieces
 * For a sum of 100 MB, MPICH allocates 50 MB of scratch memory in every call and returns them to the system, so that
 * every call pays for the same page faults. For smaller pieces the C library keeps the freed memory for the next call.
 * If send and receive are one buffer, MPI requires MPI_IN_PLACE. */
#define PIECE_BYTES ((size_t)16 << 20)

static void all_reduce_mpi(ProcessGroup *pg, const Collective *c)
{
    size_t size = dtype_size(c->dtype), piece = PIECE_BYTES / size;
    for (size_t start = 0; start < c->count; start += piece) {
        size_t count = c->count - start < piece ? c->count - start : piece;
        const void *send = c->send == c->receive ? MPI_IN_PLACE : (const unsigned char *)c->send + start * size;
        MPI_Request request;
        CHECK_MPI(MPI_Iallreduce(send, (unsigned char *)c->receive + start * size, (int)count, mpi_datatype(c->dtype),
                                 mpi_op(c->op), pg->comm, &request));
        wait_for_messages(pg, c, 1, &request);
    }
}

/* ---- which algorithm ---- */

/* note: segments
 * A long buffer is reduced segment by segment. The output of one step of an algorithm is then still in the cache
 * when the next step reads it, and scratch memory stays small. On a real network a segment must be long enough to be
 * worth its latency. In a reduce-scatter or an all-gather, a segment is the same piece of every part. */
#define SEGMENT_BYTES ((size_t)2 << 20)

typedef void (*Algorithm)(ProcessGroup *pg, const Collective *collective);

/* A new algorithm is a file, a row here and one in algorithms.c. Fields that a row leaves out are false, 0 or NULL. */
static const struct {
    Algorithm all_reduce, reduce_scatter, all_gather;
    Algorithm all_reduce_small; /* for up to small_bytes: fewer messages, more bytes; may be NULL */
    size_t small_bytes;
    bool segments; /* it gets one segment after the other; false: the whole buffer */
} algorithms[] = {
    [ALLREDUCE_MPI] = {all_reduce_mpi, run_by_mpi, run_by_mpi},
    [ALLREDUCE_ROOT] = {all_reduce_root, reduce_scatter_ordered, all_gather_ordered, .segments = true},
    [ALLREDUCE_RING] = {run_ring, run_ring, run_ring},
    [ALLREDUCE_DOUBLING] = {all_reduce_halving_doubling, reduce_scatter_ordered, all_gather_ordered,
                            .all_reduce_small = all_reduce_recursive_doubling, .small_bytes = (size_t)16 << 10,
                            .segments = true},
    [ALLREDUCE_ORDERED] = {all_reduce_ordered, reduce_scatter_ordered, all_gather_ordered,
                           .all_reduce_small = all_reduce_ordered_small, .small_bytes = (size_t)4 << 10,
                           .segments = true},
    [ALLREDUCE_SHM] = {all_reduce_shm, scatter_or_gather_shm, scatter_or_gather_shm},
    [ALLREDUCE_HIERARCHICAL] = {all_reduce_hierarchical, reduce_scatter_hierarchical, all_gather_hierarchical,
                                .all_reduce_small = all_reduce_hierarchical_small, .small_bytes = (size_t)4 << 10,
                                .segments = true},
};

static Algorithm algorithm_for(AllReduceAlgorithm chosen, const Collective *c)
{
    bool small = c->count * dtype_size(c->dtype) <= algorithms[chosen].small_bytes;
    if (c->operation == OP_REDUCE_SCATTER)
        return algorithms[chosen].reduce_scatter;
    if (c->operation == OP_ALL_GATHER)
        return algorithms[chosen].all_gather;
    return small && algorithms[chosen].all_reduce_small != NULL ? algorithms[chosen].all_reduce_small
                                                                 : algorithms[chosen].all_reduce;
}

static void run(Backend *self, ProcessGroup *pg, const Collective *collective)
{
    (void)self;
    if (collective->operation == OP_BARRIER || collective->operation == OP_BROADCAST) {
        run_by_mpi(pg, collective);
        return;
    }
    Collective c = *collective;
    c.stride = c.count;
    bool adds = c.operation != OP_ALL_GATHER;
    AllReduceAlgorithm chosen = adds ? all_reduce_algorithm(pg->options.algorithm, c.dtype) : pg->options.algorithm;
    size_t bytes = c.count * dtype_size(c.dtype), parts = c.operation == OP_ALL_REDUCE ? 1 : (size_t)pg->world_size;
    if (bytes == 0)
        return;
    if (pg->world_size == 1) {
        memmove(c.receive, c.send, bytes); /* in place, they are the same */
        return;
    }
    Algorithm algorithm = algorithm_for(chosen, &c);
    size_t max_count = algorithms[chosen].segments ? SEGMENT_BYTES / parts / dtype_size(c.dtype) : c.count;
    for (size_t start = 0; start < c.count; start += max_count) {
        const Collective segment = segment_of(&c, start, max_count);
        algorithm(pg, &segment);
    }
}

static void close_mpi(Backend *self, ProcessGroup *pg)
{
    (void)self;
    shared_memory_close(pg);
    hierarchy_close(pg);
    free(pg->scratch);
    MPI_Comm_free(&pg->comm);
}

static Backend mpi_backend = {.name = "mpi", .run = run, .close = close_mpi};

/* Cores that this process may run on. */
static int cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

void pg_mpi_open(ProcessGroup *pg, MPI_Comm of, int color)
{
    MPI_Comm host;
    int host_size;
    CHECK_MPI(MPI_Comm_split(of, color, 0, &pg->comm)); /* in the order of their ranks in `of` */
    CHECK_MPI(MPI_Comm_rank(pg->comm, &pg->rank));
    CHECK_MPI(MPI_Comm_size(pg->comm, &pg->world_size));
    CHECK_MPI(MPI_Comm_split_type(pg->comm, MPI_COMM_TYPE_SHARED, pg->rank, MPI_INFO_NULL, &host));
    CHECK_MPI(MPI_Comm_rank(host, &pg->local_rank));
    CHECK_MPI(MPI_Comm_size(host, &host_size));
    CHECK_MPI(MPI_Comm_free(&host));
    pg->one_host = host_size == pg->world_size;
    pg->core_per_rank = host_size <= cores();
    pg->backend = &mpi_backend;
}

/* note: allreduce-auto
 * Ranks of one host add fastest in memory that they share. They add in rank order there, so all stages compute the same
 * bits. For a network, or if the host has no room for shared memory, the choice is left to the MPI library. */
void pg_mpi_prepare(ProcessGroup *pg)
{
    AllReduceAlgorithm *algorithm = &pg->options.algorithm;
    pg->windows_if_room = *algorithm == ALLREDUCE_AUTO;
    if (*algorithm == ALLREDUCE_AUTO)
        *algorithm = pg->one_host ? ALLREDUCE_SHM : ALLREDUCE_MPI;
    if (*algorithm == ALLREDUCE_HIERARCHICAL)
        hierarchy_open(pg);
    if (*algorithm != ALLREDUCE_SHM || pg->shared != NULL || pg->world_size == 1)
        return;
    if (!pg->one_host)
        die("--allreduce: shm needs all ranks on one host; give ordered, ring or mpi");
    *algorithm = ALLREDUCE_MPI; /* an observer may start a collective before shm is ready */
    if (shared_memory_open(pg))
        *algorithm = ALLREDUCE_SHM;
}
