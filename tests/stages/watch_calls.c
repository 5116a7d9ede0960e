/* watch_calls.c: the linker calls these functions in place of the process group's. */
#include "watch_calls.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "expect.h"
#include "given.h"
#include "mpi_main.h"

/* ---- what the watch knows of them ---- */

static int started;                       /* sums of buckets, in this backward pass */
static Work *in_flight[MAX_EVENTS];       /* reduce-scatters that the stage has not waited for */
static int in_flight_count;
static const Parameter *must_not_wait_in; /* calls_must_not_wait() */
static int started_before_event;          /* when that event began */
static bool in_before_backward;           /* ddp_before_backward() is running */
char watch_title[224];

int calls_started(void)
{
    return started;
}

int calls_in_flight(void)
{
    return in_flight_count;
}

static void note_end(const Work *work)
{
    int i = 0;
    while (i < in_flight_count && in_flight[i] != work)
        i++;
    if (i < in_flight_count)
        in_flight[i] = in_flight[--in_flight_count];
}

/* Works of which work_test() has said no in this event, or in this ddp_after_backward(). */
typedef struct Asked {
    const Work *work;
    int times, ended_before; /* `ended` at the last time */
} Asked;
static Asked asked[MAX_EVENTS];
static bool may_wait; /* calls_may_wait() */
static int waited_by_asking, waited_by_waiting, ended; /* ended: those that were waited for, or of which it said yes */

void calls_must_not_wait(const Parameter *in)
{
    must_not_wait_in = in;
    started_before_event = started;
    memset(asked, 0, sizeof asked);
}

void calls_may_wait(bool begins)
{
    may_wait = begins;
    memset(asked, 0, sizeof asked);
}

void calls_take_waiting(int *without_a_wait, int *by_a_wait)
{
    *without_a_wait = waited_by_asking;
    *by_a_wait = waited_by_waiting;
    waited_by_asking = waited_by_waiting = 0;
}

static Asked *asked_of(const Work *work)
{
    int i = 0;
    while (i < MAX_EVENTS - 1 && asked[i].work != work && asked[i].work != NULL)
        i++;
    asked[i].work = work;
    return &asked[i];
}

void watch_set_title(const char *text)
{
    snprintf(watch_title, sizeof watch_title, "%s%s", *text != '\0' ? ": " : "", text);
}

void watch_before_backward(bool begins)
{
    in_before_backward = begins;
}

/* While rank 0 is held, no all-reduce of this rank can be done, so a stage that waits now would wait for ever. */
static void check_does_not_wait(const char *call)
{
    if (must_not_wait_in != NULL)
        fail_msg("rank %d: %s was called in the gradient-ready event of %s, so backward waits until every rank has "
                 "sent this bucket: nothing is hidden. Start it in an event, with a function that ends in _async(), "
                 "and wait for it %s%s", job_rank(), call, must_not_wait_in->name,
                 LOCKSTEP_STAGE < 5 ? "in ddp_after_backward()" : "in gradient_needed() or ddp_after_backward()", watch_title);
}

/* Checks only calls that wait in every case, so that the result does not depend on which rank is faster. */
static void check_before_backward_does_not_wait(const char *call)
{
    if (in_before_backward)
        fail_msg("rank %d: %s was called in ddp_before_backward(), so backward begins only when all ranks have reached "
                 "this call: nothing is hidden meanwhile. Start a bucket of unused parameters there, with "
                 "a function that ends in _async(), and wait for it in ddp_after_backward()%s", job_rank(), call, watch_title);
}

Work *__real_pg_all_reduce_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                                 ReduceOp op, const char *carries);
void __real_pg_all_reduce(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                          const char *carries);
Work *__real_pg_reduce_scatter_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                                     ReduceOp op, const char *carries);
void __real_pg_reduce_scatter(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                              const char *carries);
void __real_pg_broadcast(ProcessGroup *pg, void *buffer, size_t count, DType dtype, int root, const char *carries);
void __real_pg_all_gather(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                          const char *carries);
Work *__real_pg_all_gather_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                                 const char *carries);
void __real_pg_barrier(ProcessGroup *pg);
bool __real_work_test(Work *work);
void __real_work_wait(Work *work);

/* ---- the order "given" (given.h): an all-reduce of bucket N starts when those of all buckets before it have ---- */

typedef struct Launch {
    ProcessGroup *pg;
    const void *send;
    void *receive;
    size_t count;
    DType dtype;
    ReduceOp op;
    const char *carries;
    bool is_early; /* called, and not started */
    Work *work;    /* once it is started */
} Launch;

static Launch early[MAX_EVENTS]; /* by bucket: in this backward pass it was called before its turn */

void calls_forget(void)
{
    started = in_flight_count = 0;
    may_wait = false;
    memset(early, 0, sizeof early);
}

static void start(Launch *launch)
{
    started++;
    launch->is_early = false;
    launch->work = __real_pg_all_reduce_async(launch->pg, launch->send, launch->receive, launch->count, launch->dtype,
                                              launch->op, launch->carries);
}

