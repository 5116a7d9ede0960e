/* watchdog.c: a thread on each rank that detects when a collective takes too long, and reports which ranks are waiting
 * and which rank is missing.
 *
 * note: watchdog
 * In a hang, every rank but one usually waits in the same collective, and none of them knows which rank is missing. So
 * the first rank that reaches its time-out raises an alarm, and each rank's watchdog prints what its own rank is doing.
 * Look at the rank that prints "has not reached". A rank that prints nothing is stopped or disconnected.
 * A call alone does not count: on a GPU, a rank calls a collective when the work that computes its data is only queued.
 * A rank whose GPU has not finished this work is late itself, and must not report that it waits for others.
 * If no rank is late, but their calls differ, each rank waits in a different collective. An alarm names its collective,
 * and a rank for which this number was a different collective reports it.
 * There is no need to wait for the time-out if the missing rank has left the group (pg_destroy()): parts.h,
 * "leaving", says how that is known.
 */
#include "train/guard/parts.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "comm/group.h"

#define LOOK_EVERY 0.1   /* seconds between two checks */
#define SUSPENDED 1.0    /* seconds without a check: the process was suspended, for example by Slurm */
#define TIME_TO_REPORT 1 /* seconds for the other ranks to print their lines before the job ends */
#define NEWS 0.3         /* seconds until a rank knows at the latest that another one does work of its own */
#define RECENT 64        /* number of the latest collectives whose fingerprints are kept */

/* What a rank does with `collective`, in this order. */
typedef enum Progress {
    IDLE,              /* the collective is done, or there was none yet */
    WAITS_FOR_DEVICE,  /* called, but the device has not computed yet what it sends */
    WAITS_FOR_RANKS,
    WAITS_FOR_LINK     /* all ranks have taken part: it only waits for the emulated link */
} Progress;

typedef struct Watchdog {
    ProcessGroup *pg;
    pthread_t thread;
    pthread_mutex_t lock;  /* guards all below */
    pthread_cond_t stopping;
    bool stop;
    double timeout;        /* the group's option, which only the training thread may read */
    Progress progress;
    Collective collective; /* the current collective, or the last one */
    char carries[64];      /* a copy, because the name may be freed before it is printed */
    double since;          /* start of this progress */
    double called;         /* time of the call, from which the time-out counts */
    bool any;              /* there was at least one collective */
    long recent[RECENT];   /* fingerprint of collective number n, at [n % RECENT] */
    int left_rank;         /* the first rank to leave the group ... */
    long left_after;       /* ... after this many collectives; LONG_MAX: all ranks are there */
    double *own_work;      /* by rank: seconds of own work that this rank has heard of; owned */
    bool own_work_is_long; /* this rank's work takes longer than the time-out, and has been noted */
} Watchdog;

/* "all_reduce number 7 (bucket 2, 65536 x float32)". Hold the lock when you call it. */
static void name_collective(const Watchdog *watchdog, char *text, size_t size)
{
    const Collective *c = &watchdog->collective;
    if (c->operation != OP_BARRIER)
        snprintf(text, size, "%s number %ld (%s, %zu x %s)", operation_name(c->operation), c->sequence,
                 watchdog->carries, c->count, dtype_name(c->dtype));
    else if (watchdog->carries[0] != '\0')
        snprintf(text, size, "barrier number %ld (%s)", c->sequence, watchdog->carries);
    else
        snprintf(text, size, "barrier number %ld", c->sequence);
}

/* Describes in one line what this rank is doing. Hold the lock when you call it. `sequence`: the collective that
 * hangs. */
static void describe(const Watchdog *watchdog, long sequence, char *text, size_t size)
{
    double seconds = now_seconds() - watchdog->since, since;
    char last[200], own_work[120];
    name_collective(watchdog, last, sizeof last);
    own_work_seconds(own_work, sizeof own_work, &since);
    if (watchdog->progress == WAITS_FOR_RANKS)
        snprintf(text, size, "has been waiting for %.1f s in %s for other ranks", seconds, last);
    else if (watchdog->progress == WAITS_FOR_LINK)
        snprintf(text, size, "has been waiting for %.1f s in %s for the emulated link: --wire is too slow for this "
                 "collective", seconds, last);
    else if (watchdog->progress == WAITS_FOR_DEVICE && watchdog->collective.sequence > sequence)
        snprintf(text, size, "has done its part of collective number %ld: it is not the one that is missing", sequence);
    else if (watchdog->progress == WAITS_FOR_DEVICE)
        snprintf(text, size, "has not reached collective number %ld: its device has not finished, in %.1f s, what %s "
                 "is to send", watchdog->collective.sequence, seconds, last);
    else if (watchdog->any && watchdog->collective.sequence >= sequence)
        snprintf(text, size, "has done its part of %s %.1f s ago: it is not the one that is missing", last, seconds);
    else if (watchdog->any)
        snprintf(text, size, "has not reached collective number %ld; its last one, %s, was done %.1f s ago, and it %s",
                 sequence, last, seconds, own_work[0] != '\0' ? own_work : "has been computing or stuck since");
    else
        snprintf(text, size, "has not reached collective number %ld, nor any other", sequence);
}

