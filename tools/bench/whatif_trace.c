/* whatif_trace.c: see whatif_trace.h. Reads the events, sorts them by rank and step, and takes each step apart. */
#include "whatif_trace.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "alpha_beta.h"
#include "base/check.h"
#include "simulate.h"

#define WARMUP_STEPS 3
#define AT_ONCE 1e-6 /* seconds; less is no time between two events */

typedef enum Kind { FORWARD, BACKWARD, OPTIMIZER, ALL_REDUCE, SCALING, LEFT, KINDS } Kind; /* the last two: no events */

typedef struct Event {
    Kind kind;
    int rank, step;
    double start, end, queued, bytes; /* the last two: of an all-reduce */
} Event;

/* One step of one rank. */
typedef struct Step {
    int rank, number, count;
    const Event *events; /* by start; not owned */
    double parts[KINDS]; /* seconds */
    double computing;    /* all its micro-batches */
    double seconds;      /* from the first forward pass to the optimizer's end */
    const Event *last_backward;
} Step;

/* ---- numbers ---- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(double *values, int count)
{
    if (count == 0)
        return 0;
    qsort(values, (size_t)count, sizeof *values, ascending);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* ---- reading ---- */

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct stat status;
    if (file == NULL || fstat(fileno(file), &status) != 0 || !S_ISREG(status.st_mode))
        die("%s: cannot be read", path);
    const size_t size = (size_t)status.st_size;
    char *text = alloc_or_fault(size + 1);
    if (fread(text, 1, size, file) != size)
        die("%s: cannot be read", path);
    fclose(file);
    return text;
}

static double number(const cJSON *object, const char *name, double otherwise)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : otherwise;
}

static bool kind_of(const char *name, int row, Kind *kind)
{
    static const char *const phases[] = {[FORWARD] = "forward", [BACKWARD] = "backward", [OPTIMIZER] = "optimizer"};
    for (*kind = FORWARD; row == 0 && *kind <= OPTIMIZER; (*kind)++)
        if (strcmp(name, phases[*kind]) == 0)
            return true;
    *kind = ALL_REDUCE;
    return row == 1 && strncmp(name, "all_reduce ", strlen("all_reduce ")) == 0;
}

/* Returns false for what is no part of a step. */
static bool read_event(const char *path, const cJSON *object, Event *event)
{
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(object, "args");
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "name"));
    const double step = number(args, "step", -1), start = number(object, "ts", NAN);
    if (name == NULL || !(step >= 0) || !kind_of(name, (int)number(object, "tid", -1), &event->kind) || isnan(start))
        return false;
    event->rank = (int)number(object, "pid", 0);
    event->step = (int)step;
    event->start = 1e-6 * start;
    event->end = event->start + 1e-6 * number(object, "dur", 0);
    event->queued = 1e-6 * number(args, "queued", start);
    event->bytes = number(args, "bytes", NAN);
    if (event->kind == ALL_REDUCE && !(event->bytes >= 0))
        die("%s: its all-reduces do not tell their bytes: was it written by an older train?", path);
    return true;
}

static int by_rank_step_start(const void *a, const void *b)
{
    const Event *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return (x->start > y->start) - (x->start < y->start);
}

/* Returns the number of events; *events is owned by the caller. */
static int read_events(const char *path, Event **events)
{
    char *text = read_file(path);
    cJSON *root = cJSON_Parse(text);
    const cJSON *inside = cJSON_GetObjectItemCaseSensitive(root, "traceEvents"), *object;
    const cJSON *list = inside != NULL ? inside : root;
    if (!cJSON_IsArray(list))
        die("%s: not a trace: train --trace FILE writes one", path);
    int count = 0;
    *events = alloc_or_fault((size_t)(cJSON_GetArraySize(list) + 1) * sizeof **events);
    cJSON_ArrayForEach(object, list)
        count += read_event(path, object, *events + count);
    cJSON_Delete(root);
    free(text);
    qsort(*events, (size_t)count, sizeof **events, by_rank_step_start);
    return count;
}

/* ---- taking steps apart ---- */

