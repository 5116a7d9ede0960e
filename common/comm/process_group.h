/* process_group.h: the ranks of a job, groups of them, and the collectives between the ranks of a group.
 *
 * Interface: job_open() first, job_close() last. Call the same collectives in the same order on every rank. Counts
 * are ELEMENTS, never bytes. `carries` names the payload ("bucket 2", "fc1.weight") in errors and timelines; it must
 * stay valid until the collective is done. Buffers may be device memory or host memory. A collective begins after all
 * device work that was queued before it; when it is done, every thread can read its result. Errors of MPI are faults.
 * If the job is guarded (guard_job() in train/guard/guard.h), a collective that exceeds the time-out ends all ranks.
 */
#ifndef LOCKSTEP_COMM_PROCESS_GROUP_H
#define LOCKSTEP_COMM_PROCESS_GROUP_H

#include "base/dtype.h"

typedef struct ProcessGroup ProcessGroup;

/* ---- the job ---- */
/* Starts MPI (alone, or under mpiexec). argc, argv: main()'s. From here on FAULT() ends all ranks. Faults if MPI does
 * not support MPI_THREAD_MULTIPLE. Returns the job's first group, the world: all ranks, MPI's all-reduce, no time-out,
 * until pg_set_options() is called. Collective. */
ProcessGroup *job_open(int *argc, char ***argv);
/* Frees the world and ends MPI. Faults if a Work had no work_wait(), or a group no pg_destroy(). Collective. */
void job_close(ProcessGroup *world);

int pg_rank(const ProcessGroup *pg);
int pg_world_size(const ProcessGroup *pg);
int pg_local_rank(const ProcessGroup *pg); /* index among the ranks of this host */

/* ---- blocking collectives ---- */
typedef enum ReduceOp { REDUCE_SUM, REDUCE_MAX } ReduceOp;

void pg_barrier(ProcessGroup *pg);
void pg_broadcast(ProcessGroup *pg, void *buffer, size_t count, DType dtype, int root, const char *carries);
/* receive (count) = op over all ranks of send (count), on every rank. send == receive: in place. A NaN survives
 * REDUCE_SUM with every algorithm, but REDUCE_MAX only with the hand-written ones, because MPI does not define this
 * case. */
void pg_all_reduce(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                   const char *carries);
/* receive (world_size * count) = every rank's send (count), in rank order. In place: send == receive + rank * count
 * elements, on all ranks. Otherwise the two buffers must not overlap. */
void pg_all_gather(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, const char *carries);
/* receive (count) = part `rank` of the op over all ranks of send (world_size * count). If the algorithm adds in rank
 * order (all_reduce_in_rank_order), these are the bits of an all_reduce of `send`. In place: receive == send + rank *
 * count elements, on all ranks; the other parts of `send` may have any value afterwards. Otherwise the two buffers must
 * not overlap. */
void pg_reduce_scatter(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                       const char *carries);

/* ---- asynchronous collectives ---- */
typedef struct Work Work; /* an asynchronous collective; owned by the group, valid until its work_wait() */

/* The same, but each queues its collective and returns at once. A communication thread carries out the queue in the
 * order of the calls, while the caller computes. Do not touch the buffers until work_wait() returns. */
Work *pg_all_reduce_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                          const char *carries);
Work *pg_reduce_scatter_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                              const char *carries);
Work *pg_all_gather_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                          const char *carries);
bool work_test(Work *work); /* true once it is done; never waits. Used by stage 5 to free buffers early. */
/* Returns when the collective is done, and frees the handle. Call it exactly once for each Work. NULL is a fault. A
 * second call is a fault, too, unless a later collective already uses the handle again. */
void work_wait(Work *work);

/* ---- memory for gradients ---- */
/* Zeroed, aligned device memory for fast in-place all-reduces. Under ALLREDUCE_SHM all ranks of the host see it.
 * Otherwise it comes from device_alloc(); also if pg is NULL, or if AUTO has chosen SHM and the host has no room left.
 * Free with pg_free_shared(). Both are collective, with the same `bytes` on all ranks. pg_free_shared() faults if an
 * asynchronous collective had no work_wait(), because the communication thread may still use the memory. */
void *pg_alloc_shared(ProcessGroup *pg, size_t bytes);
void pg_free_shared(ProcessGroup *pg, void *memory);
size_t pg_shared_bytes(const ProcessGroup *pg); /* of all memory from pg_alloc_shared() that is not freed yet */

/* ---- groups ---- */
/* note: groups
 * Makes groups of the ranks of `parent`. Ranks that pass the same color, a number from 0 on, form one; their order
 * stays. It has the parent's options, backend and observers, but its own communicator, shared memory, communication
 * thread, queue and counters. So collectives of two groups may be under way at the same time (but not over NCCL: see
 * backends/gpu/pg_nccl.c). Ranks that are in both groups must call blocking collectives and work_wait() in the same
 * order, or the groups deadlock. Free with pg_destroy(), before the parent. Collective in `parent`. */
