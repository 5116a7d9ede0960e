/* freed.h: who frees memory of the group. Programs with freed.c are linked with --wrap=free and --wrap=pg_alloc_shared:
 * free() of what pg_alloc_shared() gave is a failure if ranks share it. With "memory" in LOCKSTEP_TEST_GIVEN (given.h)
 * it is freed as it should have been, unless this is true. */
#ifndef LOCKSTEP_TESTS_FREED_H
#define LOCKSTEP_TESTS_FREED_H

#include <stdbool.h>

extern bool memory_is_graded;

#endif
