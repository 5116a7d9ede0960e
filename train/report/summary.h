/* summary.h: the settings and results of a run as one JSON object. --json writes it, and the block that is printed at
 * the end of a run shows its values.
 *
 * Interface: add values to a cJSON object that you own (report.c lists all keys); then call summary_print() and
 * summary_write() on rank 0. A value that this run does not have is null.
 */
#ifndef LOCKSTEP_TRAIN_SUMMARY_H
#define LOCKSTEP_TRAIN_SUMMARY_H

#include <cjson/cJSON.h>

#include "train/report/stats.h"

/* Numbers that JSON cannot write (NAN, infinity) become null; so does a text that is NULL. Both are copied. */
void summary_add_number(cJSON *object, const char *key, double value);
void summary_add_text(cJSON *object, const char *key, const char *text);

/* Adds all times, in milliseconds, and rates. samples: per step, on all ranks; tokens: per sample, 0 for an MLP. */
void summary_add_times(cJSON *summary, const Stats *stats, double samples, double tokens);

void summary_print(const cJSON *summary); /* to stdout */

/* The file appears whole or not at all. Faults if it cannot be written. */
void summary_write(const cJSON *summary, const char *path);

#endif
