/* alarm.h: inside guard/ only: a message to all ranks that a collective hangs, and another one that a rank has left.
 * Implemented by ending.c, over a communicator of its own, so that they get through whatever hangs. */
#ifndef LOCKSTEP_TRAIN_GUARD_ALARM_H
#define LOCKSTEP_TRAIN_GUARD_ALARM_H

#include "comm/process_group.h"

/* The collective that a rank waits in. */
typedef struct Alarm {
    long sequence;    /* its number */
    long fingerprint; /* of what it is: operation, name, count, dtype */
} Alarm;

/* Tells every other rank that this one has waited in vain. Never waits. Once per process. */
void alarm_raise(ProcessGroup *pg, Alarm alarm);
/* Has another rank raised the alarm? Then *rank says which one, and *alarm what it waits in. Never waits. */
bool alarm_was_raised(ProcessGroup *pg, int *rank, Alarm *alarm);

/* note: leaving
 * A rank that ends its group tells the others in how many collectives it has taken part, and waits until all have told
 * it the same. A rank that waits in a later collective then knows at once for whom it waits in vain. */

/* Tells every other rank. Never waits. */
void departure_announce(ProcessGroup *pg);
/* Has another rank left, of which we did not know? Then *rank says which, and *collectives after how many. Never waits.
 * One thread at a time. */
bool departure_was_announced(ProcessGroup *pg, int *rank, long *collectives);
/* Returns when every other rank has left, too. Without a limit: one of them may be generating text, and one that dies
 * ends the job by itself. */
void departures_await(ProcessGroup *pg);

#endif
