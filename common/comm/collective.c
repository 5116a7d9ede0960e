/* collective.c: names of groups and collectives, the bytes of a collective, checks of its buffers, and the calls of
 * observers. */
#include "comm/collective.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/group.h"

/* ---- names ---- */

int pg_job_rank(const ProcessGroup *pg, int rank)
{
    return pg->job_ranks != NULL ? pg->job_ranks[rank] : rank; /* NULL: a group without MPI, in tests */
}

const char *pg_name(const ProcessGroup *pg)
{
    return pg->parent != NULL ? pg->name + strlen(" of ") : "the world";
}

const char *pg_of_group(const ProcessGroup *pg)
{
    return pg->name;
}

const char *operation_name(Operation operation)
{
    static const char *const names[] = {"barrier", "broadcast", "all_reduce", "all_gather", "reduce_scatter"};
    return names[operation];
}

const char *collective_name(const ProcessGroup *pg, const Collective *c)
{
    static _Thread_local char name[300];
    char what[120] = "";
    if (c->operation != OP_BARRIER)
        snprintf(what, sizeof what, " (%.63s, %zu x %s)", c->carries, c->count, dtype_name(c->dtype));
    else if (c->carries[0] != '\0')
        snprintf(what, sizeof what, " (%.63s)", c->carries);
    snprintf(name, sizeof name, "%s number %ld%s%s", operation_name(c->operation), c->sequence, what, pg->name);
    return name;
}

size_t collective_bytes(const ProcessGroup *pg, const Collective *collective)
{
    size_t bytes = collective->count * dtype_size(collective->dtype);
    bool per_rank = collective->operation == OP_ALL_GATHER || collective->operation == OP_REDUCE_SCATTER;
    return per_rank ? bytes * (size_t)pg->world_size : bytes;
}

/* ---- checks of buffers ---- */

/* Faults if the buffer, of counts * `count` elements, begins in memory of pg_alloc_shared() and ends beyond it. */
static void check_count(const ProcessGroup *pg, const Collective *c, const void *buffer, int counts)
{
    const uintptr_t begin = (uintptr_t)buffer;
    size_t left = SIZE_MAX;
    for (const Allocation *a = pg->allocations; a != NULL && left == SIZE_MAX; a = a->next) /* newest first */
        if (begin - a->begin < a->bytes) /* unsigned: huge if `begin` lies before it */
            left = (a->begin + a->bytes - begin) / dtype_size(c->dtype);
    CHECK(c->count <= left / (size_t)counts,
          "%s%s goes beyond the end of its memory, where %zu elements are left: counts are elements, never bytes; or "
          "the buffer is too small, or an earlier one of pg_alloc_shared() was freed by free()", collective_name(pg, c),
          counts > 1 ? " for each rank" : "", left);
}

/* In a reduce-scatter or an all-gather, the short buffer must be this rank's part of the long one, or not overlap
 * it. */
static void check_places(const ProcessGroup *pg, const Collective *c)
{
    const bool gathers = c->operation == OP_ALL_GATHER;
    const uintptr_t bytes = c->count * dtype_size(c->dtype), whole_bytes = bytes * (uintptr_t)pg->world_size;
    const uintptr_t whole = (uintptr_t)(gathers ? c->receive : c->send);
    const uintptr_t part = (uintptr_t)(gathers ? c->send : c->receive);
    if (!gathers && c->operation != OP_REDUCE_SCATTER)
        return;
    CHECK(part == whole + (uintptr_t)pg->rank * bytes || part + bytes <= whole || whole + whole_bytes <= part,
          "%s: its buffers overlap: in place, the short one is part %d of the long one, this rank's",
          collective_name(pg, c), pg->rank);
}

void group_check_buffers(const ProcessGroup *pg, const Collective *c)
{
    CHECK(c->count <= PTRDIFF_MAX, "%s: this count is implausible: was it negative as an int?", collective_name(pg, c));
    CHECK(c->count == 0 || (c->send != NULL && c->receive != NULL),
          "%s: a buffer is NULL, like the gradient of a frozen parameter, which needs no all-reduce, or in stage 5 a "
          "buffer that was dropped or has moved into shards", collective_name(pg, c));
    check_count(pg, c, c->send, c->operation == OP_REDUCE_SCATTER ? pg->world_size : 1);
    check_count(pg, c, c->receive, c->operation == OP_ALL_GATHER ? pg->world_size : 1);
    check_places(pg, c);
}

/* ---- observers ---- */

void group_notify(ProcessGroup *pg, Moment moment, const Collective *collective)
{
    for (int i = 0; i < pg->observer_count; i++) {
        const GroupObserver *o = &pg->observers[i];
        void (*const functions[])(void *, const Collective *) = {o->called, o->ready, o->carried, o->done, o->waited};
        if (functions[moment] != NULL)
            functions[moment](o->self, collective);
    }
}

Collective group_begin_barrier(ProcessGroup *pg, const char *what)
{
    const double now = now_seconds();
    const Collective barrier = {.operation = OP_BARRIER, .dtype = DTYPE_F32, .carries = what,
                                .sequence = pg->sequence++, .queued = now, .start = now};
    group_notify(pg, CALLED, &barrier);
    group_notify(pg, READY, &barrier); /* it sends nothing */
    return barrier;
}

void group_end_barrier(ProcessGroup *pg, Collective *barrier)
{
    group_notify(pg, CARRIED, barrier);
    barrier->end = now_seconds();
    group_notify(pg, DONE, barrier);
}

/* By the call, not by what is carried out: copies.c adds a reduce-scatter up a second time. */
void group_count_sum(ProcessGroup *pg, const Collective *collective)
{
    const Operation operation = collective->operation;
    const DType dtype = collective->dtype;
    if ((operation != OP_ALL_REDUCE && operation != OP_REDUCE_SCATTER) || collective->op != REDUCE_SUM ||
        dtype == DTYPE_F64 || dtype == DTYPE_I32 || dtype == DTYPE_I64)
        return;
    CommCounters *counters = &(pg->counts_for != NULL ? pg->counts_for : pg)->counters;
    if (collective->background)
        counters->async_sums++;
    else
        counters->sums++;
}
