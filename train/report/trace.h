/* trace.h: --trace FILE: a timeline of all ranks, for https://ui.perfetto.dev or chrome://tracing.
 *
 * Interface: trace_start() before the first step, trace_write() after the last. Both are collective. In between,
 * timeline_add() adds events to each rank's timeline (base/clock.h).
 */
#ifndef LOCKSTEP_TRAIN_TRACE_H
#define LOCKSTEP_TRAIN_TRACE_H

#include "comm/process_group.h"

/* From now on each collective of the group is a range of the profiler and, while the group is measuring
 * (pg_set_measuring()), an event of the timeline. */
void timeline_observe(ProcessGroup *pg);

/* Switches the timeline on, and measures the offset of this rank's clock from rank 0's. */
void trace_start(ProcessGroup *pg);

/* Gathers all timelines on rank 0, which writes them to path as a JSON array of trace events: a process per rank
 * with two rows, "compute" and "communication", with CUDA two more, "GPU" and "GPU, communication", and one for each
 * group of pg_split() that carried something, "communication, group 1/0"; times in microseconds since the earliest
 * event of all ranks. A collective has args: step, bytes, sequence (1, 2, ... on each rank), algorithm, queued (when
 * training called it) and, if a step has waited for it, waited_from and waited (how long). An arrow leads to it from
 * the gradient-ready event that launched it. "memory" says what the rank's memory holds, in bytes, by the summary's names
 * (report.c). The first event says how exactly the ranks' clocks agree: error_us. Call
 * pg_set_measuring(pg, false) before. Faults if the file cannot be written. */
void trace_write(ProcessGroup *pg, const char *path);

#endif
