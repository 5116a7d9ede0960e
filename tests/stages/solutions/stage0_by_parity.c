/* Only blocking messages: even ranks send first, odd ranks receive first; of a pair the lower one sends first. Memory
   comes from alloc_or_fault(). Halving begins with the nearest partner. */
#include "collectives.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "comm/allreduce.h"

/* Blocking messages. */
static void send_to(ProcessGroup *pg, const Collective *c, const void *elements, size_t count, int to)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int pending = 0;
    start_send(pg, c, elements, count, to, 7, &request, &pending);
    wait_for_messages(pg, c, pending, &request);
}

static void receive_from(ProcessGroup *pg, const Collective *c, void *elements, size_t count, int from)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int pending = 0;
    start_receive(pg, c, elements, count, from, 7, &request, &pending);
    wait_for_messages(pg, c, pending, &request);
}

/* The even ranks send first, the odd ones receive first. Among an odd number of ranks, the last one and rank 0 are
 * neighbours and both even: but rank 1 receives first, so the chain dissolves from there. */
static void pass_on(ProcessGroup *pg, const Collective *c, const void *out, size_t out_count, void *in, size_t in_count)
{
    int N = pg->world_size, next = (pg->rank + 1) % N, previous = (pg->rank + N - 1) % N;
    if (pg->rank % 2 == 0) {
        send_to(pg, c, out, out_count, next);
        receive_from(pg, c, in, in_count, previous);
    } else {
        receive_from(pg, c, in, in_count, previous);
        send_to(pg, c, out, out_count, next);
    }
}

static void *element(const void *array, const Collective *c, size_t i)
{
    return (char *)array + i * dtype_size(c->dtype);
}

/* The binomial tree by bits, from the highest bit down: who has the buffer is a multiple of 2 * bit. */
void broadcast(ProcessGroup *pg, const Collective *c)
{
    int N = pg->world_size, bit = 1, me = (pg->rank - c->root + N) % N;
    while (bit < N)
        bit <<= 1;
    while ((bit >>= 1) > 0) {
        if (me % (2 * bit) == 0 && me + bit < N)
            send_to(pg, c, c->receive, c->count, (pg->rank + bit) % N);
        else if (me % (2 * bit) == bit)
            receive_from(pg, c, c->receive, c->count, (pg->rank - bit + N) % N);
    }
}

void ring_reduce_scatter(ProcessGroup *pg, const Collective *c)
{
    int N = pg->world_size, chunk = (pg->rank + N - 1) % N;
    const size_t size = dtype_size(c->dtype);
    char *sum = alloc_or_fault(c->count * size), *arriving = alloc_or_fault(c->count * size);
    memcpy(sum, element(c->send, c, chunk_start(c->count, N, chunk)), chunk_count(c->count, N, chunk) * size);
    while (chunk != pg->rank) {
        int in = (chunk + N - 1) % N;
        pass_on(pg, c, sum, chunk_count(c->count, N, chunk), arriving, chunk_count(c->count, N, in));
        combine(sum, element(c->send, c, chunk_start(c->count, N, in)), arriving, chunk_count(c->count, N, in), c->dtype,
                c->op);
        chunk = in;
    }
    memcpy(element(c->receive, c, chunk_start(c->count, N, chunk)), sum, chunk_count(c->count, N, chunk) * size);
    free(sum);
    free(arriving);
}

void ring_all_gather(ProcessGroup *pg, const Collective *c)
{
    int N = pg->world_size;
    size_t start = chunk_start(c->count, N, pg->rank), count = chunk_count(c->count, N, pg->rank);
    memmove(element(c->receive, c, start), element(c->send, c, start), count * dtype_size(c->dtype));
    for (int chunk = pg->rank, steps = N - 1; steps > 0; steps--) {
        int in = (chunk + N - 1) % N;
        pass_on(pg, c, element(c->receive, c, chunk_start(c->count, N, chunk)), chunk_count(c->count, N, chunk),
                element(c->receive, c, chunk_start(c->count, N, in)), chunk_count(c->count, N, in));
        chunk = in;
    }
}

void ring_all_reduce(ProcessGroup *pg, const Collective *c)
{
    const Collective again = {.operation = c->operation, .send = c->receive, .receive = c->receive, .count = c->count,
                              .dtype = c->dtype, .op = c->op};
    ring_reduce_scatter(pg, c);
    ring_all_gather(pg, &again);
}

/* Rank by rank: the lower one of a pair sends first. */
static void swap(ProcessGroup *pg, const Collective *c, int with, const void *out, size_t out_count, void *in,
                 size_t in_count)
{
    if (pg->rank < with)
        send_to(pg, c, out, out_count, with);
    receive_from(pg, c, in, in_count, with);
    if (pg->rank > with)
        send_to(pg, c, out, out_count, with);
}

void halving_doubling_all_reduce(ProcessGroup *pg, const Collective *c)
{
    int N = pg->world_size, rank = pg->rank, P = 1, steps = 0;
    size_t starts[40], ends[40], size = dtype_size(c->dtype);
    char *theirs = alloc_or_fault(c->count * size);
    while (P * 2 <= N)
        P *= 2;
    if (c->receive != c->send)
        memcpy(c->receive, c->send, c->count * size);
    if (rank >= P) {
        send_to(pg, c, c->receive, c->count, rank - P);
        receive_from(pg, c, c->receive, c->count, rank - P);
        free(theirs);
        return;
    }
    if (rank + P < N) {
        receive_from(pg, c, theirs, c->count, rank + P);
        combine(c->receive, c->receive, theirs, c->count, c->dtype, c->op);
    }
    starts[0] = 0;
    ends[0] = c->count;
    for (int d = 1; d < P; d *= 2, steps++) { /* the nearest partner first */
        size_t middle = (starts[steps] + ends[steps]) / 2;
        bool upper = rank & d;
        starts[steps + 1] = upper ? middle : starts[steps];
        ends[steps + 1] = upper ? ends[steps] : middle;
        size_t mine = ends[steps + 1] - starts[steps + 1], all = ends[steps] - starts[steps];
        void *kept = element(c->receive, c, starts[steps + 1]);
        swap(pg, c, rank ^ d, element(c->receive, c, upper ? starts[steps] : middle), all - mine, theirs, mine);
        combine(kept, kept, theirs, mine, c->dtype, c->op);
    }
    for (int d = P / 2; d > 0; d /= 2) {
        size_t mine = ends[steps] - starts[steps], all = ends[steps - 1] - starts[steps - 1];
        bool upper = rank & d;
        swap(pg, c, rank ^ d, element(c->receive, c, starts[steps]), mine,
             element(c->receive, c, upper ? starts[steps - 1] : ends[steps]), all - mine);
        steps--;
    }
    if (rank + P < N)
        send_to(pg, c, c->receive, c->count, rank + P);
    free(theirs);
}
