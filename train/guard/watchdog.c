/* watchdog.c: a thread on each rank that detects when a collective takes too long, and reports the state of its rank.
 *
 * note: watchdog
 * In a hang, every rank but one usually waits in the same collective, and none of them knows which rank is missing. So
 * the first rank that reaches its time-out raises an alarm, and each rank's watchdog prints the state of its own rank.
 * Look at the rank that prints "has not reached". A rank that prints nothing is stopped or disconnected. A call alone
 * does not count: on a GPU, a rank calls a collective when the work that computes its data is only queued. A rank whose
 * GPU has not finished this work is late itself, and must not report that it waits for others. If no rank is late, but
 * their calls differ, each rank waits in a different collective. An alarm names its collective, and a rank for which
 * this number was a different collective reports it. A rank may be missing in one group because it waits in another
 * group. So each rank reports on all groups in which it waits, and raises the alarm in them. If the missing rank has
 * left the group, the others do not wait for the time-out: parts.h, "leaving".
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
#include "comm/backend.h"
#include "comm/observer.h"

#define CHECK_INTERVAL 0.1 /* seconds between two checks */
#define SUSPENDED 1.0      /* seconds without a check: the process was suspended, for example by Slurm */
#define TIME_TO_REPORT 1   /* seconds for the other ranks to print their lines before the job ends */
#define ANNOUNCE_DELAY 0.3 /* seconds until a rank knows of another rank's local work at the latest */
#define RECENT 64          /* number of collectives whose fingerprints are kept */

/* The progress of a rank in a collective, in this order. */
typedef enum Progress {
    IDLE,              /* the collective is done, or there was none yet */
    WAITS_FOR_DEVICE,  /* called, but the device has not computed the payload yet */
    WAITS_FOR_RANKS,
    WAITS_FOR_LINK     /* all ranks have taken part: only the emulated link is slow */
} Progress;

enum { TAG_ALARM = 1, TAG_DEPARTURE, ALARM_NUMBERS = 2 };

/* Sent to the other ranks of a group when this one has reached its time-out in it. */
typedef struct Alarm {
    long sequence;    /* of the collective in which the rank waits */
    long fingerprint; /* a hash of operation, name, count and dtype */
} Alarm;

typedef struct Watch {
    ProcessGroup *pg;
    MPI_Comm comm;         /* of the same ranks, for alarms and departures, which arrive even if a collective hangs */
    double timeout;        /* the group's option, which only the training thread may read */
    Progress progress;
    Collective collective; /* the current collective, or the last one */
    char carries[64];      /* a copy, because the name may be freed before it is printed */
    double since;          /* start of this progress */
    double called;         /* time of the call, from which the time-out counts */
    bool any;              /* there was at least one collective */
    long recent[RECENT];   /* fingerprint of collective number n, at [n % RECENT] */
    int departures;        /* number of other ranks that have left the group */
    int left_rank;         /* the first of them, by its rank in the job */
    long left_after;       /* and its number of collectives; LONG_MAX: no rank has left */
    Alarm alarm;           /* of this rank; must outlive the message */
    struct Watch *next;
} Watch;

static struct {
    pthread_t thread; /* runs while there is a group to watch */
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t stopping;
    Watch *watches;        /* owned */
    bool ends_job;         /* from now on no watch is freed */
    double *local_work;    /* by rank of the job: announced seconds of local work; owned */
    bool local_work_is_long; /* a note has reported that this rank's work takes longer than the time-out */
} watchdog = {.lock = PTHREAD_MUTEX_INITIALIZER, .stopping = PTHREAD_COND_INITIALIZER};

