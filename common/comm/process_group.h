/* process_group.h: the ranks of a job and the collectives between them.
 *
 * Interface: pg_create() first, pg_destroy() last. Every rank calls the same collectives in the same order; counts
 * are ELEMENTS, never bytes. `carries` names what is sent ("bucket 2", "fc1.weight"): errors and timelines show it.
 * It must stay valid until the collective is done. Buffers may be device memory or host memory. A collective begins when
 * the device work queued before it is done; when it is done, its result is there for every thread.
 * A group that is guarded (train/guard/guard.h) ends all ranks where a collective is not done within the time-out.
 */
#ifndef LOCKSTEP_COMM_PROCESS_GROUP_H
#define LOCKSTEP_COMM_PROCESS_GROUP_H

#include "tensor/tensor.h"

typedef enum ReduceOp { REDUCE_SUM, REDUCE_MAX } ReduceOp;

/* How all_reduce is done. ALLREDUCE_MPI: as the MPI library likes. SHM: all ranks must be on one host. The others: see
 * comm/allreduce.h. */
typedef enum AllReduceAlgorithm {
    ALLREDUCE_MPI,
    ALLREDUCE_ORDERED,
    ALLREDUCE_RING,
    ALLREDUCE_DOUBLING,
    ALLREDUCE_ROOT,
    ALLREDUCE_SHM
} AllReduceAlgorithm;

/* What all_reduce does over MPI where `wanted` is asked for: the same, but not always in 16 bits. */
AllReduceAlgorithm all_reduce_algorithm(AllReduceAlgorithm wanted, DType dtype);
/* Does that sum every element in rank order, so that the result is the same bits whatever the message sizes? */
bool all_reduce_in_rank_order(AllReduceAlgorithm wanted, DType dtype);

typedef struct ProcessGroupOptions {
    AllReduceAlgorithm algorithm;
    double timeout;           /* seconds a collective may take; train/guard sees to it */
    bool debug_collectives;   /* before each one, compare what the ranks are about to do; likewise */
    double wire_gbps;         /* emulated link: bandwidth in gigabit per second; 0: none */
    double wire_latency;      /* emulated link: seconds per message */
} ProcessGroupOptions;

/* What this rank's collectives have cost since the last pg_reset_counters(). */
typedef struct CommCounters {
    long collectives;
    int64_t bytes;        /* of the buffers' elements, summed; all_gather, reduce_scatter: of all ranks' parts */
    int64_t out_of_place; /* bytes of the largest all-reduce whose result went elsewhere than its input lay */
    double in_flight;     /* seconds during which a collective was being carried out */
    double exposed;       /* seconds during which the training thread stood still for one */
} CommCounters;

typedef struct ProcessGroup ProcessGroup;
typedef struct Work Work; /* an asynchronous collective on its way */

/* Starts MPI (alone, or under mpiexec). argc, argv: main()'s. From here on FAULT() ends all ranks. */
void pg_initialize(int *argc, char ***argv);
/* A group of all ranks. One per process. */
ProcessGroup *pg_create(const ProcessGroupOptions *options);
/* Frees the group, ends MPI; a fault while a Work has not been waited for. Collective. */
void pg_destroy(ProcessGroup *pg);

int pg_rank(const ProcessGroup *pg);
int pg_world_size(const ProcessGroup *pg);
int pg_local_rank(const ProcessGroup *pg); /* number among the ranks of this host */
const char *pg_backend(const ProcessGroup *pg); /* "mpi", "nccl" */

/* Other options from now on. Collective. */
void pg_set_options(ProcessGroup *pg, const ProcessGroupOptions *options);
/* Another algorithm from now on: for comparing them. Collective. */
void pg_set_algorithm(ProcessGroup *pg, AllReduceAlgorithm algorithm);

/* Zeroed device memory in which all_reduce works best, if in place: where neighbours can see it (ALLREDUCE_SHM), or else
 * the same as device_alloc(). Free with pg_free_shared(). Both are collective; every rank asks for equally much.
 * pg NULL: device_alloc(). Before memory is given back, every pg_all_reduce_async() must have had its work_wait():
 * the communication thread may still read and write there. Otherwise: a fault. */
void *pg_alloc_shared(ProcessGroup *pg, size_t bytes);
void pg_free_shared(ProcessGroup *pg, void *memory);

/* ---- blocking collectives ---- */
void pg_barrier(ProcessGroup *pg);
void pg_barrier_without_timeout(ProcessGroup *pg); /* for waiting until one rank has done something long */
void pg_broadcast(ProcessGroup *pg, void *buffer, size_t count, DType dtype, int root, const char *carries);
/* receive = op over ranks of send, on every rank. send == receive: in place. A NaN survives REDUCE_SUM everywhere, but
 * REDUCE_MAX only in the hand-written algorithms: MPI leaves it open. */
void pg_all_reduce(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                   const char *carries);
/* receive (world_size * count) = every rank's send (count), in rank order. Two different buffers. */
void pg_all_gather(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, const char *carries);
/* receive (count) = this rank's part of the sum over ranks of send (world_size * count). No stage needs it: half of an
 * all-reduce, and part of the field's interface. */
void pg_reduce_scatter(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                       const char *carries);

/* ---- asynchronous all-reduce ---- */

/* Queues an all-reduce and returns at once. A communication thread carries out what is queued, in the order of the
 * calls, while the caller computes. The buffers must stay alone until work_wait(). */
Work *pg_all_reduce_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                          const char *carries);
bool work_test(Work *work); /* true once it is done; never waits. No stage needs it: part of the field's interface */
void work_wait(Work *work); /* returns when it is done, and frees the handle: once for each, always. NULL, or a second
                             * time: a fault */

/* ---- accounting ---- */
CommCounters pg_counters(ProcessGroup *pg);
void pg_reset_counters(ProcessGroup *pg);
/* Switches the emulated link and the counting off and on again: for checks that are no part of a step. */
void pg_set_measuring(ProcessGroup *pg, bool on);

#endif
