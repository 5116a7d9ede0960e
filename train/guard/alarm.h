/* alarm.h: inside guard/ only: two messages to all ranks: a collective has timed out; a rank has left the group.
 * Implemented by ending.c, on a communicator of its own, so that they arrive even if a collective hangs. */
#ifndef LOCKSTEP_TRAIN_GUARD_ALARM_H
#define LOCKSTEP_TRAIN_GUARD_ALARM_H

#include "comm/process_group.h"

/* The collective in which a rank waits. */
typedef struct Alarm {
    long sequence;    /* its number */
    long fingerprint; /* a hash of operation, name, count and dtype */
} Alarm;

/* Tells every other rank that this one has reached its time-out. Never waits. At most once per process. */
void alarm_raise(ProcessGroup *pg, Alarm alarm);
/* True if another rank has raised the alarm: *rank is that rank, *alarm the collective in which it waits. Never
 * waits. */
bool alarm_was_raised(ProcessGroup *pg, int *rank, Alarm *alarm);

/* note: leaving
 * In pg_destroy() a rank tells the others in how many collectives it has taken part, and waits until all others have
 * told it the same. A rank that waits in a later collective then knows at once which rank is missing. */

/* Tells every other rank that this one leaves. Never waits. */
void departure_announce(ProcessGroup *pg);
/* True if another rank's departure has arrived since the last call: *rank is that rank, *collectives the number of
 * collectives in which it took part. Never waits. Call it from one thread at a time. */
bool departure_was_announced(ProcessGroup *pg, int *rank, long *collectives);
/* Returns when every other rank has left, too. There is no time-out: a rank may be generating text, and one that dies
 * ends the job by itself. */
void departures_await(ProcessGroup *pg);

#endif
