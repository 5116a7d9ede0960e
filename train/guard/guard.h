/* guard.h: ends all ranks of a job together, and detects hangs.
 *
 * Interface, in this order:
 *   supervise_rank()        first in main(): a rank that dies without a message is reported
 *   world = job_open(...)
 *   guard_job(world)        from here on die() and FAULT() end all ranks, each with its own message; a collective that
 *                           takes too long is a fault, and so is a rank that leaves a group early
 *   stop_on_signals(...)    around training; stop_is_due(step) before each step; stop_restore_signals()
 *   job_close(world)
 * Nothing in common/ needs the guard. Without it a program trains the same weights, but may hang.
 */
#ifndef LOCKSTEP_TRAIN_GUARD_GUARD_H
#define LOCKSTEP_TRAIN_GUARD_GUARD_H

#include "comm/process_group.h"

/* Call it first in main(), before MPI and before any thread starts. Under a launcher it forks: it returns only in the
 * child, and the parent exits with the child's status. Without a launcher the shell reports how a process ended. */
void supervise_rank(void);

/* Observes the world, and each group that is made of it. A group's options set the time-out of a collective, and
 * whether the ranks compare their calls before each one (--debug-collectives). Collective. */
void guard_job(ProcessGroup *world);

/* The exit status of a run that a signal has stopped: EX_TEMPFAIL of sysexits.h. */
enum { STOPPED_STATUS = 75 };

/* Makes SIGTERM and SIGUSR1 stop the run after a step that all ranks agree on: [note: stop]. A second SIGTERM, at least
 * a second after the first, ends the process. first_step: the next one; timeout: for this agreement. On all ranks. */
void stop_on_signals(long first_step, double timeout);
/* Call it on all ranks before each step, and after the last one, with the number of the next step. Returns 0, or, if a
 * rank has received a signal, that signal: do not take this step. It is the same step on all ranks. */
int stop_is_due(long step);
void stop_restore_signals(void); /* restores the earlier handlers of these signals */

/* Keeps this rank's latest 32 collectives of each group. When a collective takes too long, every rank appends them to
 * the file, one line of JSON each, with the ages of its call, of its data and of its end. scripts/diagnose.sh reads it.
 * Empties the file now. path: not copied. die()s if it cannot be written. Call it on all ranks. */
void guard_record_flight(ProcessGroup *world, const char *path);

#endif