static double overlap(const Event *event, double begin, double end)
{
    return fmax(fmin(event->end, end) - fmax(event->start, begin), 0);
}

/* before: the same rank's step before, or NULL. What lies between backward and the optimizer is scaling, as far as no
 * all-reduce is under way. */
static void take_apart(Step *step, const Step *before)
{
    const Event *end = step->events + step->count, *optimizer = NULL;
    int micro_batches = 0;
    for (const Event *e = step->events; e < end; e++) {
        if (e->kind != ALL_REDUCE)
            step->parts[e->kind] += e->end - e->start;
        micro_batches += e->kind == FORWARD;
        if (e->kind == BACKWARD)
            step->last_backward = e;
        if (e->kind == OPTIMIZER)
            optimizer = e;
    }
    if (micro_batches == 0 || step->last_backward == NULL || optimizer == NULL)
        return; /* the step is not whole: no last_backward, or no optimizer */
    step->computing = step->parts[FORWARD] + step->parts[BACKWARD];
    step->seconds = optimizer->end - step->events[0].start;
    step->parts[FORWARD] /= micro_batches;
    step->parts[BACKWARD] /= micro_batches;
    step->parts[SCALING] = optimizer->start - step->last_backward->end;
    for (const Event *e = step->events; e < end; e++)
        if (e->kind == ALL_REDUCE)
            step->parts[SCALING] -= overlap(e, step->last_backward->end, optimizer->start);
    step->parts[LEFT] = NAN;
    if (before != NULL && before->number == step->number - 1 && before->rank == step->rank && before->count > 0)
        for (const Event *e = before->events; e < before->events + before->count; e++)
            if (e->kind == OPTIMIZER)
                step->parts[LEFT] = (step->events[0].start - e->end) / micro_batches;
}

/* Steps that are left out have no part in anything; returns how many are left, one rank's after the other's. */
static int find_steps(const char *path, const Event *events, int count, Step *steps)
{
    int first = count > 0 ? events[0].step : 0, last = first, found = 0;
    for (int i = 0; i < count; i++)
        last = events[i].step > last ? events[i].step : last;
    const int all = last - first + 1, warm = first + (all / 2 < WARMUP_STEPS ? all / 2 : WARMUP_STEPS);
    Step before = {0};
    for (int i = 0; i < count;) {
        Step step = {.rank = events[i].rank, .number = events[i].step, .events = &events[i]};
        while (i < count && events[i].rank == step.rank && events[i].step == step.number) {
            step.count++;
            i++;
        }
        take_apart(&step, before.count > 0 ? &before : NULL);
        before = step;
        if (step.number >= warm && step.computing > 0)
            steps[found++] = step;
    }
    if (found == 0)
        die("%s: has no whole step (forward, backward, optimizer)", path);
    return found;
}

/* ---- what the steps have in common ---- */

static double median_part(const Step *steps, int count, Kind part, double *values)
{
    int n = 0;
    for (int i = 0; i < count; i++)
        if (!isnan(steps[i].parts[part]))
            values[n++] = steps[i].parts[part];
    return median(values, n);
}

/* The i-th all-reduce of a step; only_backward: of those that were queued during its last backward pass. Or NULL. */
static const Event *nth_all_reduce(const Step *step, int n, bool only_backward)
{
    for (const Event *e = step->events; e < step->events + step->count; e++) {
        const bool during = e->queued >= step->last_backward->start && e->queued <= step->last_backward->end;
        if (e->kind == ALL_REDUCE && (during || !only_backward) && n-- == 0)
            return e;
    }
    return NULL;
}

static void read_gradients(Recorded *recorded, const Step *steps, int count, double *values)
{
    while (nth_all_reduce(&steps[0], recorded->gradients, true) != NULL)
        recorded->gradients++;
    if (recorded->gradients > MOST_GRADIENTS)
        die("%s: more than %d buckets", recorded->path, MOST_GRADIENTS);
    recorded->bytes = alloc_or_fault((size_t)(recorded->gradients + 1) * sizeof(double));
    recorded->ready = alloc_or_fault((size_t)(recorded->gradients + 1) * sizeof(double));
    for (int g = 0; g < recorded->gradients; g++) {
        int n = 0;
        for (int i = 0; i < count; i++) {
            const Event *e = nth_all_reduce(&steps[i], g, true);
            if (e != NULL)
                values[n++] = e->queued - steps[i].last_backward->start;
        }
        recorded->bytes[g] = nth_all_reduce(&steps[0], g, true)->bytes;
        recorded->ready[g] = fmin(median(values, n), recorded->backward);
    }
}

