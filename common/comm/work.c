/* work.c: carries one collective out; the communication thread and its queue of asynchronous collectives.
 *
 * note: communication-thread
 * MPI's non-blocking collectives make progress only inside MPI calls: if training starts an all-reduce, computes, and
 * then waits, it hides nothing. So a thread of our own carries each collective out while the training thread computes.
 * It takes the collectives from the queue in order, one at a time, so that all ranks carry out the same sequence.
 * While the training thread waits and no collective is under way, it carries out the queue itself: the collectives of a
 * small model take some microseconds, and waking another thread takes longer.
 *
 * Ownership of a Work: the training thread fills it and queues it under the lock. The thread that carries it out then
 * owns it until it sets `done` under the lock. After that the training thread owns it again.
 */
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/messages.h"
#include "device/device.h"

struct Work {
    ProcessGroup *pg;
    Collective collective;
    bool done;
    int tests;       /* calls of work_test() */
    bool waited_for; /* work_wait() has returned: the Work is in the spare list */
    Work *next;      /* in the queue, or in the spare list */
};

struct Worker {
    pthread_t thread;
    pthread_mutex_t lock;        /* guards all below */
    pthread_cond_t work_arrived; /* for the communication thread */
    pthread_cond_t work_done;    /* for the training thread */
    Work *first, *last;          /* queue */
    bool first_under_way;        /* a thread is carrying the first out */
    bool wants_thread;           /* since the queue was last empty, it got a collective that is not quick */
    Work *spare;                 /* kept for later collectives, so that a second work_wait() finds a valid Work */
    long not_waited_for;         /* works without a work_wait() so far */
    bool stop;
};

#define MAX_WORKS 100000     /* without a work_wait(): more than any model's parameters */
#define QUICK_BYTES 8192     /* in shared memory, a sum of this many takes about a microsecond */
#define TESTS_BEFORE_WAKE 64 /* after this many work_test() calls, training is polling: wake the thread */

/* ---- counting ---- */

/* note: wire-bytes
 * Bytes that each rank's link carries in one direction under a ring. A reduce-scatter or an all-gather has N-1 steps of
 * 1/N of the bytes each; an all-reduce is both, one after the other. A broadcast goes along the ring in small pieces,
 * so that all ranks pass it on at the same time, but each rank must receive all of it. The hierarchical algorithm is
 * counted as a ring of hosts: what the link of a host carries. */
static int ring_length(const ProcessGroup *pg, const Collective *collective)
{
    const bool adds = collective->operation == OP_ALL_REDUCE || collective->operation == OP_REDUCE_SCATTER;
    const AllReduceAlgorithm wanted = pg->options.algorithm;
    if (!adds && collective->operation != OP_ALL_GATHER)
        return pg->world_size;
    return (adds ? all_reduce_algorithm(wanted, collective->dtype) : wanted) == ALLREDUCE_HIERARCHICAL
               ? pg_hosts(pg) : pg->world_size;
}

static int ring_steps(const ProcessGroup *pg, const Collective *collective)
{
    return (ring_length(pg, collective) - 1) * (collective->operation == OP_ALL_REDUCE ? 2 : 1);
}

static int64_t link_bytes(const ProcessGroup *pg, const Collective *collective)
{
    int64_t bytes = (int64_t)collective_bytes(collective, pg->world_size), steps = ring_steps(pg, collective);
    if (collective->operation == OP_BROADCAST && pg->world_size > 1)
        return bytes;
    return bytes * steps / ring_length(pg, collective);
}

static ProcessGroup *counts_of(ProcessGroup *pg)
{
    return pg->counts_for != NULL ? pg->counts_for : pg;
}

/* Counts a collective that took this many seconds. */
static void count_collective(ProcessGroup *pg, const Collective *collective, double seconds)
{
    ProcessGroup *counts = counts_of(pg);
    pthread_mutex_lock(&counts->lock);
    counts->counters.collectives++;
    counts->counters.bytes += (int64_t)collective_bytes(collective, pg->world_size);
    counts->counters.wire_bytes += link_bytes(pg, collective);
    counts->counters.in_flight += seconds;
    pthread_mutex_unlock(&counts->lock);
}

void group_add_exposed(ProcessGroup *pg, const Collective *collective, double from, double until)
{
    ProcessGroup *counts = counts_of(pg);
    if (!counts->measuring)
        return;
    pthread_mutex_lock(&counts->lock);
    counts->counters.exposed += until - from;
    pthread_mutex_unlock(&counts->lock);
    Collective waited = *collective;
    waited.start = from;
    waited.end = until;
    group_notify(pg, WAITED, &waited);
}

CommCounters pg_counters(ProcessGroup *pg)
{
    pthread_mutex_lock(&pg->lock);
    CommCounters counters = pg->counters;
    pthread_mutex_unlock(&pg->lock);
    return counters;
}

void pg_reset_counters(ProcessGroup *pg)
{
    pthread_mutex_lock(&pg->lock);
    pg->counters = (CommCounters){0};
    pthread_mutex_unlock(&pg->lock);
}

