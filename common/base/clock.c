/* clock.c: time, in seconds, on a clock that never jumps. */
#include "base/clock.h"

#include <errno.h>
#include <time.h>

#define LONGEST_SLEEP 1e9 /* 30 years; larger values may not fit into time_t */

double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void sleep_seconds(double seconds)
{
    if (!(seconds > 0))
        return;
    if (seconds > LONGEST_SLEEP)
        seconds = LONGEST_SLEEP;
    struct timespec left;
    left.tv_sec = (time_t)seconds;
    left.tv_nsec = (long)((seconds - (double)left.tv_sec) * 1e9);
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ; /* a signal interrupted the sleep: sleep for the rest */
}
