/* compare_calls.h: inside guard/ only: --debug-collectives. */
#ifndef LOCKSTEP_TRAIN_GUARD_COMPARE_CALLS_H
#define LOCKSTEP_TRAIN_GUARD_COMPARE_CALLS_H

#include "comm/group.h"

/* Faults if not all ranks are about to run the same collective (number, operation, dtype, count, and what it carries),
 * and shows both calls. Collective; costs a small all-gather. */
void compare_calls(void *self, const Collective *collective); /* self: the ProcessGroup */

#endif
