/* stage_calls.h: what stands between a graded ddp.c and the rest of its process: see stage_calls.c. */
#ifndef LOCKSTEP_TESTS_STAGE_CALLS_H
#define LOCKSTEP_TESTS_STAGE_CALLS_H

#include <stdbool.h>

#include "comm/process_group.h"

/* What the stage gets instead of the group. The group must outlive it. */
ProcessGroup *stage_handle(ProcessGroup *pg);

/* Call it before each call of the stage: from here on, it must not change the group. */
void stage_begins(void);
/* Call it after each call: faults, and names the call, if the group is another one, or if rank and size are not
 * MPI's. */
void stage_ends(const char *call);

/* True if the address lies in the code of libddp.a: of ddp.c, or of common/ddp/. */
bool stage_has_function(const void *function);

#endif
