/* Long buffers travel in pieces: the broadcast along a chain, the reduce-scatter piece by piece round the ring. The
   all-gather starts all its receives at once, and waits for its sends at the end. */
#include "collectives.h"

#include <string.h>

#include "base/check.h"
#include "comm/allreduce.h"

enum { SHORT = 8000, PIECE = 2048 }; /* elements: longer arrays travel in pieces */

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t piece_of(const Collective *c)
{
    return c->count > SHORT ? PIECE : SHORT;
}

static char *place(const void *array, const Collective *c, size_t i)
{
    return (char *)array + i * dtype_size(c->dtype);
}

/* ---- broadcast: a tree for a short buffer, a pipeline along a chain for a long one ---- */

static void broadcast_piece(ProcessGroup *pg, const Collective *c, int me, int parent, const int *children,
                            int child_count)
{
    MPI_Request requests[64];
    int pending = 0;
    if (me > 0) {
        start_receive(pg, c, c->receive, c->count, parent, TAG_PART, requests, &pending);
        wait_for_messages(pg, c, pending, requests);
        pending = 0;
    }
    for (int i = 0; i < child_count; i++)
        start_send(pg, c, c->receive, c->count, children[i], TAG_PART, requests, &pending);
    wait_for_messages(pg, c, pending, requests);
}

void broadcast(ProcessGroup *pg, const Collective *c)
{
    int N = pg->world_size, me = (pg->rank - c->root + N) % N, children[32], count = 0, lowest = 1;
    if (c->count > SHORT) { /* several pieces are under way at once, one on each link */
        int next = (pg->rank + 1) % N;
        for (size_t start = 0; start < c->count; start += PIECE) {
            Collective piece = segment_of(c, start, PIECE);
            broadcast_piece(pg, &piece, me, (pg->rank + N - 1) % N, &next, me < N - 1);
        }
        return;
    }
    while (lowest < N && (me & lowest) == 0)
        lowest *= 2;
    for (int bit = lowest / 2; bit > 0; bit /= 2)
        if (me + bit < N)
            children[count++] = (pg->rank + bit) % N;
    broadcast_piece(pg, c, me, (pg->rank - lowest + 2 * N) % N, children, count);
}

/* ---- ring: chunks in pieces; a piece is sent on while the next one arrives ---- */

static void reduce_piece(ProcessGroup *pg, const Collective *c, int step, size_t piece, char *incoming, bool last)
{
    int N = pg->world_size, in = (pg->rank + 2 * N - 2 - step) % N, out = (in + 1) % N, pending = 0;
    size_t in_start = smaller(chunk_start(c->count, N, in) + piece, chunk_start(c->count, N, in + 1));
    size_t out_start = smaller(chunk_start(c->count, N, out) + piece, chunk_start(c->count, N, out + 1));
    size_t in_count = smaller(chunk_start(c->count, N, in + 1) - in_start, piece_of(c));
    size_t out_count = smaller(chunk_start(c->count, N, out + 1) - out_start, piece_of(c));
    char *sums = incoming + (size_t)(step % 2) * piece_of(c) * dtype_size(c->dtype);
    const char *from = step == 0 ? place(c->send, c, out_start)
                                 : incoming + (size_t)((step + 1) % 2) * piece_of(c) * dtype_size(c->dtype);
    MPI_Request requests[2];
    start_receive(pg, c, sums, in_count, (pg->rank + N - 1) % N, TAG_RING, requests, &pending);
    start_send(pg, c, from, out_count, (pg->rank + 1) % N, TAG_RING, requests, &pending);
    wait_for_messages(pg, c, pending, requests);
    combine(last ? place(c->receive, c, in_start) : sums, place(c->send, c, in_start), sums, in_count, c->dtype, c->op);
}

void ring_reduce_scatter(ProcessGroup *pg, const Collective *c)
{
    int N = pg->world_size;
    char *incoming = group_scratch(pg, 2 * piece_of(c) * dtype_size(c->dtype));
    if (N == 1)
        memmove(c->receive, c->send, c->count * dtype_size(c->dtype));
    for (size_t piece = 0; piece < c->count / (size_t)N + 32; piece += piece_of(c))
        for (int step = 0; step < N - 1; step++)
            reduce_piece(pg, c, step, piece, incoming, step == N - 2);
}

