/* ending.h: inside dist/ only: how a job of several ranks ends in good order, and how it does not hang while it ends.
 * Its messages travel on a communicator of their own; alarm.h has the other ones. */
#ifndef LOCKSTEP_DIST_ENDING_H
#define LOCKSTEP_DIST_ENDING_H

/* Once, when MPI has started: tells base/check.h how die() and FAULT() end all ranks. */
void ending_open(int rank, int world_size);

/* All ranks have met, and have nothing left to do but to close things: from now on this rank ends in 10 seconds,
 * whatever MPI does, with job_status(). Counts anew with each call. */
void ending_begin(void);
/* Ends MPI. Collective. */
void ending_close(void);

#endif
