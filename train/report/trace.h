/* trace.h: --trace FILE: a timeline of all ranks, for https://ui.perfetto.dev or chrome://tracing.
 *
 * Interface: trace_start() before the first step, trace_write() after the last. Both are collective. In between,
 * timeline_add() adds events to each rank's timeline (base/clock.h).
 */
#ifndef LOCKSTEP_TRAIN_TRACE_H
#define LOCKSTEP_TRAIN_TRACE_H

#include "stage5_sharded/sharded.h"

/* Makes each collective of the group a range of the profiler and, while the group is measuring, an event. */
void timeline_observe(ProcessGroup *pg);

/* Enables the timeline, and measures the offset of this rank's clock from rank 0's. */
void trace_start(ProcessGroup *pg);

/* Gathers all timelines on rank 0, which writes them to path as a JSON array of trace events: a process per rank with
 * two rows, "compute" and "communication", with CUDA two more, "GPU" and "GPU, communication", and one for each group
 * of pg_split() that ran a collective, "communication, group 1/0"; times in microseconds since the earliest event of
 * all ranks. A collective has args: step, bytes, sequence (1, 2, ... on each rank), algorithm, queued (the time of the
 * call) and, if a step has waited for it, waited_from and waited (the duration). An arrow leads to it from the
 * gradient-ready event that launched it. "memory" has the rank's memory use in bytes, by the summary's names
 * (report.c). The first event has error_us, the largest error of the ranks' clocks. Call pg_set_measuring(pg, false)
 * before. Faults if the file cannot be written. */
void trace_write(ProcessGroup *pg, const char *path);

/* Samples this rank's memory use when an operation needs parameters, when a gradient needs memory or is ready, and
 * before and after the update. Between two samples only activations change. With --recompute, a block's last sample in
 * forward lacks the results of its last operations, which need no parameters. */
typedef struct MemoryWatch {
    const ProcessGroup *pg; /* set these four first; they are not owned */
    const Ddp *ddp;
    const GradientCodec *codec;
    const Optimizer *optimizer;
    Tape *tape;         /* NULL until memory_watch_start() */
    TapeListener stage; /* the earlier listener, to which events are forwarded */
} MemoryWatch;

/* Starts to listen to the tape; call it after ddp_create(). Do not move the watch while the tape is in use. */
void memory_watch_start(MemoryWatch *watch, Tape *tape);
/* Adds a sample to the timeline. Does nothing if the watch was not started. */
void memory_watch_sample(const MemoryWatch *watch);
/* Weights, gradients and buffers for what is sent, by the account of the group that has allocated them; in stage 5, by
 * the stage's. The watch need not be started. */
ShardedMemory memory_in_use(const MemoryWatch *watch);

#endif
