/* observer.h: a collective as the group carries it out, and how others may look on.
 *
 * The group knows nothing of what watches it: time-outs, comparisons of calls, timelines. An observer is a table of
 * functions that the group calls around each collective, on the thread that carries it out. There are none at first.
 */
#ifndef LOCKSTEP_COMM_OBSERVER_H
#define LOCKSTEP_COMM_OBSERVER_H

#include "comm/process_group.h"

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
    bool patient;    /* may take as long as it takes: no time-out */
} Collective;

const char *operation_name(Operation operation);
/* Bytes that the collective leaves in each rank's buffers. */
size_t collective_bytes(const ProcessGroup *pg, const Collective *collective);

/* Any of the functions may be NULL. Each is called in the order in which the observers came. */
typedef struct GroupObserver {
    void *self;
    void (*called)(void *self, const Collective *collective);  /* the rank has made the call */
    void (*ready)(void *self, const Collective *collective);   /* what it sends has been computed: it waits for others */
    void (*carried)(void *self, const Collective *collective); /* all have come; an emulated link may take longer */
    void (*done)(void *self, const Collective *collective, double start, double end); /* now_seconds() */
    void (*leaving)(void *self); /* pg_destroy() has begun on this rank; nothing is under way */
    void (*closing)(void *self); /* all ranks have called pg_destroy(); MPI ends next */
} GroupObserver;

/* Adds an observer, for as long as the group lives. Before the group's first collective, or between two of them. */
void pg_observe(ProcessGroup *pg, const GroupObserver *observer);

/* False where a collective is no part of a step: see pg_set_measuring(). */
bool pg_is_measuring(const ProcessGroup *pg);

#endif
