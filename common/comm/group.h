/* group.h: inside comm/ only: what a process group is made of.
 *
 *   collectives.c    creating a group; the blocking collectives: numbering, order
 *   work.c           runs one collective and counts it; the communication thread and its queue; the emulated link
 *   observer.c       calls the functions that are registered to look on at each collective
 *   pg_mpi.c         the backend: runs one collective over MPI
 *   allreduce_*.c    one algorithm each, over MPI's point-to-point messages or in shared memory
 *   messages.c       sending, receiving and waiting for them
 *   combine.c        the additions
 *   shared_memory.c  memory that all ranks of a host see
 */
#ifndef LOCKSTEP_COMM_GROUP_H
#define LOCKSTEP_COMM_GROUP_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm/observer.h"

/* How a group's collectives are carried out: the only difference between MPI and NCCL. */
typedef struct Backend {
    const char *name;
    void (*run)(ProcessGroup *pg, const Collective *collective); /* returns when it is done on this rank */
    void (*close)(ProcessGroup *pg);                             /* collective; ends MPI or NCCL on this rank */
} Backend;

typedef struct Worker Worker; /* work.c */
enum { MOST_OBSERVERS = 5 };

struct ProcessGroup {
    int rank, world_size, local_rank;
    ProcessGroupOptions options;
    const Backend *backend;
    void *state;     /* the backend's own */
    struct SharedMemory *shared; /* shared_memory.c; NULL unless all_reduce is ALLREDUCE_SHM */
    bool windows_if_room; /* a window that does not fit becomes ordinary memory; false: it is an error */
    Worker *worker;  /* NULL until the first asynchronous collective */
    atomic_bool training_waits; /* the training thread is waiting for the communication thread */
    GroupObserver observers[MOST_OBSERVERS];
    int observer_count;
    long sequence;   /* of the next collective */
    bool measuring;  /* counting and emulating the link */
    struct Block *blocks; /* what pg_alloc_shared() gave, to check counts; owned */
    pthread_mutex_t lock; /* guards the counters */
    CommCounters counters;
};

/* ---- observer.c: each calls all observers: see observer.h ---- */
void group_tell_called(ProcessGroup *pg, const Collective *collective);
void group_tell_ready(ProcessGroup *pg, const Collective *collective);
void group_tell_carried(ProcessGroup *pg, const Collective *collective);
void group_tell_done(ProcessGroup *pg, const Collective *collective, double start, double end);
void group_tell_waited(ProcessGroup *pg, const Collective *collective, double from, double until);
void group_tell_leaving(ProcessGroup *pg);
void group_tell_closing(ProcessGroup *pg);

/* ---- work.c ---- */

/* The training thread has waited for this collective: counts the time as exposed, and tells observers. */
void group_add_exposed(ProcessGroup *pg, const Collective *collective, double from, double until);

/* Runs the collective on the calling thread, not faster than the emulated link, and counts its time. Returns when it
 * ended. */
double group_carry_out(ProcessGroup *pg, const Collective *collective);

void worker_drain(ProcessGroup *pg); /* returns when the queue is empty and nothing is under way */
/* Faults if a work has not been given to work_wait(), because the communication thread may still use its buffers.
 * `what`: the caller's next action, for the message. It also faults if all these works happen to be done, so that the
 * result does not differ from run to run. */
void worker_check_all_waited_for(ProcessGroup *pg, const char *what);
void worker_stop(ProcessGroup *pg);

/* ---- shared_memory.c ---- */

/* Faults if the buffer, counts * count elements, begins in what pg_alloc_shared() gave and ends beyond it. */
void group_check_count(ProcessGroup *pg, const Collective *collective, const void *buffer, int counts);

/* ---- pg_mpi.c ---- */
void pg_mpi_open(ProcessGroup *pg);
void pg_mpi_prepare(ProcessGroup *pg); /* prepares the algorithm in the options; collective */

#endif