/* All pieces of all steps are started at once, and waited for in the order in which they come. */
void ring_all_gather(ProcessGroup *pg, const Collective *c)
{
    int N = pg->world_size, next = (pg->rank + 1) % N, previous = (pg->rank + N - 1) % N, pending = 0, sent = 0;
    size_t start = chunk_start(c->count, N, pg->rank), count = chunk_count(c->count, N, pg->rank);
    MPI_Request arriving[N], leaving[N];
    memmove(place(c->receive, c, start), place(c->send, c, start), count * dtype_size(c->dtype));
    for (int step = 0; step < N - 1; step++) {
        int chunk = (pg->rank + 2 * N - 1 - step) % N;
        arriving[step] = MPI_REQUEST_NULL;
        pending = 0;
        start_receive(pg, c, place(c->receive, c, chunk_start(c->count, N, chunk)), chunk_count(c->count, N, chunk),
                      previous, TAG_RING + step, &arriving[step], &pending);
    }
    for (int step = 0; step < N - 1; step++) {
        int chunk = (pg->rank + 2 * N - step) % N;
        if (step > 0)
            wait_for_messages(pg, c, 1, &arriving[step - 1]);
        start_send(pg, c, place(c->receive, c, chunk_start(c->count, N, chunk)), chunk_count(c->count, N, chunk), next,
                   TAG_RING + step, leaving, &sent);
    }
    if (N > 1)
        wait_for_messages(pg, c, 1, &arriving[N - 2]);
    wait_for_messages(pg, c, sent, leaving);
}

void ring_all_reduce(ProcessGroup *pg, const Collective *c)
{
    ring_reduce_scatter(pg, c);
    ring_all_gather(pg, &(Collective){.operation = OP_ALL_REDUCE, .send = c->receive, .receive = c->receive,
                                      .count = c->count, .dtype = c->dtype, .op = c->op});
}

/* ---- halving and doubling; what the ranks beyond P have comes in pieces ---- */

static void fold(ProcessGroup *pg, const Collective *c, int P)
{
    size_t piece = piece_of(c);
    void *theirs = group_scratch(pg, piece * dtype_size(c->dtype));
    for (size_t start = 0; start < c->count; start += piece) {
        size_t count = smaller(c->count - start, piece);
        MPI_Request request;
        int pending = 0;
        if (pg->rank >= P)
            start_send(pg, c, place(c->receive, c, start), count, pg->rank - P, TAG_FOLD, &request, &pending);
        else if (pg->rank + P < pg->world_size)
            start_receive(pg, c, theirs, count, pg->rank + P, TAG_FOLD, &request, &pending);
        wait_for_messages(pg, c, pending, &request);
        if (pending > 0 && pg->rank < P)
            combine(place(c->receive, c, start), place(c->receive, c, start), theirs, count, c->dtype, c->op);
    }
}

/* Swaps chunks [out, out + d) for [in, in + d) with the partner. */
static void swap(ProcessGroup *pg, const Collective *c, int P, int partner, int out, int d, char *arrives, int in)
{
    MPI_Request requests[2];
    int pending = 0;
    start_send(pg, c, place(c->receive, c, chunk_start(c->count, P, out)),
               chunk_start(c->count, P, out + d) - chunk_start(c->count, P, out), partner, TAG_SWAP, requests,
               &pending);
    start_receive(pg, c, arrives, chunk_start(c->count, P, in + d) - chunk_start(c->count, P, in), partner, TAG_SWAP,
                  requests, &pending);
    wait_for_messages(pg, c, pending, requests);
}

void halving_doubling_all_reduce(ProcessGroup *pg, const Collective *c)
{
    int P = 1, rank = pg->rank;
    while (2 * P <= pg->world_size)
        P *= 2;
    memmove(c->receive, c->send, c->count * dtype_size(c->dtype));
    fold(pg, c, P);
    char *theirs = rank < P ? group_scratch(pg, c->count * dtype_size(c->dtype)) : NULL;
    int first = 0;
    for (int d = P / 2; rank < P && d > 0; d /= 2) {
        int mine = rank & d ? first + d : first, other = rank & d ? first : first + d;
        swap(pg, c, P, rank ^ d, other, d, theirs, mine);
        char *sum = place(c->receive, c, chunk_start(c->count, P, mine));
        combine(sum, sum, theirs, chunk_start(c->count, P, mine + d) - chunk_start(c->count, P, mine), c->dtype, c->op);
        first = mine;
    }
    for (int d = 1; rank < P && d < P; d *= 2) {
        int other = first ^ d;
        swap(pg, c, P, rank ^ d, first, d, place(c->receive, c, chunk_start(c->count, P, other)), other);
        first &= ~d;
    }
    MPI_Request request;
    int pending = 0;
    if (rank >= P)
        start_receive(pg, c, c->receive, c->count, rank - P, TAG_RESULT, &request, &pending);
    else if (rank + P < pg->world_size)
        start_send(pg, c, c->receive, c->count, rank + P, TAG_RESULT, &request, &pending);
    wait_for_messages(pg, c, pending, &request);
}
