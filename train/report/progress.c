/* progress.c: decides when a line is due, and prints it. */
#include "train/report/progress.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"

#define TERMINAL_SECONDS 0.1 /* between two updates of the line: fast enough for the eye */
#define PLAIN_SECONDS 10.0
#define PLAIN_LINES 20 /* in a whole run: one per 5 % */

void progress_start(Progress *progress, long first_step, long steps, const char *unit)
{
    *progress = (Progress){.terminal = isatty(STDOUT_FILENO) == 1, .unit = unit};
    progress->first_step = first_step;
    progress->steps = steps;
    progress->shown_at = now_seconds();
}

static bool line_is_due(const Progress *progress, long step, double now)
{
    if (step == progress->first_step || step == progress->steps - 1)
        return true;
    double seconds = now - progress->shown_at;
    if (progress->terminal)
        return seconds >= TERMINAL_SECONDS;
    /* Has the run passed a multiple of 1/20 since the last line? */
    long steps = progress->steps - progress->first_step;
    long mark = (step - progress->first_step + 1) * PLAIN_LINES / steps;
    long shown_mark = (progress->shown_step - progress->first_step + 1) * PLAIN_LINES / steps;
    return mark > shown_mark || seconds >= PLAIN_SECONDS;
}

/* "12 s", "3 min 20 s", "1 h 05 min"; "" after the first step, which gives no estimate, and after the last. */
static void describe_time_left(const Progress *progress, long step, double now, char *text, size_t size)
{
    long timed_steps = step - progress->first_step;
    if (timed_steps == 0 || step == progress->steps - 1) {
        text[0] = '\0';
        return;
    }
    double left = (now - progress->timed_from) / (double)timed_steps * (double)(progress->steps - 1 - step);
    long seconds = lround(left);
    if (seconds < 60)
        snprintf(text, size, ", %ld s left", seconds);
    else if (seconds < 3600)
        snprintf(text, size, ", %ld min %02ld s left", seconds / 60, seconds % 60);
    else
        snprintf(text, size, ", %ld h %02ld min left", seconds / 3600, seconds / 60 % 60);
}

static void show(Progress *progress, long step, double loss, double now)
{
    double seconds = now - progress->shown_at;
    char time_left[64];
    describe_time_left(progress, step, now, time_left, sizeof time_left);
    /* \r goes back to the start of the line, and ESC [K clears the rest of a longer line. */
    printf("%sstep %ld/%ld, loss %.4f, %.0f %s/s", progress->terminal ? "\r" : "", step + 1, progress->steps, loss,
           seconds > 0 ? progress->units / seconds : 0.0, progress->unit);
    if (job_world_size() > 1)
        printf(", %.0f %% waiting for other ranks", seconds > 0 ? 100 * progress->exposed / seconds : 0.0);
    printf("%s%s", time_left, progress->terminal ? "\033[K" : "\n");
    fflush(stdout);
    progress->line_open = progress->terminal;
    progress->shown_at = now;
    progress->shown_step = step;
    progress->units = progress->exposed = 0;
}

void progress_step(Progress *progress, long step, double loss, double units, double exposed)
{
    if (job_rank() != 0)
        return;
    double now = now_seconds();
    if (step == progress->first_step)
        progress->timed_from = now;
    progress->units += units;
    progress->exposed += exposed;
    if (line_is_due(progress, step, now))
        show(progress, step, loss, now);
}

void progress_end(Progress *progress)
{
    if (progress->line_open) {
        printf("\n");
        fflush(stdout);
        progress->line_open = false;
    }
}
