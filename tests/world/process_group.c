/* process_group.c: the functions of comm/process_group.h, for ranks that are threads of one process. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "comm/buffers.h"
#include "device/device.h"
#include "world/events.h"
#include "world/groups.h"
#include "world/memory.h"
#include "world/world.h"

struct ProcessGroup {
    Group *group;
    int rank; /* in the group */
    ProcessGroup *parent, *counts_for;
    int children;
    size_t shared_bytes;
    ProcessGroupOptions options;
    CommCounters counters;
    char name[64];
};

/* The same Slot is a Work of each of its ranks. */
struct Work {
    ProcessGroup *pg;
    Slot *slot;
    int tested_at; /* this rank's records in the log at the last work_test(); 0: none, as the launch is a record */
};

/* ---- calls ---- */

static void log_call(LogKind kind, const ProcessGroup *pg, const Slot *slot)
{
    const Collective *c = &slot->parts[pg->rank].call;
    LogRecord record = {.kind = kind, .operation = c->operation, .dtype = c->dtype, .op = c->op, .count = c->count,
                        .send = c->send, .receive = c->receive, .group_size = pg->group->size, .slot = slot->number,
                        .parameter = -1};
    snprintf(record.name, sizeof record.name, "%s", slot->what[0] != '\0' ? slot->what : c->carries);
    log_add(record);
}

static bool is_done(void *work)
{
    const Slot *slot = ((Work *)work)->slot;
    return slot->parts[((Work *)work)->pg->rank].done;
}

static void wait_for(Work *work)
{
    Part *part = &work->slot->parts[work->pg->rank];
    part->waits = true;
    baton_wait(is_done, work);
    part->waits = false;
    flight_end(work->slot, work->pg->rank);
}

static void count_call(ProcessGroup *pg, const Collective *c)
{
    CommCounters *counters = &(pg->counts_for != NULL ? pg->counts_for : pg)->counters;
    const bool all_parts = c->operation == OP_ALL_GATHER || c->operation == OP_REDUCE_SCATTER;
    counters->collectives++;
    counters->bytes += (int64_t)(c->count * dtype_size(c->dtype) * (all_parts ? (size_t)pg->group->size : 1));
    if (!adds_up_gradients(c))
        return;
    if (c->background)
        counters->async_sums++;
    else
        counters->sums++;
}

static Slot *run_blocking(ProcessGroup *pg, Collective c, const char *what, int color)
{
    if (events_rank_is_in_ready(baton_rank()))
        world_fault("a blocking %s (%s) inside gradient_ready(): backward waits there for the other ranks, and nothing "
                    "overlaps; launch an asynchronous one", what[0] != '\0' ? what : operation_name(c.operation),
                    c.carries);
    baton_switch();
    Work work = {.pg = pg, .slot = slot_call(pg->group, pg->rank, &c, what, color)};
    count_call(pg, &c);
    log_call(LOG_CALL, pg, work.slot);
    wait_for(&work);
    log_call(LOG_RETURN, pg, work.slot);
    return work.slot;
}

static Work *launch(ProcessGroup *pg, Collective c)
{
    baton_switch();
    c.background = true;
    Work *work = world_alloc(sizeof *work);
    *work = (Work){.pg = pg, .slot = slot_call(pg->group, pg->rank, &c, "", 0)};
    count_call(pg, &c);
    log_call(LOG_LAUNCH, pg, work->slot);
    return work;
}

void pg_barrier(ProcessGroup *pg)
{
    run_blocking(pg, (Collective){.operation = OP_BARRIER, .dtype = DTYPE_F32, .carries = ""}, "", 0);
}

void pg_broadcast(ProcessGroup *pg, void *buffer, size_t count, DType dtype, int root, const char *carries)
{
    run_blocking(pg, (Collective){.operation = OP_BROADCAST, .send = buffer, .receive = buffer, .count = count,
                                  .dtype = dtype, .root = root, .carries = carries}, "", 0);
}

void pg_all_reduce(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                   const char *carries)
{
    run_blocking(pg, (Collective){.operation = OP_ALL_REDUCE, .send = send, .receive = receive, .count = count,
                                  .dtype = dtype, .op = op, .carries = carries}, "", 0);
}

void pg_all_gather(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, const char *carries)
{
    run_blocking(pg, (Collective){.operation = OP_ALL_GATHER, .send = send, .receive = receive, .count = count,
                                  .dtype = dtype, .carries = carries}, "", 0);
}

