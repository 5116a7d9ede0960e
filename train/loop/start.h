/* start.h: what ranks compare before the first step, because they may have read different files. Both are collective. */
#ifndef LOCKSTEP_TRAIN_START_H
#define LOCKSTEP_TRAIN_START_H

#include "train/loop/replica.h"

/* die()s if a rank would run out of data before the others, unless the flags say what then happens. */
void start_check_even_end(ProcessGroup *pg, const Replica *replica, const Sampler *sampler);
/* die()s, and shows both sides, if the ranks have read different data or checkpoints. first_step: of this run. */
void start_check_same_files(ProcessGroup *pg, const Replica *replica, const Dataset *train_set, const Dataset *eval_set,
                            long first_step);

#endif
