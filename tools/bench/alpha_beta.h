/* alpha_beta.h: the simplest model of a message's time: t(bytes) = alpha + bytes * beta. */
#ifndef LOCKSTEP_BENCH_ALPHA_BETA_H
#define LOCKSTEP_BENCH_ALPHA_BETA_H

typedef struct AlphaBeta {
    double alpha;        /* seconds: the latency */
    double beta;         /* seconds per byte: 1 / bandwidth */
    double median_error; /* |model / measured - 1|: half of the points are better than this */
    double worst_error;
} AlphaBeta;

/* Returns the alpha, beta >= 0 with the least sum of squared RELATIVE errors: with absolute errors a few large sizes
 * would decide, and alpha would be noise. count: at least 2 points, of different sizes. */
AlphaBeta alpha_beta_fit(const double *bytes, const double *seconds, int count);

#endif