/* Describes this rank's state in a group. sequence: the collective that hangs. Call it with the lock held. */
static void describe(const Watch *watch, long sequence, char *text, size_t size)
{
    double seconds = now_seconds() - watch->since, since;
    char local_work[120];
    const char *last = collective_name(watch->pg, &watch->collective), *of = pg_of_group(watch->pg);
    local_work_seconds(local_work, sizeof local_work, &since);
    if (watch->progress == WAITS_FOR_RANKS)
        snprintf(text, size, "has been waiting for %.1f s in %s for other ranks", seconds, last);
    else if (watch->progress == WAITS_FOR_LINK)
        snprintf(text, size, "has been waiting for %.1f s in %s for the emulated link: --wire is too slow for this "
                 "collective", seconds, last);
    else if (watch->progress == WAITS_FOR_DEVICE && watch->collective.sequence > sequence)
        snprintf(text, size, "has done its part of collective number %ld%s, so it is not the missing rank",
                 sequence, of);
    else if (watch->progress == WAITS_FOR_DEVICE)
        snprintf(text, size, "has not reached collective number %ld%s: in %.1f s its device has not computed the "
                 "data of %s", watch->collective.sequence, of, seconds, last);
    else if (watch->any && watch->collective.sequence >= sequence)
        snprintf(text, size, "has done its part of %s %.1f s ago, so it is not the missing rank", last, seconds);
    else if (watch->any)
        snprintf(text, size, "has not reached collective number %ld%s; its last one, %s, was done %.1f s ago, and it "
                 "%s", sequence, of, last, seconds,
                 local_work[0] != '\0' ? local_work : "has been computing or stuck since");
    else
        snprintf(text, size, "has not reached collective number %ld%s, nor any other", sequence, of);
}

/* Reports that another rank waits in a collective which was, or is, a different one here: no rank is late, but their
 * calls differ. Of two ranks, the one that is further can compare. */
static void compare_with_own(const Watch *watch, int rank, Alarm alarm)
{
    pthread_mutex_lock(&watchdog.lock);
    long latest = watch->any ? watch->collective.sequence : -1;
    bool known = alarm.sequence >= 0 && alarm.sequence <= latest && alarm.sequence > latest - RECENT;
    bool differs = known && watch->recent[alarm.sequence % RECENT] != alarm.fingerprint;
    pthread_mutex_unlock(&watchdog.lock);
    if (differs)
        job_say_fault("collective number %ld, in which rank %d waits, was a different one here: the ranks%s do not "
                      "make the same calls in the same order; --debug-collectives names the first one that differs",
                      alarm.sequence, pg_job_rank(watch->pg, rank), pg_of_group(watch->pg));
}

/* Prints this rank's line about a group. A rank that has made its call raises the alarm, so that all ranks can compare
 * their calls. heard: another rank's alarm, or NULL. */
static void report(Watch *watch, const Alarm *heard)
{
    char text[600];
    pthread_mutex_lock(&watchdog.lock);
    const long latest = watch->collective.sequence;
    const bool has_called = watch->progress != IDLE;
    watch->alarm = (Alarm){.sequence = latest, .fingerprint = watch->recent[latest % RECENT]};
    describe(watch, heard != NULL ? heard->sequence : latest, text, sizeof text);
    const double timeout = watch->timeout;
    pthread_mutex_unlock(&watchdog.lock);
    for (int rank = 0; rank < pg_world_size(watch->pg) && has_called; rank++)
        if (rank != pg_rank(watch->pg))
            message_send(watch->comm, rank, TAG_ALARM, &watch->alarm.sequence, ALARM_NUMBERS);
    job_say_fault("%s (--timeout %g)", text, timeout);
}

/* Prints this rank's lines, gives the other ranks time to print theirs, and ends the job. heard: the alarm of rank
 * `from`; NULL: this rank is the first to reach its time-out. */
static _Noreturn void report_and_abort(Watch *watch, const Alarm *heard, int from)
{
    Alarm theirs;
    report(watch, heard);
    for (Watch *other = watchdog.watches; other != NULL; other = other->next)
        if (other != watch && other->progress != IDLE)
            report(other, NULL);
    flight_write();
    if (heard != NULL)
        compare_with_own(watch, from, *heard);
    for (double end = now_seconds() + TIME_TO_REPORT; now_seconds() < end; sleep_seconds(CHECK_INTERVAL))
        for (Watch *any = watchdog.watches; any != NULL; any = any->next)
            while (message_receive(any->comm, TAG_ALARM, &from, &theirs.sequence, ALARM_NUMBERS))
                compare_with_own(any, from, theirs);
    job_abort(1);
}

