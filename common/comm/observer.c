/* observer.c: calls a group's observers. */
#include "base/clock.h"
#include "comm/group.h"

void group_tell(ProcessGroup *pg, Moment moment, const Collective *collective)
{
    for (int i = 0; i < pg->observer_count; i++) {
        const GroupObserver *o = &pg->observers[i];
        void (*const functions[])(void *, const Collective *) = {o->called, o->ready, o->carried, o->done, o->waited};
        if (functions[moment] != NULL)
            functions[moment](o->self, collective);
    }
}

Collective group_begin_meeting(ProcessGroup *pg, const char *what)
{
    const double now = now_seconds();
    const Collective meeting = {.operation = OP_BARRIER, .dtype = DTYPE_F32, .carries = what,
                                .sequence = pg->sequence++, .queued = now, .start = now};
    group_tell(pg, CALLED, &meeting);
    group_tell(pg, READY, &meeting); /* it sends nothing */
    return meeting;
}

void group_end_meeting(ProcessGroup *pg, Collective *meeting)
{
    group_tell(pg, CARRIED, meeting);
    meeting->end = now_seconds();
    group_tell(pg, DONE, meeting);
}
