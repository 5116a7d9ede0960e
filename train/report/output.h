/* output.h: what rank 0 prints about a run's steps, and the summary of its settings and results.
 *
 * Interface: progress_start(); progress_step() after every step; progress_end(), before anything else is printed. Then
 * add values to a cJSON object that you own (report.c lists all keys), and call summary_print() and summary_write(). */
#ifndef LOCKSTEP_TRAIN_OUTPUT_H
#define LOCKSTEP_TRAIN_OUTPUT_H

#include <cjson/cJSON.h>

#include "train/report/stats.h"

/* ---- steps: on a terminal, one line that is rewritten. Otherwise, lines for the first and the last step, and for
 * every 5 % of the run or every 10 seconds. ---- */

typedef struct Progress {
    bool terminal;
    bool line_open;        /* terminal: the cursor is at the end of an unfinished line */
    const char *unit;      /* "samples" or "tokens" */
    long first_step, steps; /* the run's first step (not 0 if it was resumed), and the step after its last one */
    double timed_from;     /* end of the first step, which takes longer: the estimate of the time left excludes it */
    double shown_at;       /* when a line was last shown */
    /* Since a line was last shown: */
    double units, exposed;
    char unseen[64];       /* the end of the line: the last evaluation; "": none */
    bool unseen_is_new;    /* it has not been shown */
} Progress;

/* The run will do steps first_step to steps - 1. unit ("samples") is not copied. */
void progress_start(Progress *progress, long first_step, long steps, const char *unit);
/* `step` is done. loss: a mean; units: samples or tokens of its global batch; exposed: seconds spent waiting for
 * collectives. */
void progress_step(Progress *progress, long step, double loss, double units, double exposed);
/* Call it before progress_step(), which then shows these results on unseen data; accuracy: NAN if there is none. The
 * seconds that they took do not count for the speed. */
void progress_evaluated(Progress *progress, double loss, double accuracy, double seconds);
void progress_end(Progress *progress);

/* ---- summary: a value that this run does not have is null ---- */

/* Numbers that JSON cannot write (NAN, infinity) become null; so does a text that is NULL. Both are copied. */
void summary_add_number(cJSON *object, const char *key, double value);
void summary_add_text(cJSON *object, const char *key, const char *text);

/* Adds all times, in milliseconds, and rates. samples: per step, on all ranks; tokens: per sample, 0 for an MLP. */
void summary_add_times(cJSON *summary, const Stats *stats, double samples, double tokens);

void summary_print(const cJSON *summary); /* to stdout */

/* The file appears whole or not at all. Faults if it cannot be written. */
void summary_write(const cJSON *summary, const char *path);

#endif
