/* allreduce_ordered.c: rank c owns part c of the buffer, and adds all ranks' values of it in rank order.
 *
 * note: ordered
 *   1. every rank sends each owner its values of the owner's part
 *   2. the owner adds them IN RANK ORDER, element by element
 *   3. every owner sends its finished part to all
 * Steps 1 and 2 are a reduce-scatter; step 3 is an all-gather. Each rank sends and receives 2(N-1)/N of the buffer, the
 * minimum for an all-reduce, but in N-1 messages at once to all other ranks, where a ring uses only two neighbours.
 * Because each element is always part0 + part1 + part2 + ..., the result has the same bits for every division of the
 * gradients into buckets, and the same bits as one process that adds the same parts in the same order. */
#include "comm/allreduce.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/* Step 1: collects every rank's values of this rank's part in parts (world_size, my_count). */
static void exchange_parts(ProcessGroup *pg, const Collective *c, unsigned char *parts)
{
    int N = pg->world_size, pending = 0;
    size_t my_count = part_count(pg, c, pg->rank), my_bytes = my_count * dtype_size(c->dtype);
    MPI_Request *requests = alloc_or_fault(2 * (size_t)N * sizeof *requests);
    for (int rank = 0; rank < N; rank++) {
        unsigned char *part = parts + (size_t)rank * my_bytes;
        if (rank != pg->rank) {
            start_receive(pg, c, part, my_count, rank, TAG_PART, requests, &pending);
            start_send(pg, c, part_sent(pg, c, rank), part_count(pg, c, rank), rank, TAG_PART, requests, &pending);
        } else
            memcpy(part, part_sent(pg, c, rank), my_bytes);
    }
    wait_for_messages(pg, c, pending, requests);
    free(requests);
}

/* Step 2: the sum of the parts, into its place in receive. That may lie in `send`: all parts have been sent. */
static void add_parts(ProcessGroup *pg, const Collective *c, const unsigned char *parts)
{
    int N = pg->world_size;
    size_t my_count = part_count(pg, c, pg->rank);
    const void **part = alloc_or_fault((size_t)N * sizeof *part);
    for (int rank = 0; rank < N; rank++)
        part[rank] = parts + (size_t)rank * my_count * dtype_size(c->dtype);
    void *total = part_received(pg, c, pg->rank);
    combine_parts(&total, 1, part, N, my_count, c->dtype, c->op);
    free(part);
}

void reduce_scatter_ordered(ProcessGroup *pg, const Collective *c)
{
    size_t my_bytes = part_count(pg, c, pg->rank) * dtype_size(c->dtype);
    unsigned char *parts = group_scratch(pg, (size_t)pg->world_size * my_bytes);
    exchange_parts(pg, c, parts);
    add_parts(pg, c, parts);
}

/* Step 3. In an all-reduce the finished part is already in its place in receive. */
void all_gather_ordered(ProcessGroup *pg, const Collective *c)
{
    int N = pg->world_size, pending = 0;
    size_t my_count = part_count(pg, c, pg->rank);
    void *mine = part_received(pg, c, pg->rank);
    MPI_Request *requests = alloc_or_fault(2 * (size_t)N * sizeof *requests);
    if (c->operation == OP_ALL_GATHER && c->send != mine)
        memcpy(mine, c->send, my_count * dtype_size(c->dtype));
    for (int rank = 0; rank < N; rank++)
        if (rank != pg->rank) {
            void *place = part_received(pg, c, rank);
            start_receive(pg, c, place, part_count(pg, c, rank), rank, TAG_RESULT, requests, &pending);
            start_send(pg, c, mine, my_count, rank, TAG_RESULT, requests, &pending);
        }
    wait_for_messages(pg, c, pending, requests);
    free(requests);
}

void all_reduce_ordered(ProcessGroup *pg, const Collective *c)
{
    reduce_scatter_ordered(pg, c);
    all_gather_ordered(pg, c);
}

/* note: ordered-small
 * For buffers so small that latency costs more than bytes: every rank gets all parts and adds them itself. These are
 * the same additions in the same order, so the bits are the same. The parts come by Bruck's all-gather (Bruck et al.
 * 1997): in each step a rank doubles its number of parts, because it receives as many as it has from the rank whose
 * parts follow its own. So log2(N) steps, rounded up, are enough for any N. */
void all_reduce_ordered_small(ProcessGroup *pg, const Collective *c)
{
    int N = pg->world_size;
    size_t bytes = c->count * dtype_size(c->dtype);
    unsigned char *parts = group_scratch(pg, (size_t)N * bytes); /* part i is that of rank pg->rank + i, modulo N */
    memcpy(parts, c->send, bytes);
    for (int have = 1; have < N; have *= 2) {
        int more = have < N - have ? have : N - have, pending = 0;
        int to = (pg->rank - have + N) % N, from = (pg->rank + have) % N;
        MPI_Request requests[2];
        start_receive(pg, c, parts + (size_t)have * bytes, (size_t)more * c->count, from, TAG_PART, requests, &pending);
        start_send(pg, c, parts, (size_t)more * c->count, to, TAG_PART, requests, &pending);
        wait_for_messages(pg, c, pending, requests);
    }
    const void **part = alloc_or_fault((size_t)N * sizeof *part);
    for (int rank = 0; rank < N; rank++)
        part[rank] = parts + (size_t)((rank - pg->rank + N) % N) * bytes;
    combine_parts(&c->receive, 1, part, N, c->count, c->dtype, c->op);
    free(part);
}
