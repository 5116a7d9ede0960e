/* stats.c: keeps the steps' times, of long runs an even sample, and sorts a copy when a percentile is asked for. */
#include "train/report/stats.h"

#include <math.h>
#include <stdlib.h>

#include "base/check.h"

#define WARMUP_STEPS 3

_Static_assert(STATS_MOST_HELD % 2048 == 0, "capacity grows up to it from 1024; it can be halved");

/* Lets go every second step that is held. */
static void halve(Stats *stats)
{
    stats->held /= 2;
    stats->halvings++;
    for (long i = 0; i < stats->held; i++)
        stats->steps[i] = stats->steps[2 * i];
}

void stats_add(Stats *stats, const StepTimes *times)
{
    long step = stats->count++;
    stats->last = *times;
    if (step % (1L << stats->halvings) != 0)
        return;
    if (stats->held == STATS_MOST_HELD) /* the even ones stay, and this step would be even */
        halve(stats);
    if (stats->held == stats->capacity) {
        stats->capacity = stats->capacity > 0 ? 2 * stats->capacity : 1024;
        stats->steps = realloc(stats->steps, (size_t)stats->capacity * sizeof *stats->steps);
        CHECK(stats->steps != NULL, "out of memory for the times of %ld steps", stats->capacity);
    }
    stats->steps[stats->held++] = *times;
}

void stats_free(Stats *stats)
{
    free(stats->steps);
    *stats = (Stats){0};
}

/* note: warm-up */
long stats_warmup_steps(const Stats *stats)
{
    return stats->count / 2 < WARMUP_STEPS ? stats->count / 2 : WARMUP_STEPS;
}

/* The measured times of `part` after the warm-up, in *values (free() it); returns how many. */
static long collect(const Stats *stats, StepPart part, double **values)
{
    long count = 0;
    *values = alloc_or_fault((size_t)stats->held * sizeof **values);
    for (long i = 0; i < stats->held; i++) {
        if (i << stats->halvings < stats_warmup_steps(stats))
            continue;
        double seconds = stats->steps[i].seconds[part];
        if (!isnan(seconds)) {
            (*values)[count++] = seconds;
        }
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
        long below = (long)place;
        long above = below + 1 < count ? below + 1 : below;
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
    for (long i = 0; i < count; i++) {
        sum += values[i];
    }
    free(values);
    return count > 0 ? sum / (double)count : NAN;
}

double stats_first(const Stats *stats, StepPart part)
{
    return stats->count > 0 ? stats->steps[0].seconds[part] : NAN;
}
