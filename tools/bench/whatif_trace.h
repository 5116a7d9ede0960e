/* whatif_trace.h: what a trace (train --trace) tells about a training step: the medians over its steps and ranks. */
#ifndef LOCKSTEP_BENCH_WHATIF_TRACE_H
#define LOCKSTEP_BENCH_WHATIF_TRACE_H

/* One step. Seconds; means over the ranks. */
typedef struct RecordedStep {
    double seconds; /* from the first forward pass to the optimizer's end */
    double forward, backward; /* of a micro-batch */
    double slowest;          /* by how much the slowest rank's forward pass is longer */
    double late;             /* by how much the last rank queues its first all-reduce later; 0 in stages 1 and 2 */
} RecordedStep;

/* Seconds and bytes. Of the first steps, which are slower, 3 are left out, or half if there are fewer than 6. */
typedef struct Recorded {
    const char *path;
    int ranks;
    double forward, backward;  /* of a micro-batch */
    double scaling, optimizer; /* of a step */
    double left;               /* of a micro-batch: its share of what lies between two steps */
    double spread;             /* standard deviation of the ranks' computing time within a step, as a share of it */
    int gradients;             /* or buckets: each all-reduce that was queued during backward */
    double *bytes, *ready;     /* of each; ready: after backward's beginning; owned */
    double alpha, beta;        /* all-reduces take alpha + beta * bytes, all those of a step together; 0 of one rank */
    double overlapped;         /* bytes of all-reduces that were carried during backward, of a step */
    double first_wake, wake;   /* from queueing an all-reduce to its beginning, if none is under way: the mean of the
                                * first one of each backward pass, the median of the others */
    RecordedStep *steps;       /* owned */
    int step_count;
} Recorded;

/* Ends the program if the file is no such trace. */
Recorded trace_read(const char *path);
void trace_free(Recorded *recorded);

/* Seconds by which backward takes longer than forward_passes forward passes of the same step. Step by step, because a
 * machine may be faster in one step than in the next. */
double trace_taken(const Recorded *recorded, double forward_passes);

/* The middle one of count values, which it sorts; 0 if count is 0. */
double median(double *values, int count);

#endif