ProcessGroup *pg_split(ProcessGroup *parent, int color);
/* Frees a group of pg_split(). Faults if a Work had no work_wait(). Collective. */
void pg_destroy(ProcessGroup *pg);

/* Makes groups of `ranks` consecutive ranks each, which must divide the parent's world size. A reduce-scatter of such a
 * group also adds over all groups; its other collectives stay within the group. The parent counts all of them. Free
 * with pg_destroy(). Collective in `parent`. */
ProcessGroup *pg_split_copies(ProcessGroup *parent, int ranks);

/* "the world"; or "group 1/0 (2 ranks, 0 to 2)", from its parent's first pg_split(), with color 0. It has 2 ranks: the
 * first is the job's rank 0, the last its rank 2. */
const char *pg_name(const ProcessGroup *pg);
const char *pg_of_group(const ProcessGroup *pg);   /* for messages: " of " and the name; "" for the world */
int pg_job_rank(const ProcessGroup *pg, int rank); /* the job's rank of the group's `rank`, for messages */
const char *pg_backend(const ProcessGroup *pg);    /* "mpi", "nccl" */

/* ---- algorithms and options ---- */
/* The algorithm of all_reduce, reduce_scatter and all_gather. MPI: the MPI library decides. SHM: all ranks must be on
 * one host. AUTO: SHM if they are, and if the host has room for it; else MPI. The others: see comm/allreduce.h. */
typedef enum AllReduceAlgorithm {
    ALLREDUCE_MPI,
    ALLREDUCE_ORDERED,
    ALLREDUCE_RING,
    ALLREDUCE_DOUBLING,
    ALLREDUCE_ROOT,
    ALLREDUCE_SHM,
    ALLREDUCE_HIERARCHICAL,
    ALLREDUCE_AUTO
} AllReduceAlgorithm;

/* The algorithm that all_reduce and reduce_scatter run over MPI if `wanted` is requested: `wanted`, or for types of 16
 * and 8 bits perhaps ALLREDUCE_ORDERED. */
AllReduceAlgorithm all_reduce_algorithm(AllReduceAlgorithm wanted, DType dtype);
const char *all_reduce_name(AllReduceAlgorithm algorithm); /* "ring": as --allreduce calls it; not for AUTO */
/* True if that algorithm adds each element in rank order, so that its result has the same bits for all message
 * sizes. */
bool all_reduce_in_rank_order(AllReduceAlgorithm wanted, DType dtype);

typedef struct ProcessGroupOptions {
    AllReduceAlgorithm algorithm;
    double timeout;           /* seconds that a collective may take; enforced by train/guard */
    int ranks_per_host;       /* hierarchical: this many consecutive ranks count as a host; 0: the real hosts */
    bool debug_collectives;   /* train/guard compares the ranks' calls before each collective */
    double wire_gbps;         /* emulated link: bandwidth in gigabit per second; 0: none */
    double wire_latency;      /* emulated link: seconds per message */
} ProcessGroupOptions;

/* Replaces the options, and chooses an algorithm for ALLREDUCE_AUTO: see pg_algorithm(). Collective. */
void pg_set_options(ProcessGroup *pg, const ProcessGroupOptions *options);
/* Replaces the algorithm only, to compare algorithms. Collective. */
void pg_set_algorithm(ProcessGroup *pg, AllReduceAlgorithm algorithm);
AllReduceAlgorithm pg_algorithm(const ProcessGroup *pg); /* never ALLREDUCE_AUTO */
int pg_hosts(const ProcessGroup *pg); /* the number of hosts, once the hierarchical algorithm was chosen; before: 1 */
const ProcessGroupOptions *pg_options(const ProcessGroup *pg);

/* ---- counters ---- */
/* The cost of this rank's collectives since the last pg_reset_counters(). */
typedef struct CommCounters {
    long collectives;
    int64_t bytes;        /* of the buffers' elements, summed; all_gather, reduce_scatter: of all ranks' parts */
    int64_t wire_bytes;   /* that a ring would send over each rank's link in one direction */
    double in_flight;     /* seconds during which a collective was under way */
    double exposed;       /* seconds during which the training thread waited for one */
    long sums, async_sums; /* calls that add up float32, 16-bit or 8-bit numbers, as gradients are */
} CommCounters;

CommCounters pg_counters(ProcessGroup *pg);
void pg_reset_counters(ProcessGroup *pg);
/* Switches the emulated link and the counters off or on, for checks that do not belong to a step. */
void pg_set_measuring(ProcessGroup *pg, bool on);

#endif
