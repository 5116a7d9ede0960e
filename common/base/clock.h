/* clock.h: what time it is, what time is no hang, and the timeline: what this rank did, and when.
 *
 * Interface of the timeline: call timeline_enable() once, then timeline_add() from any thread. Before that call,
 * timeline_add() costs only one test. Events stay in memory; train/report/trace.c gathers the ranks' timelines and
 * writes them as a Chrome trace.
 */
#ifndef LOCKSTEP_BASE_CLOCK_H
#define LOCKSTEP_BASE_CLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- time, in seconds, on a clock that never jumps ---- */

/* Seconds since a fixed point in the past; the same clock for all processes of one machine. */
double now_seconds(void);

/* Sleeps, so that other processes can use the core. Returns at once if seconds is <= 0 or NaN; sleeps at most 30
 * years. */
void sleep_seconds(double seconds);

/* ---- own work ---- */

/* note: own-work
 * While rank 0 writes a file, prints, or trains the reference of --verify, the other ranks wait for it in their next
 * collective, and a slow disk can make them wait longer than --timeout. This is no hang. So such work is marked, and
 * the watchdog (train/guard/watchdog.c) tells the other ranks how much time it takes, which their time-outs do not
 * count.
 *
 * "writes", "ck.st": not copied; valid until own_work_end(). Marks may be nested: the outermost one counts. Call both
 * on the training thread only. */
void own_work_begin(const char *verb, const char *object);
void own_work_end(void);

/* Returns the seconds of own work of this process so far, all together. what: gets the words for what is under way
 * ("writes ck.st"), or "" if nothing is; *since: gets the time at which it began. May be called in any thread. */
double own_work_seconds(char *what, size_t size, double *since);

/* ---- the timeline ---- */

/* The first two rows show the host: work of a GPU appears when the host queued it or waited for it. The next two rows
 * show a GPU: the training thread's stream, and all other streams. ROW_WAITING is not shown: waits for collectives.
 * ROW_MEMORY: samples of what memory holds. */
typedef enum TimelineRow {
    ROW_COMPUTE, ROW_COMMUNICATION, ROW_GPU, ROW_GPU_COMMUNICATION, ROW_WAITING, ROW_MEMORY
} TimelineRow;

typedef enum MemoryKind {
    MEMORY_WEIGHTS, MEMORY_GATHERED_WEIGHTS, MEMORY_OPERANDS, MEMORY_GRADIENTS, MEMORY_WHOLE_GRADIENTS,
    MEMORY_OPTIMIZER, MEMORY_ACTIVATIONS, MEMORY_KINDS
} MemoryKind;

typedef struct TimelineEvent {
    char name[56];     /* "forward", "all_reduce bucket 2", "gradient-ready fc1.weight" */
    int row;           /* a TimelineRow */
    int step;          /* -1: outside any step */
    double start, end; /* seconds of now_seconds(); equal for an instant */
    int64_t sequence;  /* of a collective, or what is waited for: its number, from 1. 0: no collective, nothing below */
    int64_t bytes;     /* as in CommCounters */
    double queued;     /* when the training thread called it */
    char algorithm[24]; /* "ring": as --allreduce calls it */
    int64_t memory[MEMORY_KINDS]; /* of a sample: bytes */
    char group[24];     /* "group 1/0", whose collective it is; "": the world's */
} TimelineEvent;

void timeline_enable(void);
bool timeline_enabled(void);
void timeline_set_step(int step);
void timeline_add(TimelineRow row, double start, double end, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Adds an event with all its fields, but in the current step. Call it only while the timeline is on. */
void timeline_add_event(TimelineEvent event);

/* The events so far, in the order in which they were added; returns their number. Owned by the timeline; valid until
 * the next timeline_add(). */
int timeline_events(const TimelineEvent **events);

#endif