/* The stage gets the address of an early launch as its Work. This is the real one; it is started now if the stage waits
 * for it before its turn. */
static Work *real_work(Work *work)
{
    for (int b = 0; b < MAX_EVENTS; b++) {
        if (work != (Work *)&early[b])
            continue;
        if (early[b].is_early)
            start(&early[b]);
        return early[b].work;
    }
    return work;
}

Work *__wrap_pg_all_reduce_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                                 ReduceOp op, const char *carries)
{
    int bucket;
    Launch launch = {pg, send, receive, count, dtype, op, carries, false, NULL};
    if (is_given("order") && sscanf(carries, "bucket %d", &bucket) == 1 && bucket > started && bucket < MAX_EVENTS) {
        launch.is_early = true;
        early[bucket] = launch;
        return (Work *)&early[bucket];
    }
    start(&launch);
    while (started < MAX_EVENTS && early[started].is_early)
        start(&early[started]);
    return launch.work;
}

/* ---- the stage's waits, and blocking calls ---- */

void __wrap_pg_all_reduce(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                          const char *carries)
{
    started++;
    check_does_not_wait("pg_all_reduce(), which blocks,");
    check_before_backward_does_not_wait("pg_all_reduce(), which blocks,");
    __real_pg_all_reduce(pg, send, receive, count, dtype, op, carries);
}

Work *__wrap_pg_reduce_scatter_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                                     ReduceOp op, const char *carries)
{
    started++;
    Work *work = __real_pg_reduce_scatter_async(pg, send, receive, count, dtype, op, carries);
    CHECK(in_flight_count < MAX_EVENTS, "more reduce-scatters than the test can hold");
    return in_flight[in_flight_count++] = work;
}

void __wrap_pg_reduce_scatter(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                              const char *carries)
{
    started++;
    check_does_not_wait("pg_reduce_scatter(), which blocks,");
    check_before_backward_does_not_wait("pg_reduce_scatter(), which blocks,");
    __real_pg_reduce_scatter(pg, send, receive, count, dtype, op, carries);
}

void __wrap_pg_broadcast(ProcessGroup *pg, void *buffer, size_t count, DType dtype, int root, const char *carries)
{
    check_does_not_wait("pg_broadcast(), which blocks,");
    check_before_backward_does_not_wait("pg_broadcast(), which blocks,");
    __real_pg_broadcast(pg, buffer, count, dtype, root, carries);
}

void __wrap_pg_all_gather(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                          const char *carries)
{
    check_does_not_wait("pg_all_gather(), which blocks,");
    check_before_backward_does_not_wait("pg_all_gather(), which blocks,");
    __real_pg_all_gather(pg, send, receive, count, dtype, carries);
}

static int gathers; /* started */

int watch_gathers(void)
{
    return gathers;
}

Work *__wrap_pg_all_gather_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                                 const char *carries)
{
    gathers++;
    return __real_pg_all_gather_async(pg, send, receive, count, dtype, carries);
}

void __wrap_pg_barrier(ProcessGroup *pg)
{
    check_does_not_wait("pg_barrier()");
    check_before_backward_does_not_wait("pg_barrier()");
    __real_pg_barrier(pg);
}

/* Works of which work_test() has said that they are done, so that their work_wait() waits in no case. */
static const Work *known_done[MAX_EVENTS];

static const Work **place_of(const Work *work)
{
    int i = 0;
    while (i < MAX_EVENTS - 1 && known_done[i] != work)
        i++;
    return &known_done[i];
}

bool __wrap_work_test(Work *work)
{
    work = real_work(work);
    const bool done = __real_work_test(work);
    if (done && *place_of(work) != work)
        *place_of(NULL) = work;
    if (must_not_wait_in == NULL && !may_wait)
        return done;
    Asked *answers = asked_of(work);
    waited_by_asking += may_wait && done && answers->times > 0 && answers->ended_before == ended;
    ended += done;
    answers->times = done ? 0 : answers->times + 1;
    answers->ended_before = ended;
    /* What is launched may be a reason to ask for the oldest again. */
    const int launches = started - started_before_event;
    if (answers->times > 1 + (launches > 1 ? launches : 1))
        check_does_not_wait("work_test(), again and again for the same collective,");
    return done;
}

void __wrap_work_wait(Work *work)
{
    work = real_work(work);
    const Work **known = place_of(work);
    const bool done = work == NULL || __real_work_test(work);
    if (!done)
        check_does_not_wait("work_wait()");
    note_end(work);
    if (may_wait && work != NULL) {
        waited_by_waiting += !done || asked_of(work)->times > 0;
        asked_of(work)->times = 0;
        ended++;
    }
    if (work != NULL && *known != work && started > 0) /* of this pass; a wait for an earlier pass is allowed */
        check_before_backward_does_not_wait("work_wait()");
    if (*known == work)
        *known = NULL;
    __real_work_wait(work);
}
