/* observer.c: calls a group's observers. */
#include "base/clock.h"
#include "comm/group.h"

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

void group_tell_split(ProcessGroup *pg, ProcessGroup *part)
{
    for (int i = 0; i < pg->observer_count; i++)
        if (pg->observers[i].split != NULL)
            pg->observers[i].split(pg->observers[i].self, part);
}

Collective group_begin_meeting(ProcessGroup *pg, const char *what)
{
    const Collective meeting = {.operation = OP_BARRIER, .dtype = DTYPE_F32, .carries = what,
                                .sequence = pg->sequence++, .queued = now_seconds()};
    group_tell_called(pg, &meeting);
    group_tell_ready(pg, &meeting); /* it sends nothing */
    return meeting;
}

void group_end_meeting(ProcessGroup *pg, const Collective *meeting)
{
    group_tell_carried(pg, meeting);
    group_tell_done(pg, meeting, meeting->queued, now_seconds());
}