/* Reports it if another rank waits in a collective that was, or is, a different one here: then no rank is late, but
 * their calls differ. A rank cannot know this before it has reached that number itself, but then the other rank can: it
 * hears this rank's alarm. */
static void compare_with_own(Watchdog *watchdog, int rank, Alarm alarm)
{
    pthread_mutex_lock(&watchdog->lock);
    long latest = watchdog->any ? watchdog->collective.sequence : -1;
    bool known = alarm.sequence >= 0 && alarm.sequence <= latest && alarm.sequence > latest - RECENT;
    bool differs = known && watchdog->recent[alarm.sequence % RECENT] != alarm.fingerprint;
    pthread_mutex_unlock(&watchdog->lock);
    if (differs)
        job_say_fault("collective number %ld, in which rank %d waits, was a different one here: the ranks do not make "
                      "the same calls in the same order; --debug-collectives names the first one that differs",
                      alarm.sequence, rank);
}

/* Prints this rank's line, gives the other ranks time to print theirs, and ends the job. heard: the alarm of rank
 * `from`; NULL: this rank is the first whose time-out is over. A rank that has made its call always raises the alarm,
 * so that all ranks can compare their calls. */
static _Noreturn void report_and_abort(Watchdog *watchdog, const Alarm *heard, int from)
{
    char text[600];
    pthread_mutex_lock(&watchdog->lock);
    long sequence = watchdog->collective.sequence;
    Alarm mine = {.sequence = sequence, .fingerprint = watchdog->recent[sequence % RECENT]};
    bool has_called = watchdog->progress != IDLE;
    describe(watchdog, heard != NULL ? heard->sequence : sequence, text, sizeof text);
    const double timeout = watchdog->timeout;
    pthread_mutex_unlock(&watchdog->lock);
    if (has_called)
        alarm_raise(watchdog->pg, mine);
    job_say_fault("%s (--timeout %g)", text, timeout);
    flight_write();
    if (heard != NULL)
        compare_with_own(watchdog, from, *heard);
    Alarm theirs;
    for (double end = now_seconds() + TIME_TO_REPORT; now_seconds() < end; sleep_seconds(LOOK_EVERY))
        while (alarm_was_raised(watchdog->pg, &from, &theirs))
            compare_with_own(watchdog, from, theirs);
    job_abort(1);
}

/* This rank waits in a collective in which a rank that has left the group will not take part. */
static _Noreturn void report_departed_rank(Watchdog *watchdog)
{
    char text[600];
    pthread_mutex_lock(&watchdog->lock);
    describe(watchdog, 0, text, sizeof text);
    int rank = watchdog->left_rank;
    long after = watchdog->left_after;
    pthread_mutex_unlock(&watchdog->lock);
    job_say_fault("%s, but rank %d has left the group after %ld collectives: did it run out of data before the others, "
                  "or skip a call?", text, rank, after);
    flight_write();
    sleep_seconds(TIME_TO_REPORT);
    job_abort(1);
}

/* These seconds do not count as waiting. (A call that another thread has made in this time counts from now at the
 * latest.) Hold the lock when you call it. */
static void leave_out(Watchdog *watchdog, double seconds)
{
    const double now = now_seconds();
    watchdog->called = fmin(watchdog->called + seconds, now);
    watchdog->since = fmin(watchdog->since + seconds, now);
}

/* Time during which this process was suspended does not count as waiting, because the other ranks were probably
 * suspended, too. Hold the lock when you call it. looked: time of the last check; set to now. */
static void skip_suspended_time(Watchdog *watchdog, double *looked)
{
    const double now = now_seconds(), gap = now - *looked;
    if (gap > SUSPENDED)
        leave_out(watchdog, gap);
    *looked = now;
}

/* Receives the departures of other ranks. Hold the lock when you call it. */
static void look_for_departures(Watchdog *watchdog)
{
    int rank;
    long collectives;
    while (departure_was_announced(watchdog->pg, &rank, &collectives)) {
        if (collectives < watchdog->left_after) {
            watchdog->left_rank = rank;
            watchdog->left_after = collectives;
        }
    }
}

/* The time of other ranks' own work does not count as waiting. Tells them of this rank's. Hold the lock when you call
 * it. */
static void exchange_own_work(Watchdog *watchdog)
{
    int rank;
    char what[120];
    double seconds, since;
    while (own_work_was_announced(watchdog->pg, &rank, &seconds)) {
        leave_out(watchdog, seconds - watchdog->own_work[rank]);
        watchdog->own_work[rank] = seconds;
    }
    own_work_announce(watchdog->pg, own_work_seconds(what, sizeof what, &since));
    const double timeout = watchdog->timeout;
    if (what[0] != '\0' && now_seconds() - since > timeout && !watchdog->own_work_is_long) {
        advise("rank 0 %s, for longer than --timeout %g so far; the other ranks wait for it", what, timeout);
        watchdog->own_work_is_long = true; /* one line is enough */
    }
}

