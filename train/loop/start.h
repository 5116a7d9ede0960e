/* start.h: what is checked before the first step, because it would end the run later, or make it wrong. */
#ifndef LOCKSTEP_TRAIN_START_H
#define LOCKSTEP_TRAIN_START_H

#include "train/loop/replica.h"

/* die()s if a rank would run out of data before the others, unless the flags say what then happens. Collective. */
void start_check_even_end(ProcessGroup *pg, const Replica *replica, const Sampler *sampler);
/* die()s if --norm would meet a single sample in some step of this run, which begins with first_step. */
void start_check_norm(const Replica *replica, const Sampler *sampler, long first_step);
/* die()s, and shows both sides, if the ranks have read different data or checkpoints. Collective. */
void start_check_same_files(ProcessGroup *pg, const Replica *replica, const Dataset *train_set, const Dataset *eval_set,
                            long first_step);

#endif
