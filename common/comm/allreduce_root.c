/* allreduce_root.c: all ranks send their parts to rank 0, which sends the sum back.
 *
 * note: root
 * This shows the cost of gathering the gradients on one device. For a buffer of n bytes, first all N-1 parts arrive
 * over rank 0's link, then all N-1 copies of the sum leave: 2(N-1) n bytes, one after the other. In a ring each rank
 * sends only 2(N-1)/N n bytes, and receives at the same time. While rank 0 adds, all other ranks wait.
 * The algorithm is here to be measured. It adds in rank order, so its result has the bits of the ordered algorithm.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "comm/allreduce.h"

/* Rank 0: collects the parts, adds them, and sends the sum to all. */
static void add_and_send(ProcessGroup *pg, const Collective *c)
{
    int N = pg->world_size, pending = 0;
    size_t bytes = c->count * dtype_size(c->dtype);
    unsigned char *scratch = group_scratch(pg, (size_t)N * bytes); /* rank 0's own part lies elsewhere */
    MPI_Request *requests = alloc_or_fault((size_t)N * sizeof *requests);
    const void **parts = alloc_or_fault((size_t)N * sizeof *parts);
    parts[0] = c->send;
    for (int rank = 1; rank < N; rank++) {
        unsigned char *part = scratch + (size_t)rank * bytes;
        parts[rank] = part;
        start_receive(pg, c, part, c->count, rank, TAG_PART, requests, &pending);
    }
    wait_for_messages(pg, c, pending, requests);
    combine_parts(&c->receive, 1, parts, N, c->count, c->dtype, c->op);
    pending = 0;
    for (int rank = 1; rank < N; rank++)
        start_send(pg, c, c->receive, c->count, rank, TAG_RESULT, requests, &pending);
    wait_for_messages(pg, c, pending, requests);
    free(parts);
    free(requests);
}

void all_reduce_root(ProcessGroup *pg, const Collective *c)
{
    if (pg->rank == 0) {
        add_and_send(pg, c);
        return;
    }
    MPI_Request request = MPI_REQUEST_NULL;
    int pending = 0;
    start_send(pg, c, c->send, c->count, 0, TAG_PART, &request, &pending);
    wait_for_messages(pg, c, pending, &request);
    pending = 0;
    start_receive(pg, c, c->receive, c->count, 0, TAG_RESULT, &request, &pending);
    wait_for_messages(pg, c, pending, &request);
}
