/* stats.h: statistics of the steps' times and of their parts.
 *
 * Interface: stats_add() after each step; then the percentiles; stats_free() at the end. The first steps are warm-up
 * (memory is used for the first time, connections are set up): only stats_first() includes them.
 *
 * This takes at most 3.7 MB: in a long run, only the times of the last STATS_MOST_HELD steps are kept. The number of
 * steps is exact.
 */
#ifndef LOCKSTEP_TRAIN_STATS_H
#define LOCKSTEP_TRAIN_STATS_H

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
 * numpy.percentile. These three return NAN if nothing was measured. */
double stats_percentile(const Stats *stats, StepPart part, double percent);
double stats_mean(const Stats *stats, StepPart part);  /* without warm-up */
double stats_first(const Stats *stats, StepPart part); /* of the first step */

#endif
