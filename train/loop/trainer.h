/* trainer.h: a whole run, from the data set to the summary. */
#ifndef LOCKSTEP_TRAIN_TRAINER_H
#define LOCKSTEP_TRAIN_TRAINER_H

#include "train/cli/options.h"

/* Trains as the options say, evaluates, verifies, saves, prints and writes what was asked for. Collective. Returns the
 * exit status: 0, or 1 if --verify failed. */
int train(const Options *options, ProcessGroup *pg);

#endif