/* This rank waits in a collective that lacks a rank which has left the group. */
static _Noreturn void report_departed_rank(const Watch *watch)
{
    char text[600];
    pthread_mutex_lock(&watchdog.lock);
    describe(watch, 0, text, sizeof text);
    pthread_mutex_unlock(&watchdog.lock);
    job_say_fault("%s, but rank %d has left the group after %ld collectives: did it run out of data before the others, "
                  "or skip a call?", text, watch->left_rank, watch->left_after);
    flight_write();
    sleep_seconds(TIME_TO_REPORT);
    job_abort(1);
}

/* Excludes these seconds from the waiting time. Call it with the lock held. */
static void exclude_time(double seconds)
{
    const double now = now_seconds();
    for (Watch *watch = watchdog.watches; watch != NULL; watch = watch->next) {
        watch->called = fmin(watch->called + seconds, now);
        watch->since = fmin(watch->since + seconds, now);
    }
}

/* Receives the departure of another rank, if there is one. Call it with the lock held. */
static bool receive_departure(Watch *watch)
{
    int rank;
    long collectives;
    if (!message_receive(watch->comm, TAG_DEPARTURE, &rank, &collectives, 1))
        return false;
    watch->departures++;
    if (collectives < watch->left_after) {
        watch->left_rank = pg_job_rank(watch->pg, rank);
        watch->left_after = collectives;
    }
    return true;
}

/* Excludes the time of other ranks' local work, and announces this rank's. Call it with the lock held. */
static void exchange_local_work(void)
{
    int rank;
    char what[120];
    double seconds, since, timeout = watchdog.watches->timeout;
    while (local_work_was_announced(&rank, &seconds)) {
        exclude_time(seconds - watchdog.local_work[rank]);
        watchdog.local_work[rank] = seconds;
    }
    local_work_announce(local_work_seconds(what, sizeof what, &since));
    if (what[0] != '\0' && now_seconds() - since > timeout && !watchdog.local_work_is_long) {
        advise("rank 0 %s, for longer than --timeout %g so far; the other ranks wait for it", what, timeout);
        watchdog.local_work_is_long = true; /* one line is enough */
    }
}

/* Checks one group at the time `now`, up to which suspensions are excluded: the process may have been suspended since.
 * Call it with the lock held. */
static void check_watch(Watch *watch, double now)
{
    Alarm alarm;
    int from = pg_rank(watch->pg);
    while (receive_departure(watch))
        ;
    const bool too_late = watch->progress != IDLE && now - watch->called > watch->timeout + ANNOUNCE_DELAY;
    const bool missing_rank_has_left = watch->progress == WAITS_FOR_RANKS &&
                                       watch->collective.sequence >= watch->left_after;
    const bool heard = message_receive(watch->comm, TAG_ALARM, &from, &alarm.sequence, ALARM_NUMBERS);
    if (!too_late && !missing_rank_has_left && !heard)
        return;
    watchdog.ends_job = true;
    pthread_mutex_unlock(&watchdog.lock);
    if (missing_rank_has_left)
        report_departed_rank(watch);
    report_and_abort(watch, heard ? &alarm : NULL, from);
}

static void *watch_groups(void *unused)
{
    double last_check = now_seconds();
    pthread_mutex_lock(&watchdog.lock);
    while (watchdog.watches != NULL) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        long nanoseconds = until.tv_nsec + (long)(CHECK_INTERVAL * 1e9);
        until.tv_sec += nanoseconds / 1000000000;
        until.tv_nsec = nanoseconds % 1000000000;
        pthread_cond_clockwait(&watchdog.stopping, &watchdog.lock, CLOCK_MONOTONIC, &until); /* the day's may be set */
        if (watchdog.watches == NULL)
            break;
        const double gap = now_seconds() - last_check;
        if (gap > SUSPENDED) /* the other ranks were probably suspended, too */
            exclude_time(gap);
        last_check += gap;
        exchange_local_work();
        stop_answer();
        for (Watch *watch = watchdog.watches; watch != NULL; watch = watch->next)
            check_watch(watch, last_check);
    }
    pthread_mutex_unlock(&watchdog.lock);
    return unused;
}

