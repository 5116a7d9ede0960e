/* events.h: inside tests/world only. */
#ifndef LOCKSTEP_TESTS_WORLD_EVENTS_H
#define LOCKSTEP_TESTS_WORLD_EVENTS_H

#include <stdbool.h>

bool events_rank_is_in_ready(int rank); /* the stage handles gradient-ready now, where it must not wait */
#endif
