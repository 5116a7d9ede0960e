/* guard.h: ends a job of several ranks in good order, and detects that it hangs.
 *
 * Interface, in this order:
 *   supervise_rank()        first in main(): a rank that dies without a message is reported
 *   world = job_open(...)
 *   guard_job(world)        from here on die() and FAULT() end all ranks, each with its own message; a collective that
 *                           takes too long is a fault, and so is a rank that leaves a group early
 *   ...
 *   job_close(world)        from here on this rank has ended regularly: no error message is missing
 * Nothing in common/ needs the guard. Without it a program trains the same weights, but may hang.
 */
#ifndef LOCKSTEP_TRAIN_GUARD_GUARD_H
#define LOCKSTEP_TRAIN_GUARD_GUARD_H

#include "comm/process_group.h"

/* Call it first in main(), before MPI and before any thread starts. Under a launcher it returns only in the child; the
 * parent never returns, and exits with the child's status. Without a launcher it does nothing, because the shell
 * reports how a process ended. */
void supervise_rank(void);

/* Observes the world, and each group that is made of it. A group's options say how long a collective may take, and
 * whether the ranks compare their calls before each one (--debug-collectives). Collective. */
void guard_job(ProcessGroup *world);

/* Keeps this rank's latest 32 collectives of each group. When a collective takes too long, every rank appends its own
 * to the file, which is emptied now: a line of JSON for each, with how long ago it was called, its data was ready, and
 * it was done. scripts/diagnose.sh reads it. Path: not copied. die()s if it cannot be written. Call it on all ranks. */
void guard_record_flight(ProcessGroup *world, const char *path);

#endif
