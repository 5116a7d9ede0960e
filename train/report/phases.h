/* phases.h: measures the parts of a step, for the statistics, the timeline (--trace) and a GPU's profiler at once.
 *
 * Interface: Phases phases = {0}; phase_begin(&phases, part) and phase_end(&phases, part) around each part of a step.
 * Parts must not overlap, except PART_STEP, which is around all others. A part may run several times: times add up.
 */
#ifndef LOCKSTEP_TRAIN_REPORT_PHASES_H
#define LOCKSTEP_TRAIN_REPORT_PHASES_H

#include "comm/process_group.h"
#include "train/report/stats.h"

typedef struct Phases {
    StepTimes times;          /* of the parts that have ended */
    double since[STEP_PARTS]; /* when a part began, by now_seconds() */
} Phases;

void phase_begin(Phases *phases, StepPart part);
void phase_end(Phases *phases, StepPart part);

/* From now on each collective of the group is a range of the profiler and, while the group is measuring
 * (pg_set_measuring()), an event of the timeline. */
void phases_observe(ProcessGroup *pg);

#endif
