/* allreduce_doubling.c: pairs of ranks at distance 1, 2, 4, ... swap data: log2(N) steps, where a ring takes 2(N-1).
 *
 * note: recursive-doubling
 * In step k rank r and rank r XOR 2^k swap their whole buffers and add them. After step k each rank holds the sum over
 * its group of 2^(k+1) ranks; after log2(N) steps, over all ranks. This has the fewest latencies, but sends the whole
 * buffer in every step: it is for small buffers.
 *
 * note: halving-doubling
 * For large buffers (Rabenseifner's algorithm). First the distance and the size of the swapped block halve in every
 * step: each rank sends the half that its partner will own, and keeps the sum of the other half. In the end rank r owns
 * the finished chunk r. Then the distance doubles again, and ranks swap finished blocks until all ranks have all of
 * them. The cost is 2 log2(N) latencies and 2(N-1)/N of the buffer: both are close to the minimum.
 *
 * note: any-world-size
 * Both algorithms need a power of two. Let P be the largest power of two that is not above N. Each rank from P on first
 * sends its buffer to rank - P, takes no part in the steps, and receives the result at the end.
 *
 * Both ranks of a pair compute lower rank's part + higher rank's part, so that all ranks get the same bits.
 */
#include "base/check.h"
#include "comm/allreduce.h"

#include <string.h>

/* Chunks [first, first + chunks) of `total` chunks: what a rank sends or receives in one step. */
typedef struct Block {
    unsigned char *elements;
    size_t count;
} Block;

static Block block_of(const Collective *c, int total, int first, int chunks)
{
    size_t start = chunk_start(c->count, total, first);
    return (Block){(unsigned char *)c->receive + start * dtype_size(c->dtype),
                   chunk_start(c->count, total, first + chunks) - start};
}

/* Sends one block to the partner, and receives `count` elements from it at `place`. */
static void swap_blocks(ProcessGroup *pg, const Collective *c, int partner, Block out, void *place, size_t count)
{
    MPI_Request requests[2];
    int pending = 0;
    start_receive(pg, c, place, count, partner, TAG_SWAP, requests, &pending);
    start_send(pg, c, out.elements, out.count, partner, TAG_SWAP, requests, &pending);
    wait_for_messages(pg, c, pending, requests);
}

/* block = block op theirs, in rank order. */
static void add_partner(const ProcessGroup *pg, const Collective *c, int partner, Block block, const void *theirs)
{
    if (partner < pg->rank)
        combine(block.elements, theirs, block.elements, block.count, c->dtype, c->op);
    else
        combine(block.elements, block.elements, theirs, block.count, c->dtype, c->op);
}

static int largest_power_of_two(int world_size)
{
    int P = 1;
    while (2 * P <= world_size)
        P *= 2;
    return P;
}

/* The ranks from P on send their buffers to their partners. Returns whether this rank takes part in the next steps. */
static bool fold_in(ProcessGroup *pg, const Collective *c, int P, void *scratch)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int pending = 0, partner = pg->rank < P ? pg->rank + P : pg->rank - P;
    Block all = block_of(c, 1, 0, 1);
    if (c->send != c->receive)
        memcpy(c->receive, c->send, c->count * dtype_size(c->dtype));
    if (pg->rank >= P) {
        start_send(pg, c, all.elements, all.count, partner, TAG_FOLD, &request, &pending);
        wait_for_messages(pg, c, pending, &request);
        return false;
    }
    if (partner < pg->world_size) {
        start_receive(pg, c, scratch, all.count, partner, TAG_FOLD, &request, &pending);
        wait_for_messages(pg, c, pending, &request);
        add_partner(pg, c, partner, all, scratch);
    }
    return true;
}

/* The ranks from P on receive the result. */
static void fold_out(ProcessGroup *pg, const Collective *c, int P)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int pending = 0;
    if (pg->rank >= P)
        start_receive(pg, c, c->receive, c->count, pg->rank - P, TAG_RESULT, &request, &pending);
    else if (pg->rank + P < pg->world_size)
        start_send(pg, c, c->receive, c->count, pg->rank + P, TAG_RESULT, &request, &pending);
    wait_for_messages(pg, c, pending, &request);
}

void all_reduce_recursive_doubling(ProcessGroup *pg, const Collective *c)
{
    int P = largest_power_of_two(pg->world_size);
    void *theirs = group_scratch(pg, c->count * dtype_size(c->dtype));
    Block all = block_of(c, 1, 0, 1);
    bool takes_part = fold_in(pg, c, P, theirs);
    for (int distance = 1; takes_part && distance < P; distance *= 2) {
        int partner = pg->rank ^ distance;
        swap_blocks(pg, c, partner, all, theirs, all.count);
        add_partner(pg, c, partner, all, theirs);
    }
    fold_out(pg, c, P);
}

void all_reduce_halving_doubling(ProcessGroup *pg, const Collective *c)
{
    int P = largest_power_of_two(pg->world_size), rank = pg->rank;
    void *theirs = group_scratch(pg, c->count * dtype_size(c->dtype));
    bool takes_part = fold_in(pg, c, P, theirs);
    /* At distance d, a block has d chunks; rank r's block contains chunk r. */
    for (int d = P / 2; takes_part && d >= 1; d /= 2) {
        int partner = rank ^ d;
        Block mine = block_of(c, P, rank / d * d, d);
        swap_blocks(pg, c, partner, block_of(c, P, partner / d * d, d), theirs, mine.count);
        add_partner(pg, c, partner, mine, theirs);
    }
    for (int d = 1; takes_part && d < P; d *= 2) {
        int partner = rank ^ d;
        Block partner_block = block_of(c, P, partner / d * d, d);
        swap_blocks(pg, c, partner, block_of(c, P, rank / d * d, d), partner_block.elements, partner_block.count);
    }
    fold_out(pg, c, P);
}
