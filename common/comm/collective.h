/* collective.h: one collective, as a group, its backends and its observers see it. */
#ifndef LOCKSTEP_COMM_COLLECTIVE_H
#define LOCKSTEP_COMM_COLLECTIVE_H

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
    bool background; /* asynchronous: runs while training computes, and leaves it the core */
    double queued;   /* when it was called, by now_seconds(); an asynchronous one while the timeline is off: 0 */
    double start, end; /* for observers: see `done` and `waited` in observer.h */
} Collective;

const char *operation_name(Operation operation);

/* "all_reduce number 7 (bucket 2, 65536 x float32)", and of which group, if that is not the world: for errors. Valid
 * until this thread's next call. */
const char *collective_name(const ProcessGroup *pg, const Collective *collective);

/* Bytes of the result on each rank; reduce_scatter: of `send`. world_size: of the group. */
size_t collective_bytes(const Collective *collective, int world_size);

#endif
