/* trace.c: adds collectives to a rank's timeline. Gathers the ranks' timelines, one after the other, and writes them in
 * Chrome's "Trace Event Format", as a JSON array: ph X is an interval, i an instant, s and f are the two ends of an
 * arrow, C has numbers to draw as areas, and M is metadata. */
#include "train/report/trace.h"

#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "comm/observer.h"
#include "device/device.h"
#include "train/files/atomic_file.h"

/* ---- collectives in the timeline ---- */

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

/* The name of --allreduce's algorithm, or "nccl". Barriers and broadcasts use MPI's own. */
static const char *algorithm_of(const ProcessGroup *pg, const Collective *c)
{
    if (device_owns(c->send) && strcmp(pg_backend(pg), "nccl") == 0)
        return "nccl";
    if (c->operation == OP_BARRIER || c->operation == OP_BROADCAST)
        return "mpi";
    return all_reduce_name(all_reduce_algorithm(pg_algorithm(pg), c->dtype));
}

/* pg_name() without its part in brackets. */
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
                           .bytes = (int64_t)collective_bytes(c, pg_world_size(self)), .queued = c->queued};
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
    timeline_observe(part);
}

void timeline_observe(ProcessGroup *pg)
{
    pg_observe(pg, &(GroupObserver){.self = pg, .ready = begin_range, .carried = end_range, .done = add_collective,
                                    .waited = add_wait, .split = observe_part});
}

/* Structures are sent as 64-bit words, because collectives count elements and have no dtype for bytes. */
#define WORDS(type) (sizeof(type) / sizeof(int64_t))
_Static_assert(sizeof(TimelineEvent) % sizeof(int64_t) == 0, "an event is a whole number of words");

/* ---- clocks ---- */

#define BARRIERS 16 /* that measure the clocks' offsets */

static double clock_offset; /* rank 0's clock minus this rank's, in seconds */
static double clock_error;  /* the largest error of any rank's offset */

typedef struct ClockReadings {
    double before[BARRIERS], after[BARRIERS]; /* now_seconds() around each barrier */
    uint64_t machine;                         /* equal on ranks that share a clock */
} ClockReadings;

/* Linux draws a random boot_id when a machine starts. If it cannot be read, the rank counts as a separate machine. */
static uint64_t machine_identity(int rank)
{
    char text[64] = "";
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY);
    ssize_t length = file >= 0 ? read(file, text, sizeof text) : 0;
    if (file >= 0)
        close(file);
    return length > 0 ? fnv1a(FNV1A_START, text, (size_t)length) : (uint64_t)rank;
}

/* note: clock-alignment
 * Ranks of one machine share its clock. Clocks of different machines have different zeros. At the moment when the last
 * rank enters a barrier, all ranks are inside. On every rank's clock this moment is between `before` and `after`, so
 * each barrier gives limits for the offset to rank 0's clock, and a quick barrier gives close limits. The error of
 * their middle is at most half their distance: about the time of a message. Drift during the run is not corrected. */
void trace_start(ProcessGroup *pg)
{
    ClockReadings *all = alloc_or_fault((size_t)pg_world_size(pg) * sizeof *all);
    ClockReadings mine = {.machine = machine_identity(pg_rank(pg))};
    pg_set_measuring(pg, false); /* an emulated link would only delay the barriers */
    for (int i = 0; i < BARRIERS; i++) {
        mine.before[i] = now_seconds();
        pg_barrier(pg);
        mine.after[i] = now_seconds();
    }
    pg_all_gather(pg, &mine, all, WORDS(ClockReadings), DTYPE_I64, "clocks");
    int first = 0; /* first rank of this machine, for one offset on all its ranks: 0 on rank 0's machine */
    while (all[first].machine != mine.machine)
        first++;
    double upper = first > 0 ? INFINITY : 0, lower = -upper;
    for (int i = 0; i < BARRIERS; i++) {
        lower = fmax(lower, all[0].before[i] - all[first].after[i]);
        upper = fmin(upper, all[0].after[i] - all[first].before[i]);
    }
    clock_offset = (upper + lower) / 2;
    clock_error = (upper - lower) / 2;
    pg_all_reduce(pg, &clock_error, &clock_error, 1, DTYPE_F64, REDUCE_MAX, "errors of clocks");
    pg_set_measuring(pg, true);
    free(all);
    timeline_enable();
}

