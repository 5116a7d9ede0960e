/* observer.h: a collective as the group carries it out, and the functions that observe it.
 *
 * The group does not know its observers: time-outs, comparisons of calls, timelines. An observer is a table of
 * functions that the group calls around each collective, on the thread that carries the collective out. A new group has
 * no observer.
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
    size_t stride; /* used inside comm/ only: see part_count() in messages.h */
    DType dtype;
    ReduceOp op;
    int root; /* broadcast */
    const char *carries;
    long sequence;   /* number of this collective in its group, from 0; the same on all ranks */
    struct DeviceEvent *ready; /* background: device work that writes `send`; consumed at the start. NULL on the CPU */
    bool background; /* on the communication thread, which leaves the core to the computation */
    double queued;   /* when it was called, by now_seconds(); an asynchronous one while the timeline is off: 0 */
} Collective;

const char *operation_name(Operation operation);
/* Bytes of the result on each rank; reduce_scatter: of `send`. */
size_t collective_bytes(const ProcessGroup *pg, const Collective *collective);

/* Any of the functions may be NULL. Observers are called in the order of their registration. */
typedef struct GroupObserver {
    void *self;
    void (*called)(void *self, const Collective *collective);  /* the rank has made the call */
    void (*ready)(void *self, const Collective *collective);   /* `send` is computed; the rank now waits for others */
    void (*carried)(void *self, const Collective *collective); /* the result is there; an emulated link may add time */
    void (*done)(void *self, const Collective *collective, double start, double end); /* now_seconds() */
    void (*waited)(void *self, const Collective *collective, double from, double until); /* training, while measuring */
    void (*leaving)(void *self); /* pg_destroy() has begun on this rank; nothing is under way */
    void (*closing)(void *self); /* all ranks have called pg_destroy(); MPI ends next */
} GroupObserver;

/* Adds an observer for the rest of the group's life. Call it before the group's first collective, or between two
 * collectives. A group has at most 5 observers. */
void pg_observe(ProcessGroup *pg, const GroupObserver *observer);

/* False while collectives do not belong to a step: see pg_set_measuring(). */
bool pg_is_measuring(const ProcessGroup *pg);

#endif