/* A part of an all-reduce's time carries the same part of its bytes. */
static double median_overlapped(const Step *steps, int count, double *values)
{
    for (int i = 0; i < count; i++) {
        const Event *backward = steps[i].last_backward;
        values[i] = 0;
        for (const Event *e = steps[i].events; e < steps[i].events + steps[i].count; e++)
            if (e->kind == ALL_REDUCE && e->end > e->start)
                values[i] += e->bytes * overlap(e, backward->start, backward->end) / (e->end - e->start);
    }
    return median(values, count);
}

/* The first one's is mostly short, and in some steps as long as a scheduler's time slice: hence the mean. */
static void read_wakes(Recorded *recorded, const Step *steps, int count, double *values)
{
    int n = 0;
    for (int i = 0; i < count; i++) {
        const Event *e = nth_all_reduce(&steps[i], 0, true), *before = e;
        if (e != NULL)
            recorded->first_wake += (e->start - e->queued) / count;
        for (int k = 1; n < count && (e = nth_all_reduce(&steps[i], k, true)) != NULL; k++, before = e)
            if (before->end < e->queued - AT_ONCE)
                values[n++] = e->start - e->queued;
    }
    recorded->wake = median(values, n);
}

/* Seconds of the n-th all-reduce of a step; INFINITY if a rank has none. steps: rank 0's; the others' follow, each
 * `per_rank` further on. If the one before it kept all ranks busy until it began: the mean over the ranks, from end to end.
 * Else it counts from when the last rank is there. (Over TCP others have sent a part by then, so this is too short.) */
static double seconds_of_all_reduce(const Step *steps, int per_rank, int ranks, int n)
{
    double shortest = INFINITY, from_end_to_end = 0;
    bool busy = n > 0;
    for (int r = 0; r < ranks; r++) {
        const Event *e = nth_all_reduce(&steps[r * per_rank], n, false);
        const Event *before = n > 0 ? nth_all_reduce(&steps[r * per_rank], n - 1, false) : NULL;
        if (e == NULL)
            return INFINITY;
        shortest = fmin(shortest, e->end - e->start);
        busy = busy && before != NULL && e->queued <= before->end;
        from_end_to_end += busy ? (e->end - before->end) / ranks : 0;
    }
    return busy ? from_end_to_end : shortest;
}

/* The fit to relative errors says how the time divides into alpha and beta. Over TCP it finds too little: some
 * all-reduces find their data in a buffer and take next to nothing, and others wait for it. So both are made longer, by
 * one factor, until a step's all-reduces together take as long as they were measured. */
static void fit_link(Recorded *recorded, const Step *steps, int per_rank, double *values)
{
    enum { MOST = 512 };
    double bytes[MOST], seconds[MOST], fitted = 0;
    double *sums = alloc_or_fault((size_t)per_rank * sizeof *sums); /* of each step; zeroed */
    const Event *e;
    int n = 0;
    bool differ = false;
    for (; n < MOST && (e = nth_all_reduce(&steps[0], n, false)) != NULL; n++) {
        for (int i = 0; i < per_rank; i++) {
            values[i] = seconds_of_all_reduce(&steps[i], per_rank, recorded->ranks, n);
            sums[i] += values[i];
        }
        bytes[n] = e->bytes;
        seconds[n] = median(values, per_rank);
        differ = differ || bytes[n] > bytes[0] || bytes[n] < bytes[0];
    }
    AlphaBeta fit = {.beta = n > 0 ? seconds[0] / bytes[0] : 0};
    if (differ)
        fit = alpha_beta_fit(bytes, seconds, n);
    for (int i = 0; i < n; i++)
        fitted += fit.alpha + fit.beta * bytes[i];
    int whole = 0; /* steps in which every rank has all of them */
    for (int i = 0; i < per_rank; i++)
        if (sums[i] < INFINITY)
            sums[whole++] = sums[i];
    if (whole == 0)
        die("%s: the ranks have different all-reduces in every step", recorded->path);
    const double longer = fitted > 0 ? median(sums, whole) / fitted : 1;
    recorded->alpha = longer * fit.alpha;
    recorded->beta = longer * fit.beta;
    free(sums);
}

