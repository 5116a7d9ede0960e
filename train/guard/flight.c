/* flight.c: keeps this rank's latest collectives, and appends them to a file when the job hangs. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/group.h"
#include "train/guard/guard.h"
#include "train/guard/parts.h"

#define KEPT 32

typedef struct Entry {
    Collective collective;
    char carries[48];           /* a copy, without what JSON would have to escape */
    double called, ready, done; /* now_seconds(); 0: not yet */
} Entry;

static struct Flight {
    const char *path; /* NULL: nothing is recorded */
    int rank, ranks;
    pthread_mutex_t lock; /* guards all below; the watchdog's thread writes the file */
    Entry entries[KEPT];  /* of collective number n, at [n % KEPT] */
    long next;            /* the number after the latest one */
} flight = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- observer functions ---- */

static void called(void *self, const Collective *collective)
{
    (void)self;
    pthread_mutex_lock(&flight.lock);
    Entry *entry = &flight.entries[collective->sequence % KEPT];
    *entry = (Entry){.collective = *collective, .called = now_seconds()};
    snprintf(entry->carries, sizeof entry->carries, "%s", collective->carries);
    for (char *c = entry->carries; *c != '\0'; c++)
        if (*c == '"' || *c == '\\' || *c < ' ')
            *c = '?';
    flight.next = collective->sequence + 1;
    pthread_mutex_unlock(&flight.lock);
}

static void ready(void *self, const Collective *collective)
{
    (void)self;
    pthread_mutex_lock(&flight.lock);
    flight.entries[collective->sequence % KEPT].ready = now_seconds();
    pthread_mutex_unlock(&flight.lock);
}

static void done(void *self, const Collective *collective, double start, double end)
{
    (void)self, (void)start;
    pthread_mutex_lock(&flight.lock);
    flight.entries[collective->sequence % KEPT].done = end;
    pthread_mutex_unlock(&flight.lock);
}

/* ---- the file: a line of JSON for each collective of each rank ---- */

/* "null" if it has not happened. */
static void print_age(char *text, size_t size, double now, double time)
{
    if (time == 0)
        snprintf(text, size, "null");
    else
        snprintf(text, size, "%.3f", now - time);
}

/* Returns the length. */
static int print_entry(char *text, size_t size, const Entry *entry, double now)
{
    const Collective *c = &entry->collective;
    char since_called[32], since_ready[32], since_done[32];
    print_age(since_called, sizeof since_called, now, entry->called);
    print_age(since_ready, sizeof since_ready, now, entry->ready);
    print_age(since_done, sizeof since_done, now, entry->done);
    return snprintf(text, size, "{\"rank\":%d,\"ranks\":%d,\"number\":%ld,\"collective\":\"%s\",\"carries\":\"%s\","
                    "\"count\":%zu,\"dtype\":\"%s\",\"in_background\":%s,\"called_s_ago\":%s,\"ready_s_ago\":%s,"
                    "\"done_s_ago\":%s}\n", flight.rank, flight.ranks, c->sequence, operation_name(c->operation),
                    entry->carries, c->count, dtype_name(c->dtype), c->background ? "true" : "false", since_called,
                    since_ready, since_done);
}

/* All ranks append at the same time, so each does it by one write(). */
void flight_write(void)
{
    char text[KEPT * 400];
    int length = 0;
    if (flight.path == NULL)
        return;
    pthread_mutex_lock(&flight.lock);
    const double now = now_seconds();
    for (long n = flight.next > KEPT ? flight.next - KEPT : 0; n < flight.next; n++)
        length += print_entry(text + length, sizeof text - (size_t)length, &flight.entries[n % KEPT], now);
    pthread_mutex_unlock(&flight.lock);
    int file = open(flight.path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || write(file, text, (size_t)length) != length)
        job_say_fault("--flight-recorder: cannot write %s: %s", flight.path, strerror(errno));
    if (file >= 0)
        close(file);
}

void guard_record_flight(ProcessGroup *pg, const char *path)
{
    flight.path = path;
    flight.rank = pg_rank(pg);
    flight.ranks = pg_world_size(pg);
    own_work_begin("writes", path);
    int file = open(path, O_WRONLY | O_TRUNC | O_CREAT | O_CLOEXEC, 0666); /* what an earlier run has left */
    if (file < 0)
        die("--flight-recorder: cannot write %s: %s", path, strerror(errno));
    close(file);
    own_work_end();
    pg_observe(pg, &(GroupObserver){.called = called, .ready = ready, .done = done});
}
