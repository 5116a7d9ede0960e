/* output.h: rank 0's progress lines, and the summary of a run's settings and results.
 *
 * Interface: progress_start(); progress_step() after every step; progress_end(), before anything else is printed. Then
 * add values to your own cJSON object (report.c lists all keys), and call summary_print() and summary_write(). */
#ifndef LOCKSTEP_TRAIN_OUTPUT_H
#define LOCKSTEP_TRAIN_OUTPUT_H

#include <cjson/cJSON.h>

#include "train/report/stats.h"

/* ---- progress: on a terminal, one line that is rewritten; otherwise, a line every 5 % or 10 seconds ---- */

typedef struct Progress {
    bool terminal;
    bool line_open;        /* terminal: the cursor is at the end of an unfinished line */
    const char *unit;      /* "samples" or "tokens" */
    long first_step, steps; /* the run's first step (not 0 if it was resumed), and the step after its last one */
    double timed_from;     /* end of the first step, which the estimate of the time left excludes */
    double shown_at;       /* when a line was last shown */
    double units, exposed; /* since then */
    char unseen[64];       /* the end of the line: the last evaluation; "": none */
    bool unseen_is_new;    /* it has not been shown yet */
} Progress;

/* The run will do steps first_step to steps - 1. unit ("samples") is not copied. */
void progress_start(Progress *progress, long first_step, long steps, const char *unit);
/* Call it after `step`. loss: a mean; units: of its global batch; exposed: seconds of waiting for collectives. */
void progress_step(Progress *progress, long step, double loss, double units, double exposed);
/* Call it after an evaluation, before progress_step(), which then shows these results. accuracy: NAN if there is none.
 * seconds: the time of the evaluation, which the printed speed excludes. */
void progress_evaluated(Progress *progress, double loss, double accuracy, double seconds);
void progress_end(Progress *progress);

/* ---- summary: a missing value is null ---- */

/* NAN, infinity and NULL become null. The text is copied. */
void summary_add_number(cJSON *object, const char *key, double value);
void summary_add_text(cJSON *object, const char *key, const char *text);

/* Adds times, in milliseconds, and rates. samples: per step, on all ranks; tokens: per sample, 0 for an MLP. */
void summary_add_times(cJSON *summary, const Stats *stats, double samples, double tokens);

void summary_print(const cJSON *summary); /* to stdout */

/* Writes the file atomically. Faults if it cannot be written. */
void summary_write(const cJSON *summary, const char *path);

#endif
