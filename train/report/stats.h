/* stats.h: the times of a step's parts: measured, kept, and summed up as statistics.
 *
 * Interface, per step: Phases phases = {0}; phase_begin(&phases, part) and phase_end(&phases, part) around each part;
 * stats_add(). After the last step the percentiles, then stats_free().
 * The first steps are warm-up (memory is used for the first time, connections are set up): percentiles and means leave
 * them out.
 */
#ifndef LOCKSTEP_TRAIN_STATS_H
#define LOCKSTEP_TRAIN_STATS_H

#include "comm/process_group.h"

typedef enum StepPart {
    PART_STEP, /* the whole step */
    PART_FORWARD,
    PART_BACKWARD,
    PART_OPTIMIZER,
    PART_DATA,    /* training waited for the next batch */
    PART_COMM,    /* a collective was in flight */
    PART_EXPOSED, /* training waited for a collective */
    STEP_PARTS
} StepPart;

typedef struct StepTimes {
    double seconds[STEP_PARTS]; /* NAN: not measured */
} StepTimes;

/* ---- measuring ---- */

typedef struct Phases {
    StepTimes times;          /* of the parts that have ended */
    double since[STEP_PARTS]; /* when a part began, by now_seconds() */
} Phases;

/* Measure for the statistics, the timeline (--trace) and a GPU's profiler at once. Parts must not overlap, except
 * PART_STEP, which is around all others. A part may run several times: times add up. */
void phase_begin(Phases *phases, StepPart part);
void phase_end(Phases *phases, StepPart part);

/* ---- statistics ---- */

/* Of a long run, only the times of the last steps are kept, at most this many: 3.7 MB. The number of steps is exact. */
#define STATS_MOST_HELD 65536

typedef struct Stats {
    StepTimes *steps;      /* step i, counted from 0, is at i % STATS_MOST_HELD; NULL before the first */
    StepTimes first, last; /* of all steps that were added */
    long count;
} Stats; /* begin with {0} */

/* Adds one step. Faults if there is no memory. */
void stats_add(Stats *stats, const StepTimes *times);
void stats_free(Stats *stats);

/* The number of steps that count as warm-up: 3, but at most half of the run. */
long stats_warmup_steps(const Stats *stats);

/* The percentile of the part's seconds (percent: 0 to 100; 50 is the median), without warm-up, interpolated like
 * numpy.percentile. Both return NAN if nothing was measured. */
double stats_percentile(const Stats *stats, StepPart part, double percent);
double stats_mean(const Stats *stats, StepPart part);

#endif
