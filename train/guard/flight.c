/* flight.c: keeps this rank's latest collectives, and appends them to a file when the job hangs. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/observer.h"
#include "train/guard/guard.h"
#include "train/guard/parts.h"

#define KEPT 32

typedef struct Entry {
    Collective collective;
    char carries[48];           /* a copy, without characters that JSON must escape */
    double called, ready, done; /* now_seconds(); 0: not yet */
} Entry;

typedef struct Flight {
    const ProcessGroup *pg;
    Entry entries[KEPT]; /* collective number n is at [n % KEPT] */
    long next;           /* number of the next collective */
    struct Flight *more;
} Flight;

static const char *file_path;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all flights; the watchdog's thread writes the file */
static Flight *flights; /* owned; NULL: nothing is recorded */

static void called(void *self, const Collective *collective)
{
    Flight *flight = self;
    pthread_mutex_lock(&lock);
    Entry *entry = &flight->entries[collective->sequence % KEPT];
    *entry = (Entry){.collective = *collective, .called = now_seconds()};
    snprintf(entry->carries, sizeof entry->carries, "%s", collective->carries);
    for (char *c = entry->carries; *c != '\0'; c++)
        if (*c == '"' || *c == '\\' || *c < ' ')
            *c = '?';
    flight->next = collective->sequence + 1;
    pthread_mutex_unlock(&lock);
}

static void ready(void *self, const Collective *collective)
{
    Flight *flight = self;
    pthread_mutex_lock(&lock);
    flight->entries[collective->sequence % KEPT].ready = now_seconds();
    pthread_mutex_unlock(&lock);
}

static void done(void *self, const Collective *collective)
{
    Flight *flight = self;
    pthread_mutex_lock(&lock);
    flight->entries[collective->sequence % KEPT].done = collective->end;
    pthread_mutex_unlock(&lock);
}

static void leaving(void *self)
{
    pthread_mutex_lock(&lock);
    Flight **link = &flights;
    while (*link != self)
        link = &(*link)->more;
    *link = (*link)->more;
    pthread_mutex_unlock(&lock);
    free(self);
}

static void record_group(void *self, ProcessGroup *pg)
{
    Flight *flight = alloc_or_fault(sizeof *flight);
    (void)self;
    pthread_mutex_lock(&lock);
    *flight = (Flight){.pg = pg, .more = flights};
    flights = flight;
    pthread_mutex_unlock(&lock);
    pg_observe(pg, &(GroupObserver){.self = flight, .called = called, .ready = ready, .done = done,
                                    .leaving = leaving, .split = record_group});
}

/* Writes "null" if the event has not happened. */
static void print_age(char *text, size_t size, double now, double time)
{
    if (time == 0)
        snprintf(text, size, "null");
    else
        snprintf(text, size, "%.3f", now - time);
}

static int print_entry(char *text, size_t size, const ProcessGroup *pg, const Entry *entry, double now)
{
    const Collective *c = &entry->collective;
    char since_called[32], since_ready[32], since_done[32];
    print_age(since_called, sizeof since_called, now, entry->called);
    print_age(since_ready, sizeof since_ready, now, entry->ready);
    print_age(since_done, sizeof since_done, now, entry->done);
    return snprintf(text, size, "{\"rank\":%d,\"group\":\"%s\",\"rank_in_group\":%d,\"ranks\":%d,\"number\":%ld,"
                    "\"collective\":\"%s\",\"carries\":\"%s\",\"count\":%zu,\"dtype\":\"%s\",\"in_background\":%s,"
                    "\"called_s_ago\":%s,\"ready_s_ago\":%s,\"done_s_ago\":%s}\n", job_rank(), pg_name(pg), pg_rank(pg),
                    pg_world_size(pg), c->sequence, operation_name(c->operation), entry->carries, c->count,
                    dtype_name(c->dtype), c->background ? "true" : "false", since_called, since_ready, since_done);
}

/* All ranks append at the same time, so each makes one write() per group. */
static void write_flight(const Flight *flight, int file)
{
    char text[KEPT * 500];
    int length = 0;
    const double now = now_seconds();
    for (long n = flight->next > KEPT ? flight->next - KEPT : 0; n < flight->next; n++)
        length += print_entry(text + length, sizeof text - (size_t)length, flight->pg, &flight->entries[n % KEPT], now);
    if (file < 0 || write(file, text, (size_t)length) != length)
        job_say_fault("--flight-recorder: cannot write %s: %s", file_path, strerror(errno));
}

void flight_write(void)
{
    pthread_mutex_lock(&lock);
    int file = flights != NULL ? open(file_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    for (const Flight *flight = flights; flight != NULL; flight = flight->more)
        write_flight(flight, file);
    pthread_mutex_unlock(&lock);
    if (file >= 0)
        close(file);
}

void guard_record_flight(ProcessGroup *world, const char *path)
{
    file_path = path;
    local_work_begin("writes", path);
    int file = open(path, O_WRONLY | O_TRUNC | O_CREAT | O_CLOEXEC, 0666); /* empties it */
    if (file < 0)
        die("--flight-recorder: cannot write %s: %s", path, strerror(errno));
    close(file);
    local_work_end();
    record_group(NULL, world);
}