/* ---- events that belong together ---- */

/* The wait for event i, in its step or the next one; NULL: it is not a collective, or no step has waited for it. */
static const TimelineEvent *find_wait(const TimelineEvent *events, int64_t count, int64_t i)
{
    for (int64_t j = i + 1; j < count && events[i].sequence > 0 && events[j].step <= events[i].step + 1; j++)
        if (events[j].row == ROW_WAITING && events[j].sequence == events[i].sequence &&
            strcmp(events[j].group, events[i].group) == 0)
            return &events[j];
    return NULL;
}

/* The gradient-ready event that launched collective i: the last event of the row "compute" before the call. NULL: the
 * last event is another one, or i is a gather, or not a collective. (This row is sorted by ends.) */
static const TimelineEvent *find_launch(const TimelineEvent *events, int64_t i)
{
    int64_t j = i - 1;
    if (events[i].sequence == 0 || strncmp(events[i].name, "all_gather ", 11) == 0)
        return NULL;
    while (j >= 0 && (events[j].row != ROW_COMPUTE || events[j].end > events[i].queued))
        j--;
    return j >= 0 && strncmp(events[j].name, "gradient-ready ", 15) == 0 ? &events[j] : NULL;
}

/* ---- writing ---- */

/* Writes ' as ", so that formats resemble their output. The program's names contain neither. */
__attribute__((format(printf, 2, 3))) static void print(AtomicFile *file, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (char *quote = text; (quote = strchr(quote, '\'')) != NULL;)
        *quote = '"';
    atomic_write(file, text, strlen(text));
}

static void write_memory(AtomicFile *file, int rank, const TimelineEvent *sample, double zero)
{
    static const char *const kinds[MEMORY_KINDS] = {"weights", "gathered_weights", "operands", "gradients",
                                                    "whole_gradients", "optimizer", "activations"};
    print(file, ",\n{'name':'memory','ph':'C','pid':%d,'ts':%.3f,'args':{", rank, 1e6 * (sample->start - zero));
    for (int kind = 0; kind < MEMORY_KINDS; kind++)
        print(file, "%s'%s':%lld", kind > 0 ? "," : "", kinds[kind], (long long)sample->memory[kind]);
    print(file, "}}");
}

static void write_head(AtomicFile *file, int ranks)
{
    static const char *const rows[] = {"compute", "communication", "GPU", "GPU, communication"};
    const int row_count = device_kind() == DEVICE_CUDA ? 4 : 2;
    print(file, "[\n{'name':'clock_alignment','ph':'M','pid':0,'args':{'error_us':%.3f}}", 1e6 * clock_error);
    for (int rank = 0; rank < ranks; rank++) {
        print(file, ",\n{'name':'process_name','ph':'M','pid':%d,'args':{'name':'rank %d'}}", rank, rank);
        for (int row = 0; row < row_count; row++)
            print(file, ",\n{'name':'thread_name','ph':'M','pid':%d,'tid':%d,'args':{'name':'%s'}}", rank, row,
                  rows[row]);
    }
}

/* A group of pg_split() has its own row, because its collectives overlap those of the world. */
static int row_of(const TimelineEvent *event)
{
    const uint64_t hash = fnv1a(FNV1A_START, event->group, strlen(event->group));
    return event->group[0] == '\0' ? event->row : ROW_WAITING + 1 + (int)(hash % 1000000);
}

/* zero: in seconds, on the rank's clock; the file has microseconds, to the nanosecond. wait: in the step of the
 * collective; or NULL. */
