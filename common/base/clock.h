/* clock.h: time, in seconds, on a clock that never jumps. */
#ifndef LOCKSTEP_BASE_CLOCK_H
#define LOCKSTEP_BASE_CLOCK_H

/* Seconds since some fixed point in the past; the same clock for all processes of one machine. */
double now_seconds(void);

/* Sleeps, giving the core away. Returns at once for seconds <= 0 and NaN; more than 30 years are 30 years. */
void sleep_seconds(double seconds);

#endif