static void *watch(void *argument)
{
    Watchdog *watchdog = argument;
    double looked = now_seconds();
    pthread_mutex_lock(&watchdog->lock);
    while (!watchdog->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        long nanoseconds = until.tv_nsec + (long)(LOOK_EVERY * 1e9);
        until.tv_sec += nanoseconds / 1000000000;
        until.tv_nsec = nanoseconds % 1000000000;
        pthread_cond_timedwait(&watchdog->stopping, &watchdog->lock, &until);
        skip_suspended_time(watchdog, &looked);
        exchange_own_work(watchdog);
        bool too_late = watchdog->progress != IDLE && now_seconds() - watchdog->called > watchdog->timeout + NEWS;
        long sequence = watchdog->collective.sequence;
        Alarm alarm;
        int from;
        look_for_departures(watchdog);
        bool missing_rank_has_left = watchdog->progress == WAITS_FOR_RANKS && sequence >= watchdog->left_after;
        pthread_mutex_unlock(&watchdog->lock);
        if (missing_rank_has_left)
            report_departed_rank(watchdog);
        if (alarm_was_raised(watchdog->pg, &from, &alarm))
            report_and_abort(watchdog, &alarm, from);
        if (too_late)
            report_and_abort(watchdog, NULL, watchdog->pg->rank);
        pthread_mutex_lock(&watchdog->lock);
    }
    pthread_mutex_unlock(&watchdog->lock);
    return NULL;
}

/* ---- observer functions ---- */

/* Equal on all ranks that make the same call. */
static long fingerprint(const Collective *c)
{
    uint64_t hash = fnv1a(FNV1A_START, c->carries, strlen(c->carries));
    const size_t numbers[] = {c->operation, c->dtype, c->op, (size_t)c->root, c->count};
    return (long)(fnv1a(hash, numbers, sizeof numbers) >> 1);
}

static void called(void *self, const Collective *collective)
{
    Watchdog *watchdog = self;
    long now = fingerprint(collective);
    pthread_mutex_lock(&watchdog->lock);
    watchdog->collective = *collective;
    snprintf(watchdog->carries, sizeof watchdog->carries, "%s", collective->carries);
    watchdog->recent[collective->sequence % RECENT] = now;
    watchdog->any = true;
    watchdog->progress = WAITS_FOR_DEVICE;
    watchdog->timeout = watchdog->pg->options.timeout;
    watchdog->called = watchdog->since = now_seconds();
    pthread_mutex_unlock(&watchdog->lock);
}

static void set_progress(Watchdog *watchdog, Progress progress)
{
    pthread_mutex_lock(&watchdog->lock);
    watchdog->progress = progress;
    watchdog->since = now_seconds();
    pthread_mutex_unlock(&watchdog->lock);
}

static void ready(void *self, const Collective *collective)
{
    (void)collective;
    set_progress(self, WAITS_FOR_RANKS);
}

static void carried(void *self, const Collective *collective)
{
    (void)collective;
    set_progress(self, WAITS_FOR_LINK);
}

static void done(void *self, const Collective *collective, double start, double end)
{
    (void)collective, (void)start, (void)end;
    set_progress(self, IDLE);
}

static void leaving(void *self)
{
    Watchdog *watchdog = self;
    ProcessGroup *pg = watchdog->pg;
    departure_announce(pg);
    pthread_mutex_lock(&watchdog->lock); /* the others' watchdogs are enough now: they know which ranks have left */
    watchdog->stop = true;
    pthread_cond_signal(&watchdog->stopping);
    pthread_mutex_unlock(&watchdog->lock);
    pthread_join(watchdog->thread, NULL);
    pthread_mutex_destroy(&watchdog->lock);
    pthread_cond_destroy(&watchdog->stopping);
    free(watchdog->own_work);
    free(watchdog);
    departures_await(pg);
}

void watchdog_start(ProcessGroup *pg)
{
    Watchdog *watchdog = alloc_or_fault(sizeof *watchdog);
    *watchdog = (Watchdog){.pg = pg, .timeout = pg->options.timeout, .left_after = LONG_MAX};
    watchdog->own_work = alloc_or_fault((size_t)pg->world_size * sizeof *watchdog->own_work);
    pthread_mutex_init(&watchdog->lock, NULL);
    /* By default a condition's limit is a time of day, and the watchdog would sleep for an hour if somebody, or a time
     * server, sets the clock back by one. */
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&watchdog->stopping, &attributes);
    pthread_condattr_destroy(&attributes);
    CHECK(pthread_create(&watchdog->thread, NULL, watch, watchdog) == 0, "the watchdog could not be started");
    pg_observe(pg, &(GroupObserver){.self = watchdog, .called = called, .ready = ready, .carried = carried,
                                    .done = done, .leaving = leaving});
}