void pg_reduce_scatter(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                       const char *carries)
{
    run_blocking(pg, (Collective){.operation = OP_REDUCE_SCATTER, .send = send, .receive = receive, .count = count,
                                  .dtype = dtype, .op = op, .carries = carries}, "", 0);
}

Work *pg_all_reduce_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                          const char *carries)
{
    return launch(pg, (Collective){.operation = OP_ALL_REDUCE, .send = send, .receive = receive, .count = count,
                                   .dtype = dtype, .op = op, .carries = carries});
}

Work *pg_reduce_scatter_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                              const char *carries)
{
    return launch(pg, (Collective){.operation = OP_REDUCE_SCATTER, .send = send, .receive = receive, .count = count,
                                   .dtype = dtype, .op = op, .carries = carries});
}

Work *pg_all_gather_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                          const char *carries)
{
    return launch(pg, (Collective){.operation = OP_ALL_GATHER, .send = send, .receive = receive, .count = count,
                                   .dtype = dtype, .carries = carries});
}

/* ---- a Work: its memory is kept until the world ends, so that a second work_wait() is seen ---- */

static void check_work(const Work *work, const char *function)
{
    if (work == NULL)
        world_fault("%s(NULL): this collective was never launched", function);
    if (work->slot->parts[work->pg->rank].waited_for)
        world_fault("%s() of %s a second time: work_wait() has freed the handle", function,
                    work->slot->parts[work->pg->rank].call.carries);
}

bool work_test(Work *work)
{
    check_work(work, "work_test");
    const int records = log_count_of(baton_rank());
    if (work->tested_at == records)
        world_fault("work_test() of %s again, and this rank has done nothing in between: to ask until it is done is to "
                    "wait; call work_wait()", work->slot->parts[work->pg->rank].call.carries);
    work->tested_at = records;
    baton_switch();
    return is_done(work);
}

void work_wait(Work *work)
{
    check_work(work, "work_wait");
    if (events_rank_is_in_ready(baton_rank()))
        world_fault("work_wait() of %s inside gradient_ready(): backward stands still there, and nothing overlaps",
                    work->slot->parts[work->pg->rank].call.carries);
    log_call(LOG_WAIT, work->pg, work->slot);
    wait_for(work);
    log_call(LOG_WAITED, work->pg, work->slot);
}

/* ---- memory for gradients ---- */

void *pg_alloc_shared(ProcessGroup *pg, size_t bytes)
{
    void *memory = device_alloc(bytes);
    if (pg == NULL)
        return memory;
    run_blocking(pg, (Collective){.operation = OP_BARRIER, .count = bytes, .dtype = DTYPE_F32, .carries = ""},
                 "pg_alloc_shared", 0);
    pg->shared_bytes += bytes;
    flight_given(pg->group->ranks[pg->rank], memory, bytes);
    world_log_bytes(LOG_GIVEN, bytes);
    return memory;
}

void pg_free_shared(ProcessGroup *pg, void *memory)
{
    if (pg != NULL) {
        group_check_all_waited_for(pg->group, pg->rank, "pg_free_shared() frees memory");
        if (memory != NULL) {
            run_blocking(pg, (Collective){.operation = OP_BARRIER, .dtype = DTYPE_F32, .carries = ""}, "pg_free_shared",
                         0);
            const size_t bytes = flight_taken(pg->group->ranks[pg->rank], memory);
            if (bytes == 0)
                world_fault("pg_free_shared() gets memory that is not of pg_alloc_shared(), or is free already");
            pg->shared_bytes -= bytes;
            world_log_bytes(LOG_TAKEN, bytes);
        }
    }
    device_free(memory);
}

size_t pg_shared_bytes(const ProcessGroup *pg)
{
    return pg->shared_bytes;
}

/* ---- groups ---- */

static ProcessGroup *open_group(Group *group, int job_rank)
{
    ProcessGroup *pg = world_alloc(sizeof *pg);
    *pg = (ProcessGroup){.group = group, .rank = group_rank_of(group, job_rank),
                         .options = {.algorithm = ALLREDUCE_ORDERED, .timeout = INFINITY}};
    return pg;
}