static void write_event(AtomicFile *file, int rank, const TimelineEvent *event, const TimelineEvent *wait, double zero)
{
    const int step = wait != NULL ? wait->step : event->step;
    if (event->group[0] != '\0')
        print(file, ",\n{'name':'thread_name','ph':'M','pid':%d,'tid':%d,'args':{'name':'communication, %s'}}", rank,
              row_of(event), event->group);
    print(file, ",\n{'name':'%s','pid':%d,'tid':%d,'ts':%.3f,", event->name, rank, row_of(event),
          1e6 * (event->start - zero));
    if (event->end > event->start)
        print(file, "'ph':'X','dur':%.3f,'args':{", 1e6 * (event->end - event->start));
    else
        print(file, "'ph':'i','s':'t','args':{"); /* drawn in its own row only */
    if (event->sequence > 0)
        print(file, "'bytes':%lld,'sequence':%lld,'algorithm':'%s','queued':%.3f%s", (long long)event->bytes,
              (long long)event->sequence, event->algorithm, 1e6 * (event->queued - zero), step >= 0 ? "," : "");
    if (wait != NULL)
        print(file, "'waited_from':%.3f,'waited':%.3f,", 1e6 * (wait->start - zero),
              event->end > wait->start ? 1e6 * (wait->end - wait->start) : 0);
    if (step >= 0)
        print(file, "'step':%d", step);
    print(file, "}}");
}

static void write_arrow(AtomicFile *file, int rank, const TimelineEvent *from, const TimelineEvent *to, double zero)
{
    const char *end = ",\n{'name':'launch','cat':'launch','ph':'%s','id':%lld,'pid':%d,'tid':%d,'ts':%.3f%s}";
    const long long id = 1000000000LL * rank + to->sequence;
    print(file, end, "s", id, rank, from->row, 1e6 * (from->start - zero), "");
    print(file, end, "f", id, rank, row_of(to), 1e6 * (to->start - zero), ",'bp':'e'");
}

/* ---- gathering ---- */

typedef struct TimelineSize {
    int64_t count;
    double earliest; /* start of the first event, on rank 0's clock; INFINITY if there is none */
    double offset;   /* the rank's clock_offset */
} TimelineSize;

/* Sends the events of `rank` to all ranks; rank 0 writes them (file: NULL elsewhere). own: this rank's. Numbers the
 * rank's collectives anew, in the order of their calls, because the trace lacks some. Collective. */
static void gather_events(ProcessGroup *pg, int rank, const TimelineEvent *own, TimelineSize size, double zero,
                          AtomicFile *file)
{
    TimelineEvent *events = alloc_or_fault((size_t)size.count * sizeof *events);
    if (rank == pg_rank(pg))
        memcpy(events, own, (size_t)size.count * sizeof *events);
    pg_broadcast(pg, events, (size_t)size.count * WORDS(TimelineEvent), DTYPE_I64, rank, "timeline");
    local_work_begin("writes", "the trace");
    for (int64_t i = 0, sequence = 0; file != NULL && i < size.count; i++) {
        if (events[i].row == ROW_MEMORY)
            write_memory(file, rank, &events[i], zero - size.offset);
        if (events[i].row == ROW_WAITING || events[i].row == ROW_MEMORY)
            continue;
        const TimelineEvent *wait = find_wait(events, size.count, i), *launch = find_launch(events, i);
        if (events[i].sequence > 0)
            events[i].sequence = ++sequence;
        write_event(file, rank, &events[i], wait, zero - size.offset);
        if (launch != NULL)
            write_arrow(file, rank, launch, &events[i], zero - size.offset);
    }
    local_work_end();
    free(events);
}

void trace_write(ProcessGroup *pg, const char *path)
{
    int ranks = pg_world_size(pg);
    const TimelineEvent *events = NULL; /* no thread adds events now, because measuring is off */
    const int count = timeline_events(&events);
    TimelineSize mine = {.count = count, .earliest = INFINITY, .offset = clock_offset};
    for (int i = 0; i < count; i++)
        mine.earliest = fmin(mine.earliest, events[i].start + clock_offset);
    TimelineSize *sizes = alloc_or_fault((size_t)ranks * sizeof *sizes);
    pg_all_gather(pg, &mine, sizes, WORDS(TimelineSize), DTYPE_I64, "sizes of timelines");
    double zero = INFINITY;
    for (int rank = 0; rank < ranks; rank++)
        zero = fmin(zero, sizes[rank].earliest);
    AtomicFile file;
    bool writes = pg_rank(pg) == 0;
    if (writes) {
        atomic_open(&file, path);
        write_head(&file, ranks);
    }
    for (int rank = 0; rank < ranks; rank++)
        gather_events(pg, rank, events, sizes[rank], zero, writes ? &file : NULL);
    if (writes) {
        atomic_write(&file, "\n]\n", 3);
        atomic_commit(&file);
    }
    free(sizes);
}
