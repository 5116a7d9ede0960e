/* ending.h: inside guard/ only: ends a job of several ranks in good order, and does not let it hang while it ends.
 * Its messages use a communicator of their own, as those of alarm.h do. */
#ifndef LOCKSTEP_TRAIN_GUARD_ENDING_H
#define LOCKSTEP_TRAIN_GUARD_ENDING_H

#include "comm/process_group.h"

/* Call once, after MPI has started: tells base/check.h how die() and FAULT() end all ranks. Collective. */
void ending_open(void);

/* Observes the group. When all ranks have reached pg_destroy(), this rank ends within 10 seconds with job_status(),
 * even if MPI_Finalize hangs. */
void ending_observe(ProcessGroup *pg);

/* Call after MPI has ended: stops that limit. */
void ending_close(void);

#endif