ProcessGroup *pg_split(ProcessGroup *parent, int color)
{
    const Slot *slot = run_blocking(parent, (Collective){.operation = OP_BARRIER, .dtype = DTYPE_F32, .carries = ""},
                                    "pg_split", color);
    Group *group = group_find(slot, color);
    if (group == NULL) {
        int ranks[MOST_RANKS], size = 0;
        for (int r = 0; r < parent->group->size; r++)
            if (slot->parts[r].color == color)
                ranks[size++] = parent->group->ranks[r];
        group = group_make(size, ranks, slot, color);
    }
    ProcessGroup *pg = open_group(group, parent->group->ranks[parent->rank]);
    pg->parent = parent;
    parent->children++;
    snprintf(pg->name, sizeof pg->name, " of group %d (%d ranks, %d to %d)", color, group->size, group->ranks[0],
             group->ranks[group->size - 1]);
    return pg;
}

/* The groups of one split are siblings: a reduce-scatter adds over all of them. */
ProcessGroup *pg_split_copies(ProcessGroup *parent, int ranks)
{
    ProcessGroup *pg = pg_split(parent, parent->rank / ranks);
    const Slot *slot = pg->group->made_by;
    pg->counts_for = parent;
    pg_barrier(parent); /* all siblings exist */
    Group *first = group_find(slot, 0);
    if (first->siblings == NULL) {
        first->sibling_count = parent->group->size / ranks;
        first->siblings = world_alloc((size_t)first->sibling_count * sizeof(Group *));
        for (int i = 0; i < first->sibling_count; i++) {
            first->siblings[i] = group_find(slot, i);
            first->siblings[i]->siblings = first->siblings;
            first->siblings[i]->sibling_count = first->sibling_count;
        }
    }
    return pg;
}

static void close_group(ProcessGroup *pg)
{
    if (pg->children != 0)
        world_fault("%d group(s) of pg_split() are left: pg_destroy() must free them first", pg->children);
    group_check_all_waited_for(pg->group, pg->rank, "this rank leaves the group");
    world_free(pg);
}

void pg_destroy(ProcessGroup *pg)
{
    if (pg->parent == NULL)
        world_fault("pg_destroy() of the world, which lives as long as the job");
    run_blocking(pg, (Collective){.operation = OP_BARRIER, .dtype = DTYPE_F32, .carries = ""}, "pg_destroy", 0);
    pg->parent->children--;
    close_group(pg);
}

/* ---- properties ---- */

int pg_rank(const ProcessGroup *pg) { return pg->rank; }
int pg_world_size(const ProcessGroup *pg) { return pg->group->size; }
int pg_local_rank(const ProcessGroup *pg) { return pg->rank; }
int pg_job_rank(const ProcessGroup *pg, int rank) { return pg->group->ranks[rank]; }
const char *pg_name(const ProcessGroup *pg) { return pg->parent != NULL ? pg->name + strlen(" of ") : "the world"; }
const char *pg_of_group(const ProcessGroup *pg) { return pg->name; }
const char *pg_backend(const ProcessGroup *pg) { (void)pg; return "simulated"; }
int pg_hosts(const ProcessGroup *pg) { (void)pg; return 1; }
const ProcessGroupOptions *pg_options(const ProcessGroup *pg) { return &pg->options; }
AllReduceAlgorithm pg_algorithm(const ProcessGroup *pg) { return pg->options.algorithm; }
CommCounters pg_counters(ProcessGroup *pg) { return pg->counters; }
void pg_reset_counters(ProcessGroup *pg) { pg->counters = (CommCounters){0}; }
void pg_set_measuring(ProcessGroup *pg, bool on) { (void)pg, (void)on; }

/* ---- the world ---- */

typedef struct Bodies {
    Group *group;
    void (*body)(ProcessGroup *pg, void *argument);
    void *argument;
} Bodies;

static void run_rank(int rank, void *argument)
{
    const Bodies *job = argument;
    ProcessGroup *pg = open_group(job->group, rank);
    job->body(pg, job->argument);
    close_group(pg);
}

void world_run(int ranks, uint64_t seed, void (*body)(ProcessGroup *pg, void *argument), void *argument)
{
    int all[MOST_RANKS];
    for (int rank = 0; rank < ranks; rank++)
        all[rank] = rank;
    log_clear();
    Bodies job = {.group = group_make(ranks, all, NULL, 0), .body = body, .argument = argument};
    baton_run(ranks, seed, &groups_network, run_rank, &job);
    groups_free();
}

static void log_named(LogKind kind, const char *name, size_t count)
{
    LogRecord record = {.kind = kind, .count = count, .parameter = -1};
    snprintf(record.name, sizeof record.name, "%s", name);
    log_add(record);
}

void world_log(LogKind kind, const char *name)
{
    log_named(kind, name, 0);
}

void world_log_bytes(LogKind kind, size_t bytes)
{
    log_named(kind, "", bytes);
}
