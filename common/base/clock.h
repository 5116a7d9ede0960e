/* clock.h: time, in seconds, on a clock that never jumps. */
#ifndef LOCKSTEP_BASE_CLOCK_H
#define LOCKSTEP_BASE_CLOCK_H

/* Seconds since a fixed point in the past; the same clock for all processes of one machine. */
double now_seconds(void);

/* Sleeps, so that other processes can use the core. Returns at once if seconds is <= 0 or NaN; sleeps at most 30
 * years. */
void sleep_seconds(double seconds);

#endif