void pg_set_measuring(ProcessGroup *pg, bool on)
{
    worker_drain(pg);
    pg->measuring = on;
}

/* ---- carrying a collective out ---- */

/* note: emulated-link
 * Seconds that a ring over the emulated link needs: for its bytes (wire-bytes, above), and the latency of each step. */
static double link_seconds(const ProcessGroup *pg, const Collective *collective)
{
    double bytes_per_second = pg->options.wire_gbps * 1e9 / 8;
    double latencies = ring_steps(pg, collective) * pg->options.wire_latency;
    return (double)link_bytes(pg, collective) / bytes_per_second + latencies;
}

/* Returns when `send` has been computed: from then on this rank waits for the others. It does not call
 * device_synchronize(), which on a GPU may spin on the core of the thread that queues the kernels. */
static void wait_until_computed(ProcessGroup *pg, const Collective *collective)
{
    Backoff backoff = {0};
    if (collective->background)
        device_event_wait(collective->ready);
    while (!device_is_idle())
        back_off(pg, collective, &backoff);
}

void pg_run_unobserved(ProcessGroup *pg, const Collective *collective)
{
    pg->backend->run(pg->backend, pg, collective);
}

double group_carry_out(ProcessGroup *pg, const Collective *called)
{
    Collective collective = *called;
    check_buffers(&collective, pg->rank, pg->world_size, pg->allocations, pg->name);
    group_notify(pg, CALLED, &collective);
    wait_until_computed(pg, &collective);
    group_notify(pg, READY, &collective);
    collective.start = now_seconds(); /* from here on, time is communication's, real or emulated */
    pg->backend->run(pg->backend, pg, &collective);
    group_notify(pg, CARRIED, &collective);
    collective.end = now_seconds();
    const bool measuring = counts_of(pg)->measuring;
    if (measuring && pg->options.wire_gbps > 0) {
        sleep_seconds(collective.start + link_seconds(pg, &collective) - collective.end);
        collective.end = now_seconds();
    }
    if (measuring)
        count_collective(pg, &collective, collective.end - collective.start);
    group_notify(pg, DONE, &collective);
    return collective.end;
}

/* ---- the communication thread ---- */

static bool can_carry_out(const Worker *worker)
{
    return worker->first != NULL && !worker->first_under_way;
}

/* Between these two calls, a thread carries out the first collective of the queue. It holds the lock before and after,
 * but not in between. */
static Work *begin_first(Worker *worker)
{
    Work *first = worker->first;
    worker->first_under_way = true;
    pthread_mutex_unlock(&worker->lock);
    return first;
}

static void end_first(Worker *worker)
{
    pthread_mutex_lock(&worker->lock);
    worker->first->done = true;
    worker->first = worker->first->next;
    worker->first_under_way = false;
    worker->wants_thread = worker->wants_thread && worker->first != NULL;
}

/* note: communicate
 * The communication thread: carries out the first of the queue, then the next one, and sleeps while there is none. */
static void *communicate(void *argument)
{
    ProcessGroup *pg = argument;
    Worker *worker = pg->worker;
    device_init_thread();
    pthread_mutex_lock(&worker->lock);
    for (;;) {
        while (!can_carry_out(worker) && !worker->stop)
            pthread_cond_wait(&worker->work_arrived, &worker->lock);
        if (worker->stop)
            break;
        group_carry_out(pg, &begin_first(worker)->collective);
        end_first(worker);
        pthread_cond_signal(&worker->work_done);
    }
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

static void start_worker(ProcessGroup *pg)
{
    Worker *worker = alloc_or_fault(sizeof *worker);
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->work_arrived, NULL);
    pthread_cond_init(&worker->work_done, NULL);
    pg->worker = worker;
    CHECK(pthread_create(&worker->thread, NULL, communicate, pg) == 0, "the communication thread could not be started");
}

/* Waking the thread would take longer than such a collective itself. It stays in the queue until a longer one wakes the
 * thread, or training waits for it. If there are several groups, none is quick: training may first wait in another
 * group, for a rank that waits here. */
static bool is_quick(const ProcessGroup *pg, const Collective *collective)
{
    const bool only_group = pg->parent == NULL && pg->children == 0;
    return only_group && pg->shared != NULL && pg->options.wire_gbps <= 0 && collective->ready == NULL &&
           collective_bytes(collective, pg->world_size) <= QUICK_BYTES;
}

/* note: enqueue
 * Appends the collective to the queue, and wakes the thread unless the collective is quick. */
static Work *enqueue(ProcessGroup *pg, Collective collective)
{
    if (pg->worker == NULL)
        start_worker(pg);
    Worker *worker = pg->worker;
    collective.sequence = pg->sequence++;
    collective.ready = device_event_record();
    collective.background = true;
    group_count_sum(pg, &collective);
    collective.queued = timeline_enabled() ? now_seconds() : 0;
    pthread_mutex_lock(&worker->lock);
    Work *work = worker->spare;
    if (work != NULL)
        worker->spare = work->next;
    else
        work = alloc_or_fault(sizeof *work);
    *work = (Work){.pg = pg, .collective = collective};
    worker->not_waited_for++;
    CHECK(worker->not_waited_for <= MAX_WORKS,
          "more than %d collectives have been started without a work_wait() (the last one: %s): does the loop that "
          "starts them ever stop?", MAX_WORKS, collective.carries);
    if (worker->first == NULL)
        worker->first = work;
    else
        worker->last->next = work;
    worker->last = work;
    if (!is_quick(pg, &collective)) {
        worker->wants_thread = true;
        pthread_cond_signal(&worker->work_arrived);
    }
    pthread_mutex_unlock(&worker->lock);
    return work;
}

