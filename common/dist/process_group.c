/* process_group.c: numbers the collectives, keeps them in order, times them, and emulates a slower link. */
#include "dist/process_group.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/timeline.h"
#include "device/device.h"
#include "dist/alarm.h"
#include "dist/compare_calls.h"
#include "dist/group.h"
#include "dist/watchdog.h"

ProcessGroup *pg_create(const ProcessGroupOptions *options)
{
    ProcessGroup *pg = alloc_or_fault(sizeof *pg);
    pg->options = *options;
    pg->measuring = true;
    pthread_mutex_init(&pg->lock, NULL);
    pg_mpi_open(pg);
    if (pg->world_size > 1)
        pg->watchdog = watchdog_start(pg);
    return pg;
}

void pg_destroy(ProcessGroup *pg)
{
    worker_check_all_waited_for(pg, "this rank leaves the group");
    worker_stop(pg);
    departure_announce(pg);
    watchdog_stop(pg->watchdog); /* from here on the others' watchdogs are enough: they know that this rank has left */
    departures_await(pg);
    pg->backend->close(pg);
    pthread_mutex_destroy(&pg->lock);
    free(pg);
}

int pg_rank(const ProcessGroup *pg)
{
    return pg->rank;
}

int pg_world_size(const ProcessGroup *pg)
{
    return pg->world_size;
}

int pg_local_rank(const ProcessGroup *pg)
{
    return pg->local_rank;
}

const char *pg_backend(const ProcessGroup *pg)
{
    return pg->backend->name;
}

void pg_set_options(ProcessGroup *pg, const ProcessGroupOptions *options)
{
    worker_drain(pg);
    pg->options = *options;
    watchdog_set_timeout(pg->watchdog, options->timeout);
    pg_mpi_prepare(pg);
}

void pg_set_algorithm(ProcessGroup *pg, AllReduceAlgorithm algorithm)
{
    ProcessGroupOptions options = pg->options;
    options.algorithm = algorithm;
    pg_set_options(pg, &options);
}

const char *operation_name(Operation operation)
{
    static const char *const names[] = {"barrier", "broadcast", "all_reduce", "all_gather", "reduce_scatter"};
    return names[operation];
}

/* What the collective leaves in each rank's buffers. */
size_t collective_bytes(const ProcessGroup *pg, const Collective *collective)
{
    size_t bytes = collective->count * dtype_size(collective->dtype);
    bool per_rank = collective->operation == OP_ALL_GATHER || collective->operation == OP_REDUCE_SCATTER;
    return per_rank ? bytes * (size_t)pg->world_size : bytes;
}

/* note: emulated-link
 * Seconds that a ring over the emulated link needs: N-1 steps of 1/N of the bytes each for a reduce-scatter or
 * an all-gather, and an all-reduce is one after the other. A broadcast goes along the ring in small pieces, so that
 * all ranks pass it on at the same time; but each of them must receive all of it. */
static double link_seconds(const ProcessGroup *pg, const Collective *collective)
{
    if (pg->options.wire_gbps <= 0 || pg->world_size == 1)
        return 0;
    double steps = (pg->world_size - 1) * (collective->operation == OP_ALL_REDUCE ? 2.0 : 1.0);
    double bytes_per_second = pg->options.wire_gbps * 1e9 / 8;
    double bytes = (double)collective_bytes(pg, collective);
    double share = collective->operation == OP_BROADCAST ? 1 : steps / pg->world_size; /* that goes over each link */
    return share * bytes / bytes_per_second + steps * pg->options.wire_latency;
}

