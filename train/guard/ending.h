/* ending.h: inside guard/ only: how a job of several ranks ends in good order, and how it does not hang while it ends.
 * Its messages travel on a communicator of their own; alarm.h has the other ones. */
#ifndef LOCKSTEP_TRAIN_GUARD_ENDING_H
#define LOCKSTEP_TRAIN_GUARD_ENDING_H

#include "comm/process_group.h"

/* Once, when MPI has started: tells base/check.h how die() and FAULT() end all ranks. Collective. */
void ending_open(void);

/* When all ranks have met in pg_destroy() and have nothing left to do but to close things, this rank ends within 10
 * seconds, whatever MPI does, with job_status(). */
void ending_observe(ProcessGroup *pg);

/* MPI has ended. */
void ending_close(void);

#endif