static long fingerprint(const Collective *c)
{
    uint64_t hash = fnv1a(FNV1A_START, c->carries, strlen(c->carries));
    const size_t numbers[] = {c->operation, c->dtype, c->op, (size_t)c->root, c->count};
    return (long)(fnv1a(hash, numbers, sizeof numbers) >> 1);
}

static void called(void *self, const Collective *collective)
{
    Watch *watch = self;
    long now = fingerprint(collective);
    pthread_mutex_lock(&watchdog.lock);
    watch->collective = *collective;
    snprintf(watch->carries, sizeof watch->carries, "%s", collective->carries);
    watch->collective.carries = watch->carries;
    watch->recent[collective->sequence % RECENT] = now;
    watch->any = true;
    watch->progress = WAITS_FOR_DEVICE;
    watch->timeout = pg_options(watch->pg)->timeout;
    watch->called = watch->since = now_seconds();
    supervise_last_call(pg_name(watch->pg), collective->sequence);
    pthread_mutex_unlock(&watchdog.lock);
}

static void set_progress(Watch *watch, Progress progress)
{
    pthread_mutex_lock(&watchdog.lock);
    watch->progress = progress;
    watch->since = now_seconds();
    pthread_mutex_unlock(&watchdog.lock);
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

static void done(void *self, const Collective *collective)
{
    (void)collective;
    set_progress(self, IDLE);
}

/* Ends the watchdog with the last group. Does not return while the job is being ended. */
static void unwatch(const Watch *watch)
{
    pthread_mutex_lock(&watchdog.lock);
    while (watchdog.ends_job)
        pthread_cond_wait(&watchdog.stopping, &watchdog.lock);
    Watch **link = &watchdog.watches;
    while (*link != watch)
        link = &(*link)->next;
    *link = watch->next;
    const bool was_last = watchdog.watches == NULL;
    pthread_cond_signal(&watchdog.stopping);
    pthread_mutex_unlock(&watchdog.lock);
    if (was_last) {
        pthread_join(watchdog.thread, NULL);
        free(watchdog.local_work);
    }
}

static void leaving(void *self)
{
    Watch *watch = self;
    const int ranks = pg_world_size(watch->pg);
    const long collectives = watch->any ? watch->collective.sequence + 1 : 0;
    MPI_Request *requests = alloc_or_fault((size_t)ranks * sizeof *requests);
    if (watchdog.watches->next == NULL)
        local_work_stop_sending(); /* messages after the departure might not be received */
    for (int rank = 0; rank < ranks; rank++) {
        requests[rank] = MPI_REQUEST_NULL;
        if (rank != pg_rank(watch->pg))
            CHECK_MPI(MPI_Isend(&collectives, 1, MPI_LONG, rank, TAG_DEPARTURE, watch->comm, &requests[rank]));
    }
    unwatch(watch);
    while (watch->departures < ranks - 1) /* no time-out: a rank that dies ends the job by itself */
        if (!receive_departure(watch))
            sleep_seconds(1e-3);
    for (int rank = 0; rank < ranks; rank++)
        CHECK_MPI(MPI_Wait(&requests[rank], MPI_STATUS_IGNORE)); /* all others wait for it */
    CHECK_MPI(MPI_Comm_free(&watch->comm));
    free(requests);
    free(watch);
}

static void start_thread(void)
{
    watchdog.local_work = alloc_or_fault((size_t)job_world_size() * sizeof *watchdog.local_work);
    CHECK(pthread_create(&watchdog.thread, NULL, watch_groups, NULL) == 0, "the watchdog could not be started");
}

void watchdog_watch(ProcessGroup *pg)
{
    Watch *watch = alloc_or_fault(sizeof *watch);
    *watch = (Watch){.pg = pg, .timeout = pg_options(pg)->timeout, .left_after = LONG_MAX};
    CHECK_MPI(MPI_Comm_dup(pg_communicator(pg), &watch->comm));
    pthread_mutex_lock(&watchdog.lock);
    const bool is_first = watchdog.watches == NULL;
    watch->next = watchdog.watches;
    watchdog.watches = watch;
    pthread_mutex_unlock(&watchdog.lock);
    if (is_first)
        start_thread();
    pg_observe(pg, &(GroupObserver){.self = watch, .called = called, .ready = ready, .carried = carried,
                                    .done = done, .leaving = leaving});
}
