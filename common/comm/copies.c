/* copies.c: a group whose reduce-scatter also adds over copies of the group. For stage 5's --shard-ranks.
 *
 * note: copies
 * N ranks are N/R groups of R. Each group holds all shards, one per rank, and the ranks with the same number in
 * their groups hold copies of one shard. A reduce-scatter adds within the group, and then, on the same thread, over
 * the copies of the part that the rank has received, so both overlap with backward. Everything else stays within the
 * group. */
#include <stdlib.h>

#include "base/check.h"
#include "comm/group.h"

typedef struct Copies {
    Backend backend;     /* first: a Backend * is a Copies * */
    ProcessGroup *group; /* the ranks that hold copies of this rank's shard; owned */
} Copies;

static void run(Backend *self, ProcessGroup *pg, const Collective *c)
{
    ProcessGroup *group = ((Copies *)self)->group;
    self->inner->run(self->inner, pg, c);
    if (c->operation != OP_REDUCE_SCATTER)
        return;
    Collective over = *c; /* of the received part */
    over.operation = OP_ALL_REDUCE;
    over.send = c->receive;
    over.ready = NULL;
    over.sequence = group->sequence++;
    group_carry_out(group, &over);
}

static void split(const Backend *self, ProcessGroup *part, int color)
{
    (void)self, (void)color;
    FAULT("a group with copies cannot be split (%s)", pg_name(part));
}

static void close_copies(Backend *self, ProcessGroup *pg)
{
    (void)pg;
    pg_destroy(((Copies *)self)->group);
    free(self);
}

ProcessGroup *pg_split_copies(ProcessGroup *parent, int ranks)
{
    ProcessGroup *part = pg_split(parent, pg_rank(parent) / ranks);
    Copies *copies = alloc_or_fault(sizeof *copies);
    copies->backend = (Backend){.name = pg_backend(part), .run = run, .split = split, .close = close_copies};
    copies->group = pg_split(parent, pg_rank(parent) % ranks);
    pg_set_algorithm(copies->group, ALLREDUCE_ORDERED); /* in the order of the groups: see hierarchical */
    part->counts_for = copies->group->counts_for = parent;
    pg_wrap_backend(part, &copies->backend);
    return part;
}
