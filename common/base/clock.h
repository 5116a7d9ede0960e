/* clock.h: the time; local work, which the watchdog does not count; and the timeline of what this rank did.
 *
 * Interface of the timeline: call timeline_enable() once, then timeline_add() from any thread. Before that call,
 * timeline_add() costs only one test. Events stay in memory; train/report/trace.c writes all ranks' timelines.
 */
#ifndef LOCKSTEP_BASE_CLOCK_H
#define LOCKSTEP_BASE_CLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- time, in seconds, on a clock that never jumps ---- */

/* Seconds since a fixed point in the past; the same clock for all processes of one machine. */
double now_seconds(void);

/* Sleeps and so yields the core. Returns at once if seconds is <= 0 or NaN; sleeps at most 30 years. */
void sleep_seconds(double seconds);

/* ---- local work ---- */

/* note: local-work
 * While rank 0 writes a file, prints, or trains the reference of --verify, the other ranks wait for it in their next
 * collective. A slow disk can make them wait longer than --timeout, and that is not a hang. Mark such work with these
 * two functions: the watchdog (train/guard/watchdog.c) announces its time to the other ranks, and their time-outs
 * exclude it.
 *
 * verb, object: "writes", "ck.st"; not copied, and must stay valid until local_work_end(). Calls may be nested: the
 * outermost pair counts. Call both on the training thread only. */
void local_work_begin(const char *verb, const char *object);
void local_work_end(void);

/* Returns the total seconds of this process's local work so far. Writes the current work to what ("writes ck.st"; "":
 * none), and its start to *since. May be called in any thread. */
double local_work_seconds(char *what, size_t size, double *since);

/* ---- the timeline ---- */

/* The first two rows show the host: work of a GPU appears when the host queued it or waited for it. The next two rows
 * show a GPU: the training thread's stream, and all other streams. ROW_WAITING has waits for collectives, ROW_MEMORY
 * samples of the memory in use. */
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
    /* Of a collective, or of the one that is waited for: */
    int64_t sequence;  /* its number, from 1; 0: the event belongs to no collective */
    int64_t bytes;     /* as CommCounters counts them */
    double queued;     /* when the training thread called it */
    char algorithm[24]; /* "ring": as --allreduce calls it */
    char group[24];     /* its group, "group 1/0"; "": the world */
    int64_t memory[MEMORY_KINDS]; /* of a memory sample: bytes */
} TimelineEvent;

void timeline_enable(void);
bool timeline_enabled(void);
void timeline_set_step(int step);
void timeline_add(TimelineRow row, double start, double end, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Adds an event; sets only its step, to the current one. Call it only while the timeline is enabled. */
void timeline_add_event(TimelineEvent event);

/* The events so far, in order; returns their number. Owned by the timeline; valid until the next timeline_add(). */
int timeline_events(const TimelineEvent **events);

#endif
