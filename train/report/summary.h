/* summary.h: what a run was and what came out of it, as one JSON object: --json writes it, and what people see at the
 * end of a run is printed from it.
 *
 * Interface: add to an object of cJSON's (report.c has all keys); then summary_print() and summary_write(), on rank 0.
 * A value that this run does not have is null.
 */
#ifndef LOCKSTEP_TRAIN_SUMMARY_H
#define LOCKSTEP_TRAIN_SUMMARY_H

#include <cjson/cJSON.h>

#include "train/report/stats.h"

/* NAN becomes null, as do infinite numbers, which JSON cannot write; so does a text that is NULL. */
void summary_add_number(cJSON *object, const char *key, double value);
void summary_add_text(cJSON *object, const char *key, const char *text);

/* All times, in milliseconds, and rates. samples: of a step, on all ranks; tokens: of a sample, 0 if it has none. */
void summary_add_times(cJSON *summary, const Stats *stats, double samples, double tokens);

void summary_print(const cJSON *summary);

/* The file appears whole or not at all. */
void summary_write(const cJSON *summary, const char *path);

#endif
