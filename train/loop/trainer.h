/* trainer.h: a whole run, from the data set to the summary. */
#ifndef LOCKSTEP_TRAIN_TRAINER_H
#define LOCKSTEP_TRAIN_TRAINER_H

#include "train/cli/options.h"

/* Trains, evaluates, verifies, saves, prints and writes, as the options say. Collective. Owns no argument. Returns
 * the exit status: 0, or 1 if --verify failed. Mistakes of the user die(); faults at run time end all ranks. */
int train(const Options *options, const Resolved *resolved, ProcessGroup *pg);

#endif
