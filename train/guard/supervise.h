/* supervise.h: reports which rank died, and why, if the rank cannot report it itself.
 *
 * note: supervise
 * A rank that is killed (kill -9, out of memory, a crash) prints nothing, and the launcher ends the other ranks before
 * they notice: the user only sees a process number. So each rank runs as the child of a small parent process that waits
 * for it. If the child ends by a signal, or exits without a message (because a library calls exit()), the parent names
 * the rank, tells the launcher to end the job, and ends. If the parent is killed, the system signals the child, which
 * does the same. If the launcher is killed, the system signals the parent, which ends its child and itself. No process
 * is left.
 */
#ifndef LOCKSTEP_TRAIN_GUARD_SUPERVISE_H
#define LOCKSTEP_TRAIN_GUARD_SUPERVISE_H

/* Call it first in main(), before MPI and before any thread starts. Under a launcher it returns only in the child; the
 * parent never returns, and exits with the child's status. Without a launcher it does nothing, because the shell
 * reports how a process ended. */
void supervise_rank(void);

/* Sends `words` to MPICH's launcher on this host, in PMI-1, the protocol that MPI_Init and MPI_Finalize use. Does
 * nothing without such a launcher. May be called in a signal handler. */
void launcher_tell(const char *words);

#endif
