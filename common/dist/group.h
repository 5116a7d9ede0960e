/* group.h: inside dist/ only: what a process group is made of.
 *
 *   process_group.c  the interface: numbering, order, timing, the emulated link
 *   work.c           the communication thread and its queue
 *   watchdog.c       a thread that notices a collective that hangs
 *   compare_calls.c  --debug-collectives
 *   pg_mpi.c         a backend: carries one collective out over MPI
 *   ending.c         how all ranks end: alarms, departures, and the way out of MPI
 *   staging.c        device memory for it, by way of host memory
 *   pg_nccl.c        a backend for GPUs; no_nccl.c where there is none
 *   allreduce*.c     all-reduce written by hand: over MPI's point-to-point messages, and in shared memory
 *   combine.c        the additions in it
 *   shared_memory.c  memory that all ranks of a host see
 */
#ifndef LOCKSTEP_DIST_GROUP_H
#define LOCKSTEP_DIST_GROUP_H

#include <pthread.h>
#include <stdatomic.h>

#include "dist/process_group.h"

typedef enum Operation { OP_BARRIER, OP_BROADCAST, OP_ALL_REDUCE, OP_ALL_GATHER, OP_REDUCE_SCATTER } Operation;

/* One collective, as every rank must call it. */
typedef struct Collective {
    Operation operation;
    const void *send;
    void *receive;
    size_t count; /* elements; all_gather and reduce_scatter: per rank */
    DType dtype;
    ReduceOp op;
    int root; /* broadcast */
    const char *carries;
    long sequence;   /* number of this collective in its group, from 0 */
    struct DeviceEvent *ready; /* background: the work that writes `send`; consumed when it begins. NULL on the CPU */
    bool background; /* carried out by the communication thread: leave the core to the computation */
} Collective;

/* How a group's collectives are carried out: the only thing that differs between MPI and NCCL. */
typedef struct Backend {
    const char *name;
    void (*run)(ProcessGroup *pg, const Collective *collective); /* returns when it is done on this rank */
    void (*close)(ProcessGroup *pg);                             /* collective; ends the job's connection */
} Backend;

typedef struct Worker Worker; /* work.c */
struct Watchdog;              /* watchdog.h */

struct ProcessGroup {
    int rank, world_size, local_rank;
    ProcessGroupOptions options;
    const Backend *backend;
    void *state;     /* the backend's own */
    struct SharedMemory *shared; /* shared_memory.c; NULL unless all_reduce is ALLREDUCE_SHM */
    Worker *worker;  /* NULL until the first asynchronous collective */
    atomic_bool training_waits; /* the training thread stands still for the communication thread */
    struct Watchdog *watchdog; /* NULL in a group of one */
    long sequence;   /* of the next collective */
    bool measuring;  /* counting and emulating the link */
    pthread_mutex_t lock; /* guards counters */
    CommCounters counters;
};

const char *operation_name(Operation operation);
size_t collective_bytes(const ProcessGroup *pg, const Collective *collective);

/* Runs the collective on the calling thread, no faster than the emulated link, and writes down how long it took. */
void group_carry_out(ProcessGroup *pg, const Collective *collective);

/* Adds to the time that the training thread stood still for communication. */
void group_add_exposed(ProcessGroup *pg, double seconds);

/* ---- work.c ---- */
Work *worker_submit(ProcessGroup *pg, const Collective *collective);
void worker_drain(ProcessGroup *pg); /* returns when the queue is empty and nothing is under way */
/* A fault, which says what the caller is about to do, if a work has not been given to work_wait(): the communication
 * thread may still use its buffers. Also where all of them happen to be done: that would differ from run to run. */
void worker_check_all_waited_for(ProcessGroup *pg, const char *what);
void worker_stop(ProcessGroup *pg);

/* ---- pg_mpi.c ---- */
void pg_mpi_open(ProcessGroup *pg);
void pg_mpi_prepare(ProcessGroup *pg); /* gets ready for the algorithm in the options; collective */

#endif
