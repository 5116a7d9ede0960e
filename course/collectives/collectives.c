/* collectives.c: a broadcast along a tree, a ring in two halves, and an all-reduce by halving and doubling.
 *
 * common/comm/ has these algorithms, too, with what speed needs: long buffers in segments. Here each is as short as it
 * can be.
 */
#include "collectives.h"

#include <string.h>

#include "comm/allreduce.h"

/* Consecutive elements of an array. */
typedef struct Block {
    unsigned char *elements;
    size_t count;
} Block;

/* Chunks [first, first + chunks) of the array, if it is cut into `total` chunks. */
static Block block_of(const void *array, const Collective *c, int total, int first, int chunks)
{
    size_t start = chunk_start(c->count, total, first);
    return (Block){(unsigned char *)array + start * dtype_size(c->dtype),
                   chunk_start(c->count, total, first + chunks) - start};
}

/* ---- messages ---- */

/* Sends `out` to one rank while `in` arrives from another one. Both are started before either is waited for: if all
 * ranks first waited for their sends, none would receive. */
static void exchange(ProcessGroup *pg, const Collective *c, Block out, int to, Block in, int from)
{
    MPI_Request requests[2];
    int pending = 0;
    start_receive(pg, c, in.elements, in.count, from, TAG_SWAP, requests, &pending);
    start_send(pg, c, out.elements, out.count, to, TAG_SWAP, requests, &pending);
    wait_for_messages(pg, c, pending, requests);
}

static const Block nothing = {NULL, 0};

/* ---- broadcast ---- */

/* Ranks are numbered from the root on. In the step of distance d, those below d, which have the buffer, send it to
 * those d further: 1, 2, 4, ... ranks have it. */
void broadcast(ProcessGroup *pg, const Collective *c)
{
    int N = pg->world_size, place = (pg->rank - c->root + N) % N;
    Block all = block_of(c->receive, c, 1, 0, 1);
    for (int d = 1; d < N; d *= 2) {
        if (place < d && place + d < N)
            exchange(pg, c, all, (pg->rank + d) % N, nothing, 0);
        else if (d <= place && place < 2 * d)
            exchange(pg, c, nothing, 0, all, (pg->rank - d + N) % N);
    }
}

/* ---- ring ---- */

/* In each step a partial sum arrives, and this rank adds its own part. What arrives first has gone one step: it is the
 * chunk of two ranks before. What arrives last is this rank's own. */
void ring_reduce_scatter(ProcessGroup *pg, const Collective *c)
{
    int N = pg->world_size, rank = pg->rank, next = (rank + 1) % N, previous = (rank + N - 1) % N;
    size_t longest = (c->count / (size_t)N + 32) * dtype_size(c->dtype);
    unsigned char *scratch = group_scratch(pg, 2 * longest);
    Block out = block_of(c->send, c, N, previous, 1);
    for (int step = 0; step < N - 1; step++) {
        int chunk = (rank + 2 * N - 2 - step) % N;
        Block mine = block_of(c->send, c, N, chunk, 1), sum = {scratch + step % 2 * longest, mine.count};
        exchange(pg, c, out, next, sum, previous);
        combine(sum.elements, sum.elements, mine.elements, mine.count, c->dtype, c->op);
        out = sum;
    }
    Block result = block_of(c->receive, c, N, rank, 1);
    if (result.elements != out.elements)
        memcpy(result.elements, out.elements, result.count * dtype_size(c->dtype));
}

/* Finished chunks go round: each arrives in its place, and is sent on in the next step. */
void ring_all_gather(ProcessGroup *pg, const Collective *c)
{
    int N = pg->world_size, rank = pg->rank;
    Block out = block_of(c->receive, c, N, rank, 1), mine = block_of(c->send, c, N, rank, 1);
    if (out.elements != mine.elements)
        memcpy(out.elements, mine.elements, mine.count * dtype_size(c->dtype));
    for (int step = 0; step < N - 1; step++) {
        Block in = block_of(c->receive, c, N, (rank + 2 * N - 1 - step) % N, 1);
        exchange(pg, c, out, (rank + 1) % N, in, (rank + N - 1) % N);
        out = in;
    }
}

void ring_all_reduce(ProcessGroup *pg, const Collective *c)
{
    Collective gather = *c;
    gather.send = c->receive;
    ring_reduce_scatter(pg, c);
    ring_all_gather(pg, &gather);
}

/* ---- halving and doubling ---- */

/* P: the largest power of two that is not above N. Rank r + P first gives its buffer to rank r, and gets the result
 * last. The P ranks halve what they are responsible for: at distance d, a rank's block has d of P chunks. It sends its
 * partner the other block. On the way back, blocks double. */
void halving_doubling_all_reduce(ProcessGroup *pg, const Collective *c)
{
    int N = pg->world_size, rank = pg->rank, P = 1;
    while (2 * P <= N)
        P *= 2;
    unsigned char *theirs = group_scratch(pg, c->count * dtype_size(c->dtype));
    Block all = block_of(c->receive, c, 1, 0, 1), folded = {theirs, c->count};
    if (c->send != c->receive)
        memcpy(c->receive, c->send, c->count * dtype_size(c->dtype));
    if (rank >= P) {
        exchange(pg, c, all, rank - P, nothing, 0);
        exchange(pg, c, nothing, 0, all, rank - P);
        return;
    }
    if (rank + P < N) {
        exchange(pg, c, nothing, 0, folded, rank + P);
        combine(all.elements, all.elements, theirs, all.count, c->dtype, c->op);
    }
    for (int d = P / 2; d >= 1; d /= 2) {
        int partner = rank ^ d;
        Block mine = block_of(c->receive, c, P, rank / d * d, d), sum = {theirs, mine.count};
        exchange(pg, c, block_of(c->receive, c, P, partner / d * d, d), partner, sum, partner);
        combine(mine.elements, mine.elements, theirs, mine.count, c->dtype, c->op);
    }
    for (int d = 1; d < P; d *= 2) {
        int partner = rank ^ d;
        exchange(pg, c, block_of(c->receive, c, P, rank / d * d, d), partner,
                 block_of(c->receive, c, P, partner / d * d, d), partner);
    }
    if (rank + P < N)
        exchange(pg, c, all, rank + P, nothing, 0);
}
