/* group.h: inside comm/ only: what a process group is made of.
 *
 *   copies.c         a group whose reduce-scatter also adds over copies of it
 *   group.c          the job's and a group's life: MPI's start and end, making groups, their options
 *   collectives.c    the blocking collectives: numbering, order
 *   memory.c         memory for gradients, in windows or not
 *   work.c           runs one collective and counts it; the communication thread and its queue; the emulated link
 *   pg_mpi.c         the backend: runs one collective over MPI
 *   allreduce_*.c    one algorithm each, over MPI's point-to-point messages or in shared memory
 *   shared_memory.c  memory that all ranks of a host see
 *   messages.c       sending, receiving and waiting for them
 *   collective.c     names of groups and of their collectives, and the calls of observers
 *   algorithms.c     names and properties of the algorithms
 *   combine.c        the additions
 *   buffers.c        names and bytes of collectives, checks of their buffers
 *
 * The last three need no MPI and belong to the core (notes/architecture.md). A file calls only functions of those below
 * it. tests/test_includes.sh checks this.
 */
#ifndef LOCKSTEP_COMM_GROUP_H
#define LOCKSTEP_COMM_GROUP_H

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>

#include "comm/backend.h"
#include "comm/buffers.h"
#include "comm/observer.h"

typedef struct Worker Worker; /* work.c */
typedef struct Hierarchy Hierarchy; /* allreduce_hierarchical.c */
enum { MAX_OBSERVERS = 5 };

struct ProcessGroup {
    int rank, world_size, local_rank;
    int *job_ranks;      /* by rank: the same process's in the job; owned */
    char name[80];       /* pg_of_group() returns it */
    ProcessGroup *parent; /* NULL: the world */
    ProcessGroup *counts_for; /* its counters count this group's collectives; NULL: this group's own do */
    int children, splits; /* groups that pg_split() has made of it and that still exist; calls of pg_split() */
    bool one_host;       /* all ranks are on one host */
    bool core_per_rank;  /* this host has a core for each of its ranks */
    MPI_Comm comm;       /* of this group's collectives alone */
    ProcessGroupOptions options;
    Backend *backend;    /* the outermost */
    void *scratch;       /* see group_scratch(); owned */
    size_t scratch_bytes;
    Hierarchy *hierarchy; /* allreduce_hierarchical.c; NULL unless all_reduce is ALLREDUCE_HIERARCHICAL */
    struct SharedMemory *shared; /* shared_memory.c; NULL unless all_reduce is ALLREDUCE_SHM */
    bool windows_if_room; /* true: if a window does not fit, use ordinary memory; false: it is an error */
    Worker *worker;  /* NULL until the first asynchronous collective */
    atomic_bool training_waits; /* the training thread is waiting for the communication thread */
    GroupObserver observers[MAX_OBSERVERS];
    int observer_count;
    long sequence;   /* of the next collective */
    bool measuring;  /* counting and emulating the link */
    Allocation *allocations; /* of pg_alloc_shared(), to check counts; owned */
    pthread_mutex_t lock; /* guards the counters */
    CommCounters counters;
};

/* ---- collective.c ---- */

/* Calls all observers: see observer.h. */
typedef enum Moment { CALLED, READY, CARRIED, DONE, WAITED } Moment;
void group_notify(ProcessGroup *pg, Moment moment, const Collective *collective);

/* Around a collective action that no backend carries out, for example making a window, so that observers see which rank
 * is missing. */
Collective group_begin_barrier(ProcessGroup *pg, const char *what);
void group_end_barrier(ProcessGroup *pg, Collective *barrier);

/* Counts the call in CommCounters.sums or async_sums, if it adds up numbers such as gradients. */
void group_count_sum(ProcessGroup *pg, const Collective *collective);

/* ---- work.c ---- */

/* Counts the time in which the training thread waited for this collective as exposed, and notifies observers. */
void group_add_exposed(ProcessGroup *pg, const Collective *collective, double from, double until);

/* Runs the collective on the calling thread, not faster than the emulated link, and counts its time. Returns the time
 * of its end. */
double group_carry_out(ProcessGroup *pg, const Collective *collective);

void worker_drain(ProcessGroup *pg); /* returns when the queue is empty and nothing is under way */
/* Faults if a work had no work_wait(), because the communication thread may still use its buffers. `what`: the caller's
 * next action, for the message. It faults even if all these works happen to be done, so that the result does not differ
 * from run to run. */
void worker_check_all_waited_for(ProcessGroup *pg, const char *what);
void worker_stop(ProcessGroup *pg);

/* ---- pg_mpi.c ---- */
void pg_mpi_open(ProcessGroup *pg, MPI_Comm of, int color); /* for the ranks of `of` that give this color; collective */
void pg_mpi_prepare(ProcessGroup *pg); /* prepares the algorithm in the options; collective */

#endif
