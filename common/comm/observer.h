/* observer.h: functions that observe the collectives of a group.
 *
 * The group does not know its observers: time-outs, comparisons of calls, timelines. An observer is a table of
 * functions that the group calls around each collective, on the thread that carries the collective out. A new group has
 * no observer.
 */
#ifndef LOCKSTEP_COMM_OBSERVER_H
#define LOCKSTEP_COMM_OBSERVER_H

#include "comm/collective.h"

/* Any of the functions may be NULL. Observers are called in the order of their registration. */
typedef struct GroupObserver {
    void *self;
    void (*called)(void *self, const Collective *collective);  /* the rank has made the call */
    void (*ready)(void *self, const Collective *collective);   /* `send` is computed; the rank now waits for others */
    void (*carried)(void *self, const Collective *collective); /* the result is there; an emulated link may add time */
    void (*done)(void *self, const Collective *collective);    /* it was under way from its `start` to its `end` */
    void (*waited)(void *self, const Collective *collective);  /* training waited from its `start` to its `end`;
                                                                * called only while measuring */
    void (*leaving)(void *self); /* this rank leaves the group; nothing is under way */
    void (*split)(void *self, ProcessGroup *part); /* pg_split() has made `part`, which you may observe as well */
} GroupObserver;

/* Adds an observer for the rest of the group's life. Call it before the group's first collective, or between two
 * collectives. A group has at most 5 observers. */
void pg_observe(ProcessGroup *pg, const GroupObserver *observer);

/* Carries a collective out on this thread, without a number and without observers. For an observer's function `ready`,
 * to compare something between the ranks. All ranks must call it at the same point. */
void pg_run_unobserved(ProcessGroup *pg, const Collective *collective);

/* False while collectives do not belong to a step: see pg_set_measuring(). */
bool pg_is_measuring(const ProcessGroup *pg);

#endif
