/* stats.c: see stats.h. Keeps the steps' times, and sorts a copy for each percentile. */
#include "train/report/stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/observer.h"
#include "device/device.h"

/* ---- measuring ---- */

/* A part without a name is timed, but is no event and no range. */
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

/* ---- collectives ---- */

static void begin_range(void *self, const Collective *collective)
{
    (void)self;
    device_range_begin("%s %s", operation_name(collective->operation), collective->carries);
}

static void end_range(void *self, const Collective *collective)
{
    (void)self, (void)collective;
    device_range_end();
}

/* As --allreduce calls it, or "nccl". Barriers and broadcasts are MPI's own. 16 bits may need another algorithm. */
static const char *algorithm_of(const ProcessGroup *pg, const Collective *c)
{
    if (device_owns(c->send) && strcmp(pg_backend(pg), "nccl") == 0)
        return "nccl";
    if (c->operation == OP_BARRIER || c->operation == OP_BROADCAST)
        return "mpi";
    return all_reduce_name(all_reduce_algorithm(pg_algorithm(pg), c->dtype));
}

/* pg_name() without what is in brackets. */
static void set_group(TimelineEvent *event, const ProcessGroup *pg)
{
    if (pg_of_group(pg)[0] != '\0')
        snprintf(event->group, sizeof event->group, "%.*s", (int)strcspn(pg_name(pg), "(") - 1, pg_name(pg));
}

static void add_collective(void *self, const Collective *c)
{
    if (!timeline_enabled() || !pg_is_measuring(self))
        return;
    TimelineEvent event = {.row = ROW_COMMUNICATION, .start = c->start, .end = c->end, .sequence = c->sequence + 1,
                           .bytes = (int64_t)collective_bytes(self, c), .queued = c->queued};
    snprintf(event.name, sizeof event.name, "%s %s", operation_name(c->operation), c->carries);
    snprintf(event.algorithm, sizeof event.algorithm, "%s", algorithm_of(self, c));
    set_group(&event, self);
    timeline_add_event(event);
}

static void add_wait(void *self, const Collective *c)
{
    if (!timeline_enabled())
        return;
    TimelineEvent event = {.row = ROW_WAITING, .start = c->start, .end = c->end, .sequence = c->sequence + 1};
    set_group(&event, self);
    timeline_add_event(event);
}

static void observe_part(void *self, ProcessGroup *part)
{
    (void)self;
    phases_observe(part);
}

void phases_observe(ProcessGroup *pg)
{
    pg_observe(pg, &(GroupObserver){.self = pg, .ready = begin_range, .carried = end_range, .done = add_collective,
                                    .waited = add_wait, .split = observe_part});
}

/* ---- statistics ---- */

#define WARMUP_STEPS 3

void stats_add(Stats *stats, const StepTimes *times)
{
    if (stats->count == 0) {
        stats->first = *times;
        stats->steps = calloc(STATS_MOST_HELD, sizeof *stats->steps); /* pages take memory only when written */
        CHECK(stats->steps != NULL, "out of memory for the times of %d steps", STATS_MOST_HELD);
    }
    stats->last = *times;
    stats->steps[stats->count++ % STATS_MOST_HELD] = *times;
}

void stats_free(Stats *stats)
{
    free(stats->steps);
    *stats = (Stats){0};
}

/* note: warm-up
 * The first steps set up connections and touch memory for the first time, so the statistics leave them out. A run that
 * is too short for that leaves out half of its steps. */
long stats_warmup_steps(const Stats *stats)
{
    return stats->count / 2 < WARMUP_STEPS ? stats->count / 2 : WARMUP_STEPS;
}

/* Stores the measured times of `part` after the warm-up in *values (free() it); returns their number. */
static long collect(const Stats *stats, StepPart part, double **values)
{
    long count = 0, oldest = stats->count > STATS_MOST_HELD ? stats->count - STATS_MOST_HELD : 0;
    *values = alloc_or_fault((size_t)(stats->count - oldest) * sizeof **values);
    for (long step = oldest; step < stats->count; step++) {
        double seconds = stats->steps[step % STATS_MOST_HELD].seconds[part];
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
