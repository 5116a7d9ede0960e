/* stats.h: measures the times of a step's parts, and computes statistics of them.
 *
 * Interface, per step: Phases phases = {0}; phase_begin(&phases, part) and phase_end(&phases, part) around each part;
 * stats_add(). After the last step: percentiles and means, which exclude the warm-up steps; stats_free().
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

typedef struct Phases {
    StepTimes times;          /* of the parts that have ended */
    double since[STEP_PARTS]; /* when a part began, by now_seconds() */
} Phases;

/* Measure for the statistics, the timeline (--trace) and a GPU's profiler. Parts must not overlap, except PART_STEP,
 * which encloses all others. Times of a part that runs several times add up. */
void phase_begin(Phases *phases, StepPart part);
void phase_end(Phases *phases, StepPart part);

/* Only the times of the latest steps are kept, at most this many: 3.7 MB. */
#define STATS_MAX_KEPT 65536

typedef struct Stats {
    StepTimes *steps;      /* step i, counted from 0, is at i % STATS_MAX_KEPT; NULL before the first */
    StepTimes first, last; /* of all steps that were added */
    long count;
} Stats; /* begin with {0} */

void stats_add(Stats *stats, const StepTimes *times);
void stats_free(Stats *stats);

/* The number of warm-up steps: 3, but at most half of the run. */
long stats_warmup_steps(const Stats *stats);

/* Seconds of a part; percent: 0 to 100, interpolated like numpy.percentile. NAN if nothing was measured. */
double stats_percentile(const Stats *stats, StepPart part, double percent);
double stats_mean(const Stats *stats, StepPart part);

#endif
