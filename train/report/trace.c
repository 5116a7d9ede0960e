/* trace.c: gathers the ranks' timelines, one after the other, and writes them in Chrome's "Trace Event Format", as a
 * JSON array. In it, ph X is an interval, i an instant, and M names a row. */
#include "train/report/trace.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "device/device.h"
#include "train/files/atomic_file.h"

/* Structures are sent as 64-bit words, because collectives count elements and have no dtype for bytes. */
#define WORDS(type) (sizeof(type) / sizeof(int64_t))
_Static_assert(sizeof(TimelineEvent) % sizeof(int64_t) == 0, "an event is a whole number of words");

/* Add this to this rank's clock to get rank 0's; in seconds. */
static double clock_offset;

/* ---- clocks ---- */

typedef struct ClockReading {
    double seconds;   /* now_seconds() just after a barrier */
    uint64_t machine; /* equal on all ranks that share a clock */
} ClockReading;

/* Linux draws a random boot_id when a machine starts. If it cannot be read, the rank counts as a machine of its own. */
static uint64_t machine_identity(int rank)
{
    char text[64] = "";
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY);
    ssize_t length = file >= 0 ? read(file, text, sizeof text) : 0;
    if (file >= 0)
        close(file);
    return length > 0 ? fnv1a(FNV1A_START, text, (size_t)length) : (uint64_t)rank;
}

/* Ranks of one machine share its clock. Clocks of different machines have different zeros. All ranks leave a barrier at
 * nearly the same moment, so what their clocks show then is taken for the same time. The error is the difference in
 * leaving the barrier: some ten microseconds on a good network. So smaller differences between machines mean nothing.
 * Drift of the clocks during the run is not corrected. */
void trace_start(ProcessGroup *pg)
{
    int ranks = pg_world_size(pg), rank = pg_rank(pg);
    ClockReading *readings = alloc_or_fault((size_t)ranks * sizeof *readings);
    ClockReading mine = {.machine = machine_identity(rank)};
    pg_barrier(pg); /* sets up connections, which takes longer on some ranks */
    pg_barrier(pg);
    mine.seconds = now_seconds();
    pg_all_gather(pg, &mine, readings, WORDS(ClockReading), DTYPE_I64, "clocks");
    int first = 0; /* first rank of this machine, for one offset on all its ranks: 0 on rank 0's machine */
    while (readings[first].machine != mine.machine)
        first++;
    clock_offset = readings[0].seconds - readings[first].seconds;
    free(readings);
    timeline_enable();
}

/* ---- writing ---- */

/* Writes one line and frees the object. The first event has no comma before it. */
static void write_object(AtomicFile *file, cJSON *object, bool first)
{
    char *text = cJSON_PrintUnformatted(object);
    CHECK(text != NULL, "out of memory for %s", file->path);
    const char *before = first ? "[\n" : ",\n";
    atomic_write(file, before, strlen(before));
    atomic_write(file, text, strlen(text));
    cJSON_free(text);
    cJSON_Delete(object);
}

/* Writes a metadata event: the name of a process (row < 0) or of its thread `row`. */
static void write_name(AtomicFile *file, int rank, int row, const char *name, bool first)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "name", row < 0 ? "process_name" : "thread_name");
    cJSON_AddStringToObject(object, "ph", "M");
    cJSON_AddNumberToObject(object, "pid", rank);
    if (row >= 0)
        cJSON_AddNumberToObject(object, "tid", row);
    cJSON_AddStringToObject(cJSON_AddObjectToObject(object, "args"), "name", name);
    write_object(file, object, first);
}

static void write_names(AtomicFile *file, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        char name[32];
        snprintf(name, sizeof name, "rank %d", rank);
        write_name(file, rank, -1, name, rank == 0);
        write_name(file, rank, ROW_COMPUTE, "compute", false);
        write_name(file, rank, ROW_COMMUNICATION, "communication", false);
        if (strcmp(device_name(), "cuda") == 0) {
            write_name(file, rank, ROW_GPU, "GPU", false);
            write_name(file, rank, ROW_GPU_COMMUNICATION, "GPU, communication", false);
        }
    }
}

/* Rounds to the nanosecond: more digits would be noise. */
static double microseconds(double seconds)
{
    return round(1e9 * seconds) / 1e3;
}

static void write_event(AtomicFile *file, int rank, const TimelineEvent *event, double zero)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "name", event->name);
    cJSON_AddNumberToObject(object, "pid", rank);
    cJSON_AddNumberToObject(object, "tid", event->row);
    cJSON_AddNumberToObject(object, "ts", microseconds(event->start - zero));
    if (event->end > event->start) {
        cJSON_AddStringToObject(object, "ph", "X");
        cJSON_AddNumberToObject(object, "dur", microseconds(event->end - event->start));
    } else {
        cJSON_AddStringToObject(object, "ph", "i");
        cJSON_AddStringToObject(object, "s", "t"); /* drawn in its own row only */
    }
    cJSON *args = cJSON_AddObjectToObject(object, "args");
    if (event->step >= 0)
        cJSON_AddNumberToObject(args, "step", event->step);
    write_object(file, object, false);
}

/* ---- gathering ---- */

typedef struct TimelineSize {
    int64_t count;
    double earliest; /* start of the first event, on rank 0's clock; INFINITY if there is none */
    double offset;   /* the rank's clock_offset */
} TimelineSize;

static TimelineSize measure(const TimelineEvent *events, int count)
{
    TimelineSize size = {.count = count, .earliest = INFINITY, .offset = clock_offset};
    for (int i = 0; i < count; i++)
        size.earliest = fmin(size.earliest, events[i].start + clock_offset);
    return size;
}

/* Sends the events of `rank` to all ranks; rank 0 writes them (file: NULL elsewhere). own: this rank's. Collective. */
static void gather_events(ProcessGroup *pg, int rank, const TimelineEvent *own, TimelineSize size, double zero,
                          AtomicFile *file)
{
    TimelineEvent *events = alloc_or_fault((size_t)size.count * sizeof *events);
    if (rank == pg_rank(pg))
        memcpy(events, own, (size_t)size.count * sizeof *events);
    pg_broadcast(pg, events, (size_t)size.count * WORDS(TimelineEvent), DTYPE_I64, rank, "timeline");
    for (int64_t i = 0; file != NULL && i < size.count; i++)
        write_event(file, rank, &events[i], zero - size.offset);
    pg_barrier_without_timeout(pg); /* rank 0 may write longer than --timeout */
    free(events);
}

void trace_write(ProcessGroup *pg, const char *path)
{
    int ranks = pg_world_size(pg);
    const TimelineEvent *events = NULL; /* no events are added meanwhile, because measuring is off */
    const int count = timeline_events(&events);
    TimelineSize mine = measure(events, count);
    TimelineSize *sizes = alloc_or_fault((size_t)ranks * sizeof *sizes);
    pg_all_gather(pg, &mine, sizes, WORDS(TimelineSize), DTYPE_I64, "sizes of timelines");
    double zero = INFINITY;
    for (int rank = 0; rank < ranks; rank++)
        zero = fmin(zero, sizes[rank].earliest);
    AtomicFile file;
    bool writes = pg_rank(pg) == 0;
    if (writes) {
        atomic_open(&file, path);
        write_names(&file, ranks);
    }
    for (int rank = 0; rank < ranks; rank++)
        gather_events(pg, rank, events, sizes[rank], zero, writes ? &file : NULL);
    if (writes) {
        atomic_write(&file, "\n]\n", 3);
        atomic_commit(&file);
    }
    free(sizes);
}
