/* allreduce_hierarchical.c: all-reduce on two levels: between the ranks of each host, and across hosts.
 *
 * note: hierarchical
 * A message within a host is fast, and one between hosts is slow. On H hosts of L ranks each:
 *   1. reduce-scatter within each host: its rank number l gets the host's sum of chunk l
 *   2. all-reduce across hosts: the ranks with number l add their hosts' sums of chunk l
 *   3. all-gather within each host
 * So a host's link carries 2(H-1)/H of the buffer in each direction, and each of its ranks sends an equal part of that.
 * In a ring of all H L ranks it is 2(HL-1)/(HL), and the ordered algorithm, in which each rank sends its part to each
 * owner, sends L times as much as this one. Each level adds in the order of its ranks: an element is always
 * (part0 + part1) + (part2 + part3), and has the same bits for every division of the gradients into buckets.
 */
#include <stdlib.h>

#include "base/check.h"
#include "comm/allreduce.h"

/* Each level is a ProcessGroup that has only what messages need. host: the ranks of this host. across: the ranks that
 * have this rank's number on their hosts. */
struct Hierarchy {
    ProcessGroup host, across;
    int ranks_per_host; /* of the options that it was made for */
};

static void open_level(ProcessGroup *level, const ProcessGroup *pg, int color)
{
    CHECK_MPI(MPI_Comm_split(pg->comm, color, 0, &level->comm));
    CHECK_MPI(MPI_Comm_rank(level->comm, &level->rank));
    CHECK_MPI(MPI_Comm_size(level->comm, &level->world_size));
    level->core_per_rank = pg->core_per_rank;
}

/* The lowest rank on this rank's host. */
static int first_of_host(const ProcessGroup *pg)
{
    MPI_Comm host;
    int first;
    if (pg->options.ranks_per_host > 0)
        return pg->rank / pg->options.ranks_per_host * pg->options.ranks_per_host;
    CHECK_MPI(MPI_Comm_split_type(pg->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host));
    CHECK_MPI(MPI_Allreduce(&pg->rank, &first, 1, MPI_INT, MPI_MIN, host));
    CHECK_MPI(MPI_Comm_free(&host));
    return first;
}

void hierarchy_open(ProcessGroup *pg)
{
    if (pg->hierarchy != NULL && pg->hierarchy->ranks_per_host == pg->options.ranks_per_host)
        return;
    hierarchy_close(pg);
    Hierarchy *hierarchy = pg->hierarchy = alloc_or_fault(sizeof *hierarchy);
    hierarchy->ranks_per_host = pg->options.ranks_per_host;
    const int first = first_of_host(pg);
    open_level(&hierarchy->host, pg, first);
    open_level(&hierarchy->across, pg, hierarchy->host.rank);
    const int size = hierarchy->host.world_size, apart = pg->rank - first - hierarchy->host.rank;
    const int mine[] = {size, -size, abs(apart)};
    int max[3];
    CHECK_MPI(MPI_Allreduce(mine, max, 3, MPI_INT, MPI_MAX, pg->comm));
    if (max[0] != -max[1] || max[2] != 0)
        die("--allreduce: hierarchical needs the same number of ranks on each host, numbered host by host, but the "
            "hosts have %d to %d ranks%s; choose ordered, ring or mpi", -max[1], max[0],
            max[2] != 0 ? ", numbered alternately" : "");
}

void hierarchy_close(ProcessGroup *pg)
{
    if (pg->hierarchy == NULL)
        return;
    ProcessGroup *const levels[] = {&pg->hierarchy->host, &pg->hierarchy->across};
    for (int i = 0; i < 2; i++) {
        CHECK_MPI(MPI_Comm_free(&levels[i]->comm));
        free(levels[i]->scratch);
    }
    free(pg->hierarchy);
    pg->hierarchy = NULL;
}

int pg_hosts(const ProcessGroup *pg)
{
    return pg->hierarchy != NULL ? pg->hierarchy->across.world_size : 1;
}

typedef void (*Step)(ProcessGroup *pg, const Collective *collective);

