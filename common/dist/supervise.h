/* supervise.h: says which rank died, and of what, when a rank cannot say so itself.
 *
 * note: supervise
 * A rank that is killed (kill -9, out of memory, a crash) prints nothing, and the launcher ends the others before they
 * notice; all one learns is a process number. So each rank runs as the child of a small process that waits
 * for it. If the child ends by a signal, or exits without a word (a library that calls exit()), the parent names the
 * rank, and then ends with an error, on which the launcher ends the job. If the parent is killed, the system tells the
 * child, which says so and ends: nothing is left behind.
 */
#ifndef LOCKSTEP_DIST_SUPERVISE_H
#define LOCKSTEP_DIST_SUPERVISE_H

/* Call first in main(), before MPI and before any thread. Under a launcher it returns in the child only; the parent
 * never returns, and passes the child's exit status on. Without a launcher it does nothing: the shell tells. */
void supervise_rank(void);

#endif
