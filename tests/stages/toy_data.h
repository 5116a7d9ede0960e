/* toy_data.h: small data sets made in memory, and options to train on them, for tests of whole training steps. */
#ifndef LOCKSTEP_TESTS_TOY_DATA_H
#define LOCKSTEP_TESTS_TOY_DATA_H

#include "train/cli/options.h"

/* Options for the model `name`: "mlp-toy" (regression, 10-20-20-5), "mlp" (images of 64 pixels, 64-48-32-10) or "gpt"
 * (2 layers, 2 heads, width 32, context 16). SGD, learning rate 0.05, no momentum, batch 24. */
Options toy_options(const char *model_name);

/* Makes `samples` samples for these options, the same on every rank. Free with dataset_close(). */
Dataset toy_dataset(const Options *options, int64_t samples);

#endif
