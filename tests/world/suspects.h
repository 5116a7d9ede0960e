/* suspects.h: names the mistake behind a wrong number. Both functions end the process. */
#ifndef LOCKSTEP_TESTS_WORLD_SUSPECTS_H
#define LOCKSTEP_TESTS_WORLD_SUSPECTS_H

#include "world/model.h"

_Noreturn void suspects_of_gradient(const Toy *toy, const Parameter *parameter, int64_t element, float is);
_Noreturn void suspects_of_weight(const Toy *toy, const Parameter *parameter, int64_t element, int step,
                                  const char *when);

#endif
