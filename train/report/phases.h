/* phases.h: what a step consists of, for the statistics, the timeline (--trace) and a GPU's profiler alike.
 *
 * Interface: phase_begin(&times, part) ... phase_end(&times) around each part of a step. Parts do not overlap, but for
 * PART_STEP, which is around all others. {0} to begin with.
 */
#ifndef LOCKSTEP_TRAIN_REPORT_PHASES_H
#define LOCKSTEP_TRAIN_REPORT_PHASES_H

#include "comm/process_group.h"
#include "train/report/stats.h"

typedef struct Phases {
    StepTimes times;          /* so far */
    double since[STEP_PARTS]; /* when a part began; now_seconds() */
} Phases;

void phase_begin(Phases *phases, StepPart part);
void phase_end(Phases *phases, StepPart part);

/* From now on each collective of the group is an event of the timeline and a range of the profiler, too, unless it is
 * not measured (pg_set_measuring()). */
void phases_observe(ProcessGroup *pg);

#endif
