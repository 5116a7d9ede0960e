/* lent.h: models that a test gives to the stage. Each has memory of its own, behind a gap of random size: no constant
 * distance leads from there to what the test expects.
 */
#ifndef LOCKSTEP_TESTS_LENT_H
#define LOCKSTEP_TESTS_LENT_H

#include "train/loop/replica.h"

void *lend(size_t bytes); /* zeroed; free with take_back() */
void take_back(void *memory);

/* As replica_create(), with a copy of the options. Free with replica_take_back(). */
Replica *replica_lend(const Options *options, uint64_t seed, long total_steps);
void replica_take_back(Replica *replica);

#endif
