/* timeline.h: what this rank did when, kept in memory until the trace is written.
 *
 * Interface: timeline_enable() once; then timeline_add() from any thread. While it is off, timeline_add()
 * costs one test. train/report/trace.c gathers the ranks' timelines and writes them as a Chrome trace.
 */
#ifndef LOCKSTEP_BASE_TIMELINE_H
#define LOCKSTEP_BASE_TIMELINE_H

#include <stdbool.h>

/* The host's view: a GPU's work stands where the host queued it or waited for it. The last two are a GPU's own view: of
 * the training thread's stream, and of all others. */
typedef enum TimelineRow { ROW_COMPUTE, ROW_COMMUNICATION, ROW_GPU, ROW_GPU_COMMUNICATION } TimelineRow;

typedef struct TimelineEvent {
    char name[56];     /* "forward", "all_reduce bucket 2", "gradient-ready fc1.weight" */
    int row;           /* a TimelineRow */
    int step;          /* -1: outside any step */
    double start, end; /* seconds of now_seconds(); equal for an instant */
} TimelineEvent;

void timeline_enable(void);
bool timeline_enabled(void);
void timeline_set_step(int step);
void timeline_add(TimelineRow row, double start, double end, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The events so far, in the order they were added; owned by the timeline, valid until the next add. */
int timeline_events(const TimelineEvent **events);

#endif
