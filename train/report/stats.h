/* stats.h: how long the steps took, and what of each went where.
 *
 * Interface: stats_add() after each step; then the percentiles. The first steps are warm-up (memory is touched for
 * the first time, connections are set up) and are left out, except by stats_first(). stats_free() at the end.
 *
 * A run of any length takes at most 3.7 MB: of a long one, the times of the last STATS_MOST_HELD steps are held. The
 * number of steps is exact.
 */
#ifndef LOCKSTEP_TRAIN_STATS_H
#define LOCKSTEP_TRAIN_STATS_H

typedef enum StepPart {
    PART_STEP, /* the whole of it */
    PART_FORWARD,
    PART_BACKWARD,
    PART_OPTIMIZER,
    PART_DATA,    /* training stood still for the next batch */
    PART_COMM,    /* a collective was in flight */
    PART_EXPOSED, /* training stood still for a collective */
    STEP_PARTS
} StepPart;

typedef struct StepTimes {
    double seconds[STEP_PARTS]; /* NAN: not measured */
} StepTimes;

#define STATS_MOST_HELD 65536

typedef struct Stats {
    StepTimes *steps;      /* step i, counted from 0, is at i % STATS_MOST_HELD; NULL before the first */
    StepTimes first, last; /* of all steps that were added */
    long count;
} Stats; /* {0} is an empty one */

void stats_add(Stats *stats, const StepTimes *times);
void stats_free(Stats *stats);

/* How many steps count as warm-up: 3, but never more than half of a short run. */
long stats_warmup_steps(const Stats *stats);

/* Seconds that `percent` (0 to 100) of the steps stayed within, interpolated between neighbours as numpy.percentile
 * does it; without warm-up. NAN if nothing was measured. */
double stats_percentile(const Stats *stats, StepPart part, double percent);
double stats_mean(const Stats *stats, StepPart part);  /* without warm-up */
double stats_first(const Stats *stats, StepPart part); /* of the very first step */

#endif
