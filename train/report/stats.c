/* stats.c: see stats.h. Sorts a copy of the times for each percentile. */
#include "train/report/stats.h"

#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "device/device.h"

/* A part without a name is timed, but appears in no timeline. */
static const char *const names[STEP_PARTS] = {
    [PART_FORWARD] = "forward", [PART_BACKWARD] = "backward", [PART_OPTIMIZER] = "optimizer"};

void phase_begin(Phases *phases, StepPart part)
{
    phases->since[part] = now_seconds();
    if (names[part] != NULL)
        device_range_begin("%s", names[part]);
}

void phase_end(Phases *phases, StepPart part)
{
    if (names[part] != NULL)
        device_range_end();
    double now = now_seconds();
    phases->times.seconds[part] += now - phases->since[part];
    if (names[part] != NULL)
        timeline_add(ROW_COMPUTE, phases->since[part], now, "%s", names[part]);
}

#define WARMUP_STEPS 3

void stats_add(Stats *stats, const StepTimes *times)
{
    if (stats->count == 0) {
        stats->first = *times;
        stats->steps = calloc(STATS_MAX_KEPT, sizeof *stats->steps); /* pages take memory only when written */
        CHECK(stats->steps != NULL, "out of memory for the times of %d steps", STATS_MAX_KEPT);
    }
    stats->last = *times;
    stats->steps[stats->count++ % STATS_MAX_KEPT] = *times;
}

void stats_free(Stats *stats)
{
    free(stats->steps);
    *stats = (Stats){0};
}

/* note: warm-up
 * The first steps set up connections and touch memory for the first time, so the statistics exclude them. */
long stats_warmup_steps(const Stats *stats)
{
    return stats->count / 2 < WARMUP_STEPS ? stats->count / 2 : WARMUP_STEPS;
}

/* Stores the measured times of `part` after the warm-up in *values (free() it); returns their number. */
static long collect(const Stats *stats, StepPart part, double **values)
{
    long count = 0, oldest = stats->count > STATS_MAX_KEPT ? stats->count - STATS_MAX_KEPT : 0;
    *values = alloc_or_fault((size_t)(stats->count - oldest) * sizeof **values);
    for (long step = oldest; step < stats->count; step++) {
        double seconds = stats->steps[step % STATS_MAX_KEPT].seconds[part];
        if (step >= stats_warmup_steps(stats) && !isnan(seconds))
            (*values)[count++] = seconds;
    }
    return count;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double stats_percentile(const Stats *stats, StepPart part, double percent)
{
    double *values = NULL;
    long count = collect(stats, part, &values);
    double result = NAN;
    if (count > 0) {
        qsort(values, (size_t)count, sizeof *values, ascending);
        double place = percent / 100 * (double)(count - 1);
        long below = (long)place, above = below + 1 < count ? below + 1 : below;
        result = values[below] + (place - (double)below) * (values[above] - values[below]);
    }
    free(values);
    return result;
}

double stats_mean(const Stats *stats, StepPart part)
{
    double *values = NULL;
    long count = collect(stats, part, &values);
    double sum = 0;
    for (long i = 0; i < count; i++)
        sum += values[i];
    free(values);
    return count > 0 ? sum / (double)count : NAN;
}
