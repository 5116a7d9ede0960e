/* supervise.h: says which rank died, and of what, when a rank cannot say so itself.
 *
 * note: supervise
 * A rank that is killed (kill -9, out of memory, a crash) prints nothing, and the launcher ends the others before they
 * notice; all one learns is a process number. So each rank runs as the child of a small process that waits
 * for it. If the child ends by a signal, or exits without a word (a library that calls exit()), the parent names the
 * rank, tells the launcher to end the job, and ends. If the parent is killed, the system tells the child, which does
 * the same; if the launcher is killed, the system tells the parent, which ends its child and itself. Nothing is left
 * behind.
 */
#ifndef LOCKSTEP_COMM_SUPERVISE_H
#define LOCKSTEP_COMM_SUPERVISE_H

/* Call first in main(), before MPI and before any thread. Under a launcher it returns in the child only; the parent
 * never returns, and passes the child's exit status on. Without a launcher it does nothing: the shell tells. */
void supervise_rank(void);

/* Writes to MPICH's launcher on this host, in PMI-1, the language that MPI_Init and MPI_Finalize speak to it. Does
 * nothing without one. May be called in a signal's handler. */
void launcher_tell(const char *words);

#endif
