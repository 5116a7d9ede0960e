/* clock_ahead.c: loaded with LD_PRELOAD, this library puts a program's clock of the day an hour ahead of the
 * system's. A wait that ends at a time of day then lasts an hour, as it does when the system's clock is set back while
 * it begins. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

#define HOUR 3600

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int (*real)(clockid_t, struct timespec *);
    *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    int error = real(clock, now);
    if (clock == CLOCK_REALTIME)
        now->tv_sec += HOUR;
    return error;
}

time_t time(time_t *result)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result != NULL)
        *result = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict result, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *result = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}
