/* guard.h: ends a job of several ranks in good order, and detects that it hangs.
 *
 * Interface, in this order:
 *   supervise_rank()        first in main(): a rank that dies without a message is reported
 *   world = job_open(...)
 *   guard_job(world)        from here on die() and FAULT() end all ranks, each with its own message; a collective that
 *                           takes too long is a fault, and so is a rank that leaves a group early
 *   ...
 *   stop_on_signals(...)    around training; stop_is_due(step) before each step; stop_no_more()
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

/* The exit status of a run that a signal has stopped: EX_TEMPFAIL of sysexits.h, "try again later". */
enum { STOPPED_STATUS = 75 };

/* From now on SIGTERM and SIGUSR1 do not end this process, but stop the run after a step that all ranks agree on: [note:
 * stop]. Another SIGTERM, a second or more after the first one, does end it. `first_step` is the next one; timeout:
 * seconds in which all ranks must agree. Call it on all ranks. */
void stop_on_signals(long first_step, double timeout);
/* Call it on all ranks before each step, and after the last one, with the number of the next step. If a rank has got a
 * signal, returns that signal, before the same step on all ranks: do not take this step. Else 0. Waits only if a rank
 * has got one; faults if the others do not answer. */
int stop_is_due(long step);
void stop_no_more(void); /* from now on these two signals do again what they did before */

/* Keeps this rank's latest 32 collectives of each group. When a collective takes too long, every rank appends its own
 * to the file, which is emptied now: a line of JSON for each, with how long ago it was called, its data was ready, and
 * it was done. scripts/diagnose.sh reads it. Path: not copied. die()s if it cannot be written. Call it on all ranks. */
void guard_record_flight(ProcessGroup *world, const char *path);

#endif
