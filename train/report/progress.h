/* progress.h: one line that says how far the training is.
 *
 * Interface: progress_start(), progress_step() after every step, progress_end() (also before anything else
 * is printed). On a terminal the line is rewritten in place; into a file or a pipe go plain lines, about one
 * for every 5 % of the run or every 10 seconds, the first and the last step always. Rank 0 alone prints.
 */
#ifndef LOCKSTEP_TRAIN_PROGRESS_H
#define LOCKSTEP_TRAIN_PROGRESS_H

#include <stdbool.h>

typedef struct Progress {
    bool terminal;
    bool line_open;        /* terminal: the cursor stands behind an unfinished line */
    const char *unit;      /* "samples" or "tokens" */
    long first_step, steps; /* of this run; not 0 when it was resumed, and the step after its last */
    double timed_from;     /* when the first step was done: it takes longer, and is left out of the time left */
    double shown_at;       /* when a line was last shown */
    long shown_step;
    /* Since a line was last shown: */
    double units, exposed;
} Progress;

/* Steps first_step to steps - 1 are to be done. unit ("samples") is not copied. */
void progress_start(Progress *progress, long first_step, long steps, const char *unit);
/* `step` is done. units: samples or tokens of its global batch; exposed: seconds it stood still for communication. */
void progress_step(Progress *progress, long step, double loss, double units, double exposed);
void progress_end(Progress *progress);

#endif