/* A step on one level, which may have one rank only: then there is nothing to do. */
static void run_step(ProcessGroup *pg, ProcessGroup *level, Step step, const Collective *c)
{
    atomic_store(&level->training_waits, atomic_load(&pg->training_waits));
    if (level->world_size > 1 && c->count > 0)
        step(level, c);
}

/* If each host has one rank, or one host has all ranks, there is only one level: runs the step there and returns
 * true. */
static bool run_if_flat(ProcessGroup *pg, Step step, const Collective *c)
{
    if (pg->hierarchy->host.world_size > 1 && pg->hierarchy->across.world_size > 1)
        return false;
    run_step(pg, &pg->hierarchy->host, step, c);
    run_step(pg, &pg->hierarchy->across, step, c);
    return true;
}

void all_reduce_hierarchical(ProcessGroup *pg, const Collective *c)
{
    ProcessGroup *host = &pg->hierarchy->host, *across = &pg->hierarchy->across;
    if (run_if_flat(pg, all_reduce_ordered, c))
        return;
    Collective chunk = *c;
    chunk.send = chunk.receive = part_received(host, c, host->rank);
    chunk.count = part_count(host, c, host->rank);
    run_step(pg, host, reduce_scatter_ordered, c);
    run_step(pg, across, all_reduce_ordered, &chunk);
    run_step(pg, host, all_gather_ordered, c);
}

/* For few bytes: each rank adds all parts of its host, and then the hosts' sums. These are the same additions. */
void all_reduce_hierarchical_small(ProcessGroup *pg, const Collective *c)
{
    Collective sums = *c;
    if (run_if_flat(pg, all_reduce_ordered_small, c))
        return;
    sums.send = c->receive;
    run_step(pg, &pg->hierarchy->host, all_reduce_ordered_small, c);
    run_step(pg, &pg->hierarchy->across, all_reduce_ordered_small, &sums);
}

/* note: hierarchical-halves
 * Rank number l of host h owns part hL + l: the parts of host h's ranks lie side by side. So the ranks of each host
 * make one reduce-scatter for the parts of every host, after which rank number l has its host's sums of all parts with
 * number l. A reduce-scatter across hosts then adds these. An all-gather takes the same steps in reverse. */
void reduce_scatter_hierarchical(ProcessGroup *pg, const Collective *c)
{
    ProcessGroup *host = &pg->hierarchy->host, *across = &pg->hierarchy->across;
    const size_t bytes = c->count * dtype_size(c->dtype);
    const size_t block_bytes = (size_t)host->world_size * c->stride * dtype_size(c->dtype);
    if (run_if_flat(pg, reduce_scatter_ordered, c))
        return;
    unsigned char *sums = group_scratch(pg, (size_t)across->world_size * bytes);
    for (int h = 0; h < across->world_size; h++) {
        Collective block = *c;
        block.send = (const unsigned char *)c->send + (size_t)h * block_bytes;
        block.receive = sums + (size_t)h * bytes;
        run_step(pg, host, reduce_scatter_ordered, &block);
    }
    Collective last = *c;
    last.send = sums;
    last.stride = c->count;
    run_step(pg, across, reduce_scatter_ordered, &last);
}

void all_gather_hierarchical(ProcessGroup *pg, const Collective *c)
{
    ProcessGroup *host = &pg->hierarchy->host, *across = &pg->hierarchy->across;
    const size_t part_bytes = c->stride * dtype_size(c->dtype), number = (size_t)host->rank;
    if (run_if_flat(pg, all_gather_ordered, c))
        return;
    Collective first = *c;
    first.receive = (unsigned char *)c->receive + number * part_bytes;
    first.stride = (size_t)host->world_size * c->stride;
    run_step(pg, across, all_gather_ordered, &first);
    for (int h = 0; h < across->world_size; h++) {
        Collective block = *c;
        block.receive = (unsigned char *)c->receive + (size_t)(h * host->world_size) * part_bytes;
        block.send = (unsigned char *)block.receive + number * part_bytes;
        run_step(pg, host, all_gather_ordered, &block);
    }
}
