/* The broadcast is a recursion over a range of ranks, and so is halving and doubling, which cuts in the middle and not
   at chunks. The ring goes backwards. Of the ranks beyond the power of two each is a neighbour of its partner. */
#include "collectives.h"

#include <string.h>

#include "comm/allreduce.h"

static size_t bytes(const Collective *c, size_t elements)
{
    return elements * dtype_size(c->dtype);
}

static unsigned char *at(const Collective *c, size_t element)
{
    return (unsigned char *)c->receive + bytes(c, element);
}

/* ---- broadcast: a range of ranks, counted from the root, is halved ---- */

static void spread(ProcessGroup *pg, const Collective *c, int first, int last)
{
    int N = pg->world_size, me = (pg->rank + N - c->root) % N, pending = 0;
    MPI_Request request;
    if (last - first < 2)
        return;
    int middle = first + (last - first + 1) / 2; /* the one at `first` has the buffer, and gives it to this one */
    if (me == first)
        start_send(pg, c, c->receive, c->count, (middle + c->root) % N, TAG_PART, &request, &pending);
    else if (me == middle)
        start_receive(pg, c, c->receive, c->count, (first + c->root) % N, TAG_PART, &request, &pending);
    wait_for_messages(pg, c, pending, &request);
    if (me < middle)
        spread(pg, c, first, middle);
    else
        spread(pg, c, middle, last);
}

void broadcast(ProcessGroup *pg, const Collective *c)
{
    spread(pg, c, 0, pg->world_size);
}

/* ---- ring: backwards, towards the rank before ---- */

void ring_reduce_scatter(ProcessGroup *pg, const Collective *c)
{
    int N = pg->world_size, me = pg->rank;
    unsigned char *sums = group_scratch(pg, bytes(c, c->count)); /* each chunk in its place */
    memcpy(sums, c->send, bytes(c, c->count));
    for (int step = 1; step < N; step++) {
        MPI_Request requests[2];
        int pending = 0, out = (me + step) % N, in = (me + step + 1) % N;
        size_t count = chunk_count(c->count, N, in);
        const unsigned char *mine = (const unsigned char *)c->send + bytes(c, chunk_start(c->count, N, in));
        unsigned char *sum = sums + bytes(c, chunk_start(c->count, N, in));
        start_send(pg, c, sums + bytes(c, chunk_start(c->count, N, out)), chunk_count(c->count, N, out),
                   (me + N - 1) % N, TAG_RING + step, requests, &pending);
        start_receive(pg, c, sum, count, (me + 1) % N, TAG_RING + step, requests, &pending);
        wait_for_messages(pg, c, pending, requests);
        combine(sum, mine, sum, count, c->dtype, c->op);
    }
    size_t start = chunk_start(c->count, N, me);
    memcpy(at(c, start), sums + bytes(c, start), bytes(c, chunk_count(c->count, N, me)));
}

void ring_all_gather(ProcessGroup *pg, const Collective *c)
{
    int N = pg->world_size, me = pg->rank;
    size_t own = chunk_start(c->count, N, me);
    memmove(at(c, own), (const unsigned char *)c->send + bytes(c, own), bytes(c, chunk_count(c->count, N, me)));
    for (int step = 0; step < N - 1; step++) {
        MPI_Request requests[2];
        int pending = 0, out = (me + step) % N, in = (me + step + 1) % N;
        start_send(pg, c, at(c, chunk_start(c->count, N, out)), chunk_count(c->count, N, out), (me + N - 1) % N,
                   TAG_RESULT, requests, &pending);
        start_receive(pg, c, at(c, chunk_start(c->count, N, in)), chunk_count(c->count, N, in), (me + 1) % N,
                      TAG_RESULT, requests, &pending);
        wait_for_messages(pg, c, pending, requests);
    }
}

void ring_all_reduce(ProcessGroup *pg, const Collective *c)
{
    ring_reduce_scatter(pg, c);
    Collective second = *c;
    second.send = second.receive;
    ring_all_gather(pg, &second);
}

/* ---- halving and doubling, as a recursion over the ranks [first, first + size) and the elements [from, to) ---- */

static void swap(ProcessGroup *pg, const Collective *c, int with, void *out, size_t out_count, void *in,
                 size_t in_count)
{
    MPI_Request requests[2];
    int pending = 0;
    start_receive(pg, c, in, in_count, with, TAG_SWAP, requests, &pending);
    start_send(pg, c, out, out_count, with, TAG_SWAP, requests, &pending);
    wait_for_messages(pg, c, pending, requests);
}

/* `me` is a number among the ranks that take part; rank_of(me) = me * factor for the first `pairs` of them. */
static int rank_of(int me, int pairs)
{
    return me < pairs ? 2 * me : me + pairs;
}

static void halve(ProcessGroup *pg, const Collective *c, int me, int pairs, int size, size_t from, size_t to)
{
    if (size == 1)
        return;
    size_t middle = from + (to - from) / 2;
    bool low = me % size < size / 2;
    int partner = rank_of(low ? me + size / 2 : me - size / 2, pairs);
    size_t keep = low ? from : middle, keep_end = low ? middle : to, give = low ? middle : from,
           give_end = low ? to : middle;
    unsigned char *theirs = group_scratch(pg, bytes(c, keep_end - keep));
    swap(pg, c, partner, at(c, give), give_end - give, theirs, keep_end - keep);
    combine(at(c, keep), at(c, keep), theirs, keep_end - keep, c->dtype, c->op);
    halve(pg, c, me, pairs, size / 2, keep, keep_end);
    swap(pg, c, partner, at(c, keep), keep_end - keep, at(c, give), give_end - give);
}

void halving_doubling_all_reduce(ProcessGroup *pg, const Collective *c)
{
    int P = 1, N = pg->world_size, rank = pg->rank;
    for (; 2 * P <= N; P *= 2)
        ;
    int pairs = N - P; /* of the first 2 * pairs ranks, each odd one gives its buffer to the even one before it */
    memmove(c->receive, c->send, bytes(c, c->count));
    if (rank < 2 * pairs && rank % 2 == 1) {
        swap(pg, c, rank - 1, c->receive, c->count, NULL, 0);
        swap(pg, c, rank - 1, NULL, 0, c->receive, c->count);
        return;
    }
    if (rank < 2 * pairs) {
        void *theirs = group_scratch(pg, bytes(c, c->count));
        swap(pg, c, rank + 1, NULL, 0, theirs, c->count);
        combine(c->receive, c->receive, theirs, c->count, c->dtype, c->op);
    }
    halve(pg, c, rank < 2 * pairs ? rank / 2 : rank - pairs, pairs, P, 0, c->count);
    if (rank < 2 * pairs)
        swap(pg, c, rank + 1, c->receive, c->count, NULL, 0);
}