void group_carry_out(ProcessGroup *pg, const Collective *collective)
{
    CHECK(collective->count <= PTRDIFF_MAX, "%s number %ld (%s) of %zu elements: a count that was negative as an int?",
          operation_name(collective->operation), collective->sequence, collective->carries, collective->count);
    watchdog_begin(pg->watchdog, collective);
    if (collective->background)
        device_event_wait(collective->ready);
    device_synchronize(); /* what is sent has been computed: from here on, this rank has come, and waits for others */
    watchdog_ready(pg->watchdog);
    if (pg->options.debug_collectives)
        compare_calls(pg, collective);
    double start = now_seconds(); /* from here on, time is communication's, real or emulated */
    device_range_begin("%s %s", operation_name(collective->operation), collective->carries);
    pg->backend->run(pg, collective);
    device_range_end();
    watchdog_link(pg->watchdog);
    if (pg->measuring)
        sleep_seconds(start + link_seconds(pg, collective) - now_seconds());
    watchdog_end(pg->watchdog);
    if (!pg->measuring)
        return;
    double end = now_seconds();
    timeline_add(ROW_COMMUNICATION, start, end, "%s %s", operation_name(collective->operation), collective->carries);
    int64_t bytes = (int64_t)collective_bytes(pg, collective);
    bool out_of_place = collective->operation == OP_ALL_REDUCE && collective->send != collective->receive;
    pthread_mutex_lock(&pg->lock);
    pg->counters.collectives++;
    pg->counters.bytes += bytes;
    if (out_of_place && bytes > pg->counters.out_of_place)
        pg->counters.out_of_place = bytes;
    pg->counters.in_flight += end - start;
    pthread_mutex_unlock(&pg->lock);
}

void group_add_exposed(ProcessGroup *pg, double seconds)
{
    if (!pg->measuring)
        return;
    pthread_mutex_lock(&pg->lock);
    pg->counters.exposed += seconds;
    pthread_mutex_unlock(&pg->lock);
}

/* A blocking collective runs on the caller's thread, after whatever the communication thread still has to do: the
 * order of calls is the order on the wire, on every rank. */
static void run_blocking(ProcessGroup *pg, Collective collective)
{
    double start = now_seconds();
    worker_drain(pg);
    collective.sequence = pg->sequence++;
    group_carry_out(pg, &collective);
    group_add_exposed(pg, now_seconds() - start);
}

void pg_barrier(ProcessGroup *pg)
{
    run_blocking(pg, (Collective){.operation = OP_BARRIER, .dtype = DTYPE_F32, .carries = ""});
}

void pg_barrier_without_timeout(ProcessGroup *pg)
{
    double timeout = watchdog_set_timeout(pg->watchdog, INFINITY);
    pg_barrier(pg);
    watchdog_set_timeout(pg->watchdog, timeout);
}

void pg_broadcast(ProcessGroup *pg, void *buffer, size_t count, DType dtype, int root, const char *carries)
{
    run_blocking(pg, (Collective){.operation = OP_BROADCAST, .send = buffer, .receive = buffer, .count = count,
                                  .dtype = dtype, .root = root, .carries = carries});
}

void pg_all_reduce(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                   const char *carries)
{
    run_blocking(pg, (Collective){.operation = OP_ALL_REDUCE, .send = send, .receive = receive, .count = count,
                                  .dtype = dtype, .op = op, .carries = carries});
}

void pg_all_gather(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, const char *carries)
{
    run_blocking(pg, (Collective){.operation = OP_ALL_GATHER, .send = send, .receive = receive, .count = count,
                                  .dtype = dtype, .carries = carries});
}

void pg_reduce_scatter(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                       const char *carries)
{
    run_blocking(pg, (Collective){.operation = OP_REDUCE_SCATTER, .send = send, .receive = receive, .count = count,
                                  .dtype = dtype, .op = op, .carries = carries});
}

Work *pg_all_reduce_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                          const char *carries)
{
    Collective collective = {.operation = OP_ALL_REDUCE, .send = send, .receive = receive, .count = count,
                             .dtype = dtype, .op = op, .carries = carries, .sequence = pg->sequence++,
                             .ready = device_event_record(), .background = true};
    return worker_submit(pg, &collective);
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
