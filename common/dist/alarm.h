/* alarm.h: inside dist/ only: a message to all ranks that a collective hangs. Implemented by pg_mpi.c, over a
 * communicator of its own, so that it gets through whatever hangs. */
#ifndef LOCKSTEP_DIST_ALARM_H
#define LOCKSTEP_DIST_ALARM_H

#include "dist/process_group.h"

/* Tells every other rank that collective number `sequence` is overdue. Never waits. */
void alarm_raise(ProcessGroup *pg, long sequence);
/* Has another rank raised the alarm? Then *sequence is the collective it waits in. Never waits. */
bool alarm_was_raised(ProcessGroup *pg, long *sequence);

#endif
