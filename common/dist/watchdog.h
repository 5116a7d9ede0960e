/* watchdog.h: inside dist/ only: a thread on each rank that notices when a collective takes too long, and says who is
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
 * Only for a rank that has left the group (pg_destroy()) nobody waits so long: see dist/alarm.h.
 */
#ifndef LOCKSTEP_DIST_WATCHDOG_H
#define LOCKSTEP_DIST_WATCHDOG_H

#include "dist/group.h"

typedef struct Watchdog Watchdog;

Watchdog *watchdog_start(ProcessGroup *pg);
void watchdog_stop(Watchdog *watchdog);

/* What the rank is doing now: it has called a collective (copied) and waits for its own device; what it sends is there,
 * and it waits for others; they have come, and it waits for the emulated link; the collective has ended. Any thread.
 * watchdog NULL: does nothing. */
void watchdog_begin(Watchdog *watchdog, const Collective *collective);
void watchdog_ready(Watchdog *watchdog);
void watchdog_link(Watchdog *watchdog);
void watchdog_end(Watchdog *watchdog);

/* From now on a collective may take this long; INFINITY: for ever. Returns what it was before. */
double watchdog_set_timeout(Watchdog *watchdog, double seconds);

#endif
