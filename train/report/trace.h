/* trace.h: --trace FILE: what all ranks did when, for https://ui.perfetto.dev or chrome://tracing.
 *
 * Interface: trace_start() before the first step, trace_write() after the last. Both are collective. What happens in
 * between enters the timeline (base/timeline.h) of each rank by timeline_add().
 */
#ifndef LOCKSTEP_TRAIN_TRACE_H
#define LOCKSTEP_TRAIN_TRACE_H

#include "comm/process_group.h"

/* Switches the timeline on, and finds out how far this rank's clock is from rank 0's. */
void trace_start(ProcessGroup *pg);

/* Gathers all timelines on rank 0, which writes them to path as a JSON array of trace events: a process per rank
 * with two rows, "compute" and "communication", and with CUDA two more, "GPU" and "GPU, communication"; times in
 * microseconds since the earliest event of all ranks. Call it while pg_set_measuring() is off: the gathering is no part
 * of training. */
void trace_write(ProcessGroup *pg, const char *path);

#endif
