/* compare_calls.h: inside dist/ only: --debug-collectives. */
#ifndef LOCKSTEP_DIST_COMPARE_CALLS_H
#define LOCKSTEP_DIST_COMPARE_CALLS_H

#include "dist/group.h"

/* Faults, showing both sides, unless all ranks are about to carry out the same collective: number, operation, dtype,
 * count, and what it carries. Collective; costs a small all-gather. */
void compare_calls(ProcessGroup *pg, const Collective *collective);

#endif
