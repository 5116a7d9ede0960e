/* collective.c: names of groups and of their collectives, and the calls of observers. */
#include "comm/collective.h"

#include <string.h>

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

const char *collective_name(const ProcessGroup *pg, const Collective *c)
{
    return collective_text(c, pg->name);
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
    if (!adds_up_gradients(collective))
        return;
    CommCounters *counters = &(pg->counts_for != NULL ? pg->counts_for : pg)->counters;
    if (collective->background)
        counters->async_sums++;
    else
        counters->sums++;
}
