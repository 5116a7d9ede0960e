/* clock.c: see clock.h. */
#include "base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/check.h"

/* ---- time ---- */

#define MAX_SLEEP 1e9 /* 30 years; larger values may not fit into time_t */

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
    if (seconds > MAX_SLEEP)
        seconds = MAX_SLEEP;
    struct timespec left;
    left.tv_sec = (time_t)seconds;
    left.tv_nsec = (long)((seconds - (double)left.tv_sec) * 1e9);
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ; /* a signal interrupted the sleep: sleep for the rest */
}

/* ---- local work ---- */

static pthread_mutex_t local_work_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the rest */
static int local_work_depth;
static const char *work_verb, *work_object; /* valid if depth > 0 */
static double local_work_since, local_work_before; /* start of the current work; seconds of all earlier work */

void local_work_begin(const char *verb, const char *object)
{
    pthread_mutex_lock(&local_work_lock);
    if (local_work_depth++ == 0) {
        work_verb = verb;
        work_object = object;
        local_work_since = now_seconds();
    }
    pthread_mutex_unlock(&local_work_lock);
}

void local_work_end(void)
{
    pthread_mutex_lock(&local_work_lock);
    CHECK(local_work_depth > 0, "local_work_end() without local_work_begin()");
    if (--local_work_depth == 0)
        local_work_before += now_seconds() - local_work_since;
    pthread_mutex_unlock(&local_work_lock);
}

double local_work_seconds(char *what, size_t size, double *since)
{
    pthread_mutex_lock(&local_work_lock);
    const bool working = local_work_depth > 0;
    snprintf(what, size, "%s%s%s", working ? work_verb : "", working ? " " : "", working ? work_object : "");
    *since = local_work_since;
    const double seconds = local_work_before + (working ? now_seconds() - local_work_since : 0);
    pthread_mutex_unlock(&local_work_lock);
    return seconds;
}

/* ---- the timeline: one growing array; any thread may add to it ---- */

static atomic_bool enabled = false;
static atomic_int current_step = -1;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the three below */
static TimelineEvent *events;
static int event_count, event_capacity;

void timeline_enable(void)
{
    atomic_store(&enabled, true);
}

bool timeline_enabled(void)
{
    return atomic_load(&enabled);
}

void timeline_set_step(int step)
{
    atomic_store(&current_step, step);
}

/* Makes room for one more event. Hold the lock when you call it. */
static void grow(void)
{
    if (event_count < event_capacity)
        return;
    int capacity = 2 * event_capacity + 1024;
    TimelineEvent *larger = realloc(events, (size_t)capacity * sizeof *events);
    CHECK(larger != NULL, "out of memory: the timeline has %d events; trace fewer steps", event_count);
    events = larger;
    event_capacity = capacity;
}

void timeline_add_event(TimelineEvent event)
{
    event.step = atomic_load(&current_step);
    pthread_mutex_lock(&lock);
    grow();
    events[event_count++] = event;
    pthread_mutex_unlock(&lock);
}

void timeline_add(TimelineRow row, double start, double end, const char *format, ...)
{
    if (!timeline_enabled())
        return;
    TimelineEvent event = {.row = row, .start = start, .end = end};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(event.name, sizeof event.name, format, arguments);
    va_end(arguments);
    timeline_add_event(event);
}

int timeline_events(const TimelineEvent **all)
{
    pthread_mutex_lock(&lock);
    *all = events;
    int count = event_count;
    pthread_mutex_unlock(&lock);
    return count;
}
