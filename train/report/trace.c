/* trace.c: gathers the ranks' timelines piece by piece and writes them in Chrome's trace event format.
 * Format: "Trace Event Format", the JSON array form: ph X is an interval, i an instant, M a name for a row. */
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
#include "base/timeline.h"
#include "device/device.h"
#include "train/files/atomic_file.h"

/* Events travel as 64-bit words, for collectives count elements and have no dtype for bytes. */
#define EVENT_WORDS (sizeof(TimelineEvent) / sizeof(int64_t))
_Static_assert(sizeof(TimelineEvent) % sizeof(int64_t) == 0, "an event is a whole number of words");

/* Events per rank in one all-gather: bounds the memory, however long the run was. */
#define PIECE 4096

/* Seconds to add to this rank's clock to get rank 0's. */
static double clock_offset;

/* receive (world size * count words) = every rank's send; both host memory. */
static void gather_words(ProcessGroup *pg, const void *send, void *receive, size_t count, const char *carries)
{
    size_t bytes = count * sizeof(int64_t);
    size_t ranks = (size_t)pg_world_size(pg);
    void *device_send = device_alloc(bytes);
    void *device_receive = device_alloc(ranks * bytes);
    device_from_host(device_send, send, bytes);
    pg_all_gather(pg, device_send, device_receive, count, DTYPE_I64, carries);
    device_to_host(receive, device_receive, ranks * bytes);
    device_free(device_send);
    device_free(device_receive);
}

/* ---- clocks ---- */

typedef struct ClockReading {
    double seconds;   /* now_seconds() just after a barrier */
    uint64_t machine; /* equal on all ranks that share a clock */
} ClockReading;

/* Linux draws a boot_id when a machine starts. Where it cannot be read, each rank counts as a machine of its own. */
static uint64_t machine_identity(int rank)
{
    char text[64] = "";
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY);
    ssize_t length = file >= 0 ? read(file, text, sizeof text) : 0;
    if (file >= 0) {
        close(file);
    }
    return length > 0 ? fnv1a(FNV1A_START, text, (size_t)length) : (uint64_t)rank;
}

/* Ranks of one machine share its clock, whose zero is some moment in the past. Another machine's clock has another
 * zero. All ranks leave a barrier at nearly the same moment, so we take what their clocks say then for the same
 * time. The error is the difference in leaving the barrier: some ten microseconds on a good network, so do not
 * read more than that into arrows between machines. Drift of the clocks during the run is not corrected. */
void trace_start(ProcessGroup *pg)
{
    int ranks = pg_world_size(pg), rank = pg_rank(pg);
    ClockReading *readings = alloc_or_fault((size_t)ranks * sizeof *readings);
    ClockReading mine = {.machine = machine_identity(rank)};
    pg_barrier(pg); /* sets up connections, which takes longer on some ranks */
    pg_barrier(pg);
    mine.seconds = now_seconds();
    gather_words(pg, &mine, readings, sizeof mine / sizeof(int64_t), "clocks");
    int first = 0; /* the first rank of this machine: all its ranks take the same offset, 0 on rank 0's machine */
    while (readings[first].machine != mine.machine) {
        first++;
    }
    clock_offset = readings[0].seconds - readings[first].seconds;
    free(readings);
    timeline_enable();
}

/* ---- gathering ---- */

/* A copy of this rank's events on rank 0's clock; owned by the caller. A copy, as the collectives that gather the
 * events are events themselves and would move the timeline. */
static TimelineEvent *copy_events(int64_t *count)
{
    const TimelineEvent *events = NULL;
    *count = timeline_events(&events);
    TimelineEvent *copy = alloc_or_fault((size_t)*count * sizeof *copy);
    for (int64_t i = 0; i < *count; i++) {
        copy[i] = events[i];
        copy[i].start += clock_offset;
        copy[i].end += clock_offset;
    }
    return copy;
}

typedef struct TimelineSize {
    int64_t count;
    double earliest; /* start of the first event; meaningless if there is none */
} TimelineSize;

static TimelineSize measure(const TimelineEvent *events, int64_t count)
{
    TimelineSize size = {.count = count};
    for (int64_t i = 0; i < count; i++) {
        if (i == 0 || events[i].start < size.earliest) {
            size.earliest = events[i].start;
        }
    }
    return size;
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

/* A metadata event: says how a process (row < 0) or a thread of it is called. */
static void write_name(AtomicFile *file, int rank, int row, const char *name, bool first)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "name", row < 0 ? "process_name" : "thread_name");
    cJSON_AddStringToObject(object, "ph", "M");
    cJSON_AddNumberToObject(object, "pid", rank);
    if (row >= 0) {
        cJSON_AddNumberToObject(object, "tid", row);
    }
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

/* To the nanosecond: more digits would only be noise. */
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
    if (event->step >= 0) {
        cJSON_AddNumberToObject(args, "step", event->step);
    }
    write_object(file, object, false);
}

/* Every rank's events first ... first + PIECE - 1 come to all ranks; rank 0 writes them (file is NULL elsewhere). */
static void gather_piece(ProcessGroup *pg, const TimelineEvent *events, const TimelineSize *sizes, int64_t first,
                         double zero, AtomicFile *file)
{
    int ranks = pg_world_size(pg);
    TimelineEvent *mine = alloc_or_fault(PIECE * sizeof *mine); /* zeroed behind this rank's last event */
    TimelineEvent *all = alloc_or_fault((size_t)ranks * PIECE * sizeof *all);
    int64_t left = sizes[pg_rank(pg)].count - first;
    if (left > 0) {
        memcpy(mine, events + first, (size_t)(left < PIECE ? left : PIECE) * sizeof *mine);
    }
    gather_words(pg, mine, all, PIECE * EVENT_WORDS, "timelines");
    for (int rank = 0; file != NULL && rank < ranks; rank++) {
        for (int64_t i = 0; i < PIECE && first + i < sizes[rank].count; i++) {
            write_event(file, rank, &all[rank * PIECE + i], zero);
        }
    }
    free(mine);
    free(all);
}

void trace_write(ProcessGroup *pg, const char *path)
{
    int ranks = pg_world_size(pg);
    int64_t count = 0;
    TimelineEvent *events = copy_events(&count);
    TimelineSize mine = measure(events, count);
    TimelineSize *sizes = alloc_or_fault((size_t)ranks * sizeof *sizes);
    gather_words(pg, &mine, sizes, sizeof mine / sizeof(int64_t), "sizes of timelines");
    double zero = INFINITY;
    int64_t most = 0;
    for (int rank = 0; rank < ranks; rank++) {
        most = sizes[rank].count > most ? sizes[rank].count : most;
        zero = sizes[rank].count > 0 ? fmin(zero, sizes[rank].earliest) : zero;
    }
    bool writes = pg_rank(pg) == 0;
    AtomicFile file;
    if (writes) {
        atomic_open(&file, path);
        write_names(&file, ranks);
    }
    for (int64_t first = 0; first < most; first += PIECE) {
        gather_piece(pg, events, sizes, first, zero, writes ? &file : NULL);
    }
    if (writes) {
        atomic_write(&file, "\n]\n", 3);
        atomic_commit(&file);
    }
    free(sizes);
    free(events);
}
