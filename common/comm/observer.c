/* observer.c: what observers get to know of a collective, and calling them. */
#include "comm/observer.h"

#include "base/check.h"
#include "comm/group.h"

const char *operation_name(Operation operation)
{
    static const char *const names[] = {"barrier", "broadcast", "all_reduce", "all_gather", "reduce_scatter"};
    return names[operation];
}

size_t collective_bytes(const ProcessGroup *pg, const Collective *collective)
{
    size_t bytes = collective->count * dtype_size(collective->dtype);
    bool per_rank = collective->operation == OP_ALL_GATHER || collective->operation == OP_REDUCE_SCATTER;
    return per_rank ? bytes * (size_t)pg->world_size : bytes;
}

/* ---- observers ---- */

void pg_observe(ProcessGroup *pg, const GroupObserver *observer)
{
    worker_drain(pg);
    CHECK(pg->observer_count < MOST_OBSERVERS, "a group has %d observers at most", MOST_OBSERVERS);
    pg->observers[pg->observer_count++] = *observer;
}

void group_tell_called(ProcessGroup *pg, const Collective *collective)
{
    for (int i = 0; i < pg->observer_count; i++)
        if (pg->observers[i].called != NULL)
            pg->observers[i].called(pg->observers[i].self, collective);
}

void group_tell_ready(ProcessGroup *pg, const Collective *collective)
{
    for (int i = 0; i < pg->observer_count; i++)
        if (pg->observers[i].ready != NULL)
            pg->observers[i].ready(pg->observers[i].self, collective);
}

void group_tell_carried(ProcessGroup *pg, const Collective *collective)
{
    for (int i = 0; i < pg->observer_count; i++)
        if (pg->observers[i].carried != NULL)
            pg->observers[i].carried(pg->observers[i].self, collective);
}

void group_tell_done(ProcessGroup *pg, const Collective *collective, double start, double end)
{
    for (int i = 0; i < pg->observer_count; i++)
        if (pg->observers[i].done != NULL)
            pg->observers[i].done(pg->observers[i].self, collective, start, end);
}

void group_tell_waited(ProcessGroup *pg, const Collective *collective, double from, double until)
{
    for (int i = 0; i < pg->observer_count; i++)
        if (pg->observers[i].waited != NULL)
            pg->observers[i].waited(pg->observers[i].self, collective, from, until);
}

void group_tell_leaving(ProcessGroup *pg)
{
    for (int i = 0; i < pg->observer_count; i++)
        if (pg->observers[i].leaving != NULL)
            pg->observers[i].leaving(pg->observers[i].self);
}

void group_tell_closing(ProcessGroup *pg)
{
    for (int i = 0; i < pg->observer_count; i++)
        if (pg->observers[i].closing != NULL)
            pg->observers[i].closing(pg->observers[i].self);
}
