/* watch_calls.h: the stage's calls of the process group in this backward pass. */
#ifndef LOCKSTEP_TESTS_WATCH_CALLS_H
#define LOCKSTEP_TESTS_WATCH_CALLS_H

#include "watch.h"

int calls_started(void); /* all-reduces, or, in stage 5, reduce-scatters */
void calls_forget(void); /* before each backward pass */

/* Since the last call of calls_take_waiting(), where a stage may wait, each time between calls_may_wait(true) and
 * (false): how many sums were not done when the stage asked and done when it asked again, with none that ended in
 * between, and for how many it has waited. */
void calls_may_wait(bool begins);
void calls_take_waiting(int *without_a_wait, int *by_a_wait);

/* Reduce-scatters of this backward pass for which the stage has not called work_wait(). */
int calls_in_flight(void);

/* From now on, a call that waits for other ranks fails, and names the parameter in whose event it was made. NULL: no
 * more. */
void calls_must_not_wait(const Parameter *in);

extern char watch_title[]; /* what messages end with: "" or ": " and the title */

#endif
