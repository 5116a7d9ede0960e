/* watchdog.h: inside guard/ only: a thread on each rank that notices when a collective takes too long, and says who is
 * waiting and who has not come.
 *
 * note: watchdog
 * In a hang, every rank but one waits in the same collective, and none of them knows who is missing. So the first rank
 * whose time is up raises an alarm: each rank's watchdog prints what its own rank is doing. The rank that prints
 * "has not come to" is the one to look at; a rank that prints nothing is stopped or cut off.
 * A call is not enough to have come: on a GPU, it is made when what it sends has been queued. A rank whose GPU has not
 * got there yet is late itself, and must not be among those who say that they wait for others.
 * Where nobody is late, but the ranks have made different calls, each waits in another one: an alarm says in which, and
 * a rank that knows that number as something else says so.
 * Only for a rank that has left the group (pg_destroy()) nobody waits so long: see train/guard/alarm.h.
 */
#ifndef LOCKSTEP_TRAIN_GUARD_WATCHDOG_H
#define LOCKSTEP_TRAIN_GUARD_WATCHDOG_H

#include "comm/process_group.h"

/* Observes the group until this rank leaves it. In pg_destroy() the rank tells the others that it leaves, and waits for
 * them: one that still waits in a collective then knows at once for whom it waits. Not for a group of one. */
void watchdog_start(ProcessGroup *pg);

#endif