/* Within a step, the slowest rank is behind the mean by the spread times largest_of_ranks(). */
static double find_spread(const Step *steps, int per_rank, int ranks, double *values)
{
    for (int i = 0; i < per_rank; i++) {
        double sum = 0, most = 0;
        for (int r = 0; r < ranks; r++) {
            sum += steps[r * per_rank + i].computing;
            most = fmax(most, steps[r * per_rank + i].computing);
        }
        values[i] = most * ranks / sum - 1;
    }
    return median(values, per_rank) / largest_of_ranks(ranks);
}

static void keep_steps(Recorded *recorded, const Step *steps, int per_rank)
{
    recorded->step_count = per_rank;
    recorded->steps = alloc_or_fault((size_t)per_rank * sizeof *recorded->steps);
    for (int i = 0; i < per_rank; i++) {
        double seconds = 0, forward = 0, backward = 0, most = 0, queued = 0, last = 0;
        for (int r = 0; r < recorded->ranks; r++) {
            const Step *step = &steps[r * per_rank + i];
            seconds += step->seconds / recorded->ranks;
            forward += step->parts[FORWARD] / recorded->ranks;
            backward += step->parts[BACKWARD] / recorded->ranks;
            most = fmax(most, step->parts[FORWARD]);
            const Event *first = nth_all_reduce(step, 0, true);
            const double when = first != NULL ? first->queued : 0;
            queued += when / recorded->ranks;
            last = fmax(last, when);
        }
        recorded->steps[i] = (RecordedStep){seconds, forward, backward, most - forward, last - queued};
    }
}

Recorded trace_read(const char *path)
{
    Recorded recorded = {.path = path};
    Event *events = NULL;
    const int event_count = read_events(path, &events);
    Step *steps = alloc_or_fault((size_t)(event_count + 1) * sizeof *steps);
    const int count = find_steps(path, events, event_count, steps);
    double *values = alloc_or_fault((size_t)count * sizeof *values);
    recorded.ranks = steps[count - 1].rank + 1;
    recorded.forward = median_part(steps, count, FORWARD, values);
    recorded.backward = median_part(steps, count, BACKWARD, values);
    recorded.scaling = median_part(steps, count, SCALING, values);
    recorded.optimizer = median_part(steps, count, OPTIMIZER, values);
    recorded.left = median_part(steps, count, LEFT, values);
    read_gradients(&recorded, steps, count, values);
    recorded.overlapped = median_overlapped(steps, count, values);
    read_wakes(&recorded, steps, count, values);
    if (count % recorded.ranks == 0)
        keep_steps(&recorded, steps, count / recorded.ranks);
    if (recorded.ranks > 1 && count % recorded.ranks == 0) {
        recorded.spread = find_spread(steps, count / recorded.ranks, recorded.ranks, values);
        fit_link(&recorded, steps, count / recorded.ranks, values);
    }
    free(values);
    free(steps);
    free(events);
    return recorded;
}

double trace_taken(const Recorded *recorded, double forward_passes)
{
    double *taken = alloc_or_fault((size_t)(recorded->step_count + 1) * sizeof *taken);
    for (int i = 0; i < recorded->step_count; i++)
        taken[i] = recorded->steps[i].backward - forward_passes * recorded->steps[i].forward;
    const double middle = median(taken, recorded->step_count);
    free(taken);
    return middle;
}

void trace_free(Recorded *recorded)
{
    free(recorded->bytes);
    free(recorded->ready);
    free(recorded->steps);
}
