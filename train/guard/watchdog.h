/* watchdog.h: inside guard/ only: a thread on each rank that detects when a collective takes too long, and reports
 * which ranks are waiting and which rank is missing.
 *
 * note: watchdog
 * In a hang, every rank but one usually waits in the same collective, and none of them knows which rank is missing. So
 * the first rank that reaches its time-out raises an alarm, and each rank's watchdog prints what its own rank is doing.
 * Look at the rank that prints "has not reached". A rank that prints nothing is stopped or disconnected.
 * A call alone does not count: on a GPU, a rank calls a collective when the work that computes its data is only queued.
 * A rank whose GPU has not finished this work is late itself, and must not report that it waits for others.
 * If no rank is late, but their calls differ, each rank waits in a different collective. An alarm names its collective,
 * and a rank for which this number was a different collective reports it.
 * There is no need to wait for the time-out if the missing rank has left the group (pg_destroy()): see
 * train/guard/alarm.h.
 */
#ifndef LOCKSTEP_TRAIN_GUARD_WATCHDOG_H
#define LOCKSTEP_TRAIN_GUARD_WATCHDOG_H

#include "comm/process_group.h"

/* Observes the group until this rank leaves it. In pg_destroy() the rank tells the others that it leaves, and waits for
 * them, so that a rank that still waits in a collective knows at once which rank is missing. Not for a group of one
 * rank. */
void watchdog_start(ProcessGroup *pg);

#endif