Work *pg_all_reduce_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                          const char *carries)
{
    return enqueue(pg, (Collective){.operation = OP_ALL_REDUCE, .send = send, .receive = receive, .count = count,
                                    .dtype = dtype, .op = op, .carries = carries});
}

Work *pg_reduce_scatter_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                              const char *carries)
{
    return enqueue(pg, (Collective){.operation = OP_REDUCE_SCATTER, .send = send, .receive = receive, .count = count,
                                    .dtype = dtype, .op = op, .carries = carries});
}

Work *pg_all_gather_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                          const char *carries)
{
    return enqueue(pg, (Collective){.operation = OP_ALL_GATHER, .send = send, .receive = receive, .count = count,
                                    .dtype = dtype, .carries = carries});
}

/* A bucket that was never launched has no work. Only the caller's thread uses waited_for. */
static void check_started(const Work *work, const char *function)
{
    CHECK(work != NULL, "%s(NULL): this collective was never started; is every bucket started in every backward pass, "
          "and are its counters reset before each one?", function);
    CHECK(!work->waited_for, "%s(): %s number %ld has had its work_wait() before, which has freed the handle: "
          "call work_wait() exactly once for each collective that was started", function,
          operation_name(work->collective.operation), work->collective.sequence);
}

/* One iteration of the training thread's wait. Call it with the lock held. */
static void carry_out_or_wait(ProcessGroup *pg)
{
    Worker *worker = pg->worker;
    atomic_store(&pg->training_waits, true); /* its core is free, so the communication thread need not sleep */
    /* A collective that waits for device work is left to the communication thread, whose stream is empty. */
    if (!can_carry_out(worker) || worker->first->collective.ready != NULL) {
        pthread_cond_wait(&worker->work_done, &worker->lock);
    } else {
        group_carry_out(pg, &begin_first(worker)->collective);
        end_first(worker);
        if (worker->wants_thread)
            pthread_cond_signal(&worker->work_arrived); /* it may have found the first under way, and sleep */
    }
    atomic_store(&pg->training_waits, false);
}

bool work_test(Work *work)
{
    check_started(work, "work_test");
    pthread_mutex_lock(&work->pg->worker->lock);
    bool done = work->done;
    if (++work->tests % TESTS_BEFORE_WAKE == 0)
        pthread_cond_signal(&work->pg->worker->work_arrived); /* a quick one has not woken the thread */
    pthread_mutex_unlock(&work->pg->worker->lock);
    return done;
}

/* note: work-wait
 * Returns when the collective is done: another thread has carried it out, or this one does. */
void work_wait(Work *work)
{
    check_started(work, "work_wait");
    Worker *worker = work->pg->worker;
    double start = now_seconds();
    pthread_mutex_lock(&worker->lock);
    while (!work->done)
        carry_out_or_wait(work->pg);
    worker->not_waited_for--;
    work->waited_for = true;
    work->next = worker->spare;
    worker->spare = work;
    pthread_mutex_unlock(&worker->lock);
    group_add_exposed(work->pg, &work->collective, start, now_seconds());
}

void worker_drain(ProcessGroup *pg)
{
    Worker *worker = pg->worker;
    if (worker == NULL)
        return;
    pthread_mutex_lock(&worker->lock);
    while (worker->first != NULL)
        carry_out_or_wait(pg);
    pthread_mutex_unlock(&worker->lock);
}

void worker_check_all_waited_for(ProcessGroup *pg, const char *what)
{
    if (pg->worker == NULL)
        return;
    pthread_mutex_lock(&pg->worker->lock);
    long left = pg->worker->not_waited_for;
    pthread_mutex_unlock(&pg->worker->lock);
    CHECK(left == 0, "%s while %ld collective(s) may be under way: every collective that was started needs its "
          "work_wait() first", what, left);
}

void worker_stop(ProcessGroup *pg)
{
    Worker *worker = pg->worker;
    if (worker == NULL)
        return;
    pthread_mutex_lock(&worker->lock);
    worker->stop = true;
    pthread_cond_signal(&worker->work_arrived);
    pthread_mutex_unlock(&worker->lock);
    pthread_join(worker->thread, NULL);
    pthread_mutex_destroy(&worker->lock);
    pthread_cond_destroy(&worker->work_arrived);
    pthread_cond_destroy(&worker->work_done);
    for (Work *work = worker->spare, *next; work != NULL; work = next) {
        next = work->next;
        free(work);
    }
    free(worker);
    pg->worker = NULL;
}
