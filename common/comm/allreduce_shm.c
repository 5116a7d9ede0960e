/* allreduce_shm.c: all-reduce, reduce-scatter and all-gather between ranks of one host, in memory that all of them
 * share.
 *
 * note: shm
 * MPI copies each message into a buffer between the processes, and out of it again. Ranks that share memory need no
 * messages: each can read the gradients of the others where they are. As in the ordered algorithm, rank c owns chunk c
 * and adds all parts of it in rank order, so the result has the same bits. There are three methods, with
 * barriers in shared memory:
 *
 *   all_reduce_in_window  The buffers lie in a window (pg_alloc_shared). Rank c reads chunk c of all buffers and writes
 *                         the sum to all buffers. Nothing is copied. One barrier before, one after.
 *   all_reduce_staged     The buffers lie elsewhere. Piece after piece is copied into the mailboxes, summed there, and
 *                         copied out.
 *   exchange_small        For so few bytes that a barrier costs more than adding: each rank copies its part into its
 *                         mailbox, and after ONE barrier each rank adds all parts itself.
 */
#include <string.h>

#include "base/check.h"
#include "comm/allreduce.h"
#include "comm/shared_memory.h"

/* note: shm-small
 * Copies `send` (of `bytes` bytes) into this rank's mailbox, and waits at a barrier. Then parts[rank] is every rank's
 * `send`, from byte `offset` on. */
static void exchange_small(ProcessGroup *pg, const Collective *c, size_t bytes, size_t offset)
{
    int slot = (int)(pg->shared->calls % 2);
    for (int rank = 0; rank < pg->world_size; rank++)
        pg->shared->parts[rank] = pg->shared->mailboxes[rank]->small[slot] + offset;
    memcpy(pg->shared->mailboxes[pg->rank]->small[slot], c->send, bytes);
    shared_announce_at_barrier(pg, c, (Announcement){0});
}

/* receive = the sum of all ranks' parts. */
static void add_parts(ProcessGroup *pg, const Collective *c)
{
    combine_parts(&c->receive, 1, pg->shared->parts, pg->world_size, c->count, c->dtype, c->op);
}

/* note: shm-in-window
 * Rank c reads chunk c of every rank's buffer and writes the sum to every rank's buffer. No other rank reads or writes
 * that chunk between the two barriers. */
static void all_reduce_in_window(ProcessGroup *pg, const Collective *c, const SharedWindow *window)
{
    size_t offset = (size_t)((unsigned char *)c->receive - window->parts[pg->rank]);
    size_t mine = offset + chunk_start(c->count, pg->world_size, pg->rank) * dtype_size(c->dtype);
    for (int rank = 0; rank < pg->world_size; rank++)
        pg->shared->parts[rank] = pg->shared->totals[rank] = window->parts[rank] + mine;
    shared_announce_at_barrier(pg, c, (Announcement){.window = window->number, .offset = offset});
    combine_parts(pg->shared->totals, pg->world_size, pg->shared->parts, pg->world_size,
                  chunk_count(c->count, pg->world_size, pg->rank), c->dtype, c->op);
    shared_barrier(pg, c); /* every chunk is done, and no rank touches this rank's buffer any more */
}

/* One piece: copy in, barrier, add this rank's chunk of it, barrier, copy out. */
static void reduce_piece(ProcessGroup *pg, const Collective *c)
{
    size_t size = dtype_size(c->dtype), mine = chunk_start(c->count, pg->world_size, pg->rank) * size;
    int slot = (int)(pg->shared->pieces++ % 2);
    unsigned char *receive = c->receive;
    memcpy(pg->shared->mailboxes[pg->rank]->staging[slot], c->send, c->count * size);
    shared_barrier(pg, c);
    for (int rank = 0; rank < pg->world_size; rank++)
        pg->shared->parts[rank] = pg->shared->mailboxes[rank]->staging[slot] + mine;
    void *totals[] = {pg->shared->mailboxes[pg->rank]->staging[slot] + mine, receive + mine};
    combine_parts(totals, 2, pg->shared->parts, pg->world_size, chunk_count(c->count, pg->world_size, pg->rank),
                  c->dtype, c->op);
    shared_barrier(pg, c);
    for (int rank = 0; rank < pg->world_size; rank++) {
        size_t chunk = chunk_start(c->count, pg->world_size, rank) * size;
        if (rank != pg->rank)
            memcpy(receive + chunk, pg->shared->mailboxes[rank]->staging[slot] + chunk,
                   chunk_count(c->count, pg->world_size, rank) * size);
    }
}

/* note: shm-staged
 * The other ranks cannot see this buffer, so it goes through the mailboxes in pieces that fit into them. Two slots
 * alternate: a rank may fill one while others still read the other. */
static void all_reduce_staged(ProcessGroup *pg, const Collective *c)
{
    size_t max_count = MAILBOX_STAGING / dtype_size(c->dtype);
    shared_announce_at_barrier(pg, c, (Announcement){0});
    for (size_t start = 0; start < c->count; start += max_count) {
        const Collective piece = segment_of(c, start, max_count);
        reduce_piece(pg, &piece);
    }
}

void all_reduce_shm(ProcessGroup *pg, const Collective *c)
{
    size_t bytes = c->count * dtype_size(c->dtype);
    bool in_place = c->send == c->receive;
    const SharedWindow *window = in_place ? shared_window_of(pg->shared, pg->rank, c->receive, bytes) : NULL;
    if (bytes <= MAILBOX_SMALL) {
        exchange_small(pg, c, bytes, 0);
        add_parts(pg, c);
    } else if (window != NULL)
        all_reduce_in_window(pg, c, window);
    else
        all_reduce_staged(pg, c);
}

/* ---- reduce-scatter and all-gather ---- */

/* note: shm-halves
 * Here no rank writes into another's memory: it reads parts from the others' buffers (or mailboxes), and writes its own
 * `receive`. So the buffers may lie at different places of their windows, and each rank announces where its own lies.
 * The second barrier is still needed: after it, a rank may change its `send`. */

/* Announces the call and waits at a barrier. True: parts[rank] is every rank's `send`, from byte `offset` on. False: at
 * least one of them (`bytes` long) is in no window. */
static bool announce_sends(ProcessGroup *pg, const Collective *c, size_t bytes, size_t offset)
{
    const SharedWindow *window = shared_window_of(pg->shared, pg->rank, c->send, bytes);
    Announcement mine = {0};
    if (window != NULL) {
        mine.window = window->number;
        mine.offset = (size_t)((const unsigned char *)c->send - window->parts[pg->rank]);
    }
    shared_announce_at_barrier(pg, c, mine);
    for (int rank = 0; rank < pg->world_size; rank++) {
        const unsigned char *send = shared_announced_send(pg->shared, rank);
        if (send == NULL)
            return false;
        pg->shared->parts[rank] = send + offset;
    }
    return true;
}

/* receive = all ranks' parts, one behind the other. In place, this rank's is there already. */
static void copy_parts(ProcessGroup *pg, const Collective *c)
{
    for (int rank = 0; rank < pg->world_size; rank++)
        if (pg->shared->parts[rank] != part_received(pg, c, rank))
            memcpy(part_received(pg, c, rank), pg->shared->parts[rank], c->count * dtype_size(c->dtype));
}

static void add_or_copy_parts(ProcessGroup *pg, const Collective *c)
{
    if (c->operation == OP_REDUCE_SCATTER)
        add_parts(pg, c);
    else
        copy_parts(pg, c);
}

/* Piece by piece: copies what this rank sends of a piece into its mailbox, waits at a barrier, and then adds or copies
 * what all ranks have there. One barrier for each piece is enough: see Mailbox. */
static void run_staged(ProcessGroup *pg, const Collective *c)
{
    bool adds = c->operation == OP_REDUCE_SCATTER;
    int sent_parts = adds ? pg->world_size : 1, first = adds ? 0 : pg->rank;
    size_t max_count = MAILBOX_STAGING / dtype_size(c->dtype) / (size_t)sent_parts;
    for (size_t start = 0; start < c->count; start += max_count) {
        const Collective piece = segment_of(c, start, max_count);
        size_t bytes = piece.count * dtype_size(c->dtype), mine = adds ? (size_t)pg->rank * bytes : 0;
        int slot = (int)(pg->shared->pieces++ % 2);
        unsigned char *staging = pg->shared->mailboxes[pg->rank]->staging[slot];
        for (int part = 0; part < sent_parts; part++)
            memcpy(staging + (size_t)part * bytes, part_sent(pg, &piece, first + part), bytes);
        shared_barrier(pg, c);
        for (int rank = 0; rank < pg->world_size; rank++)
            pg->shared->parts[rank] = pg->shared->mailboxes[rank]->staging[slot] + mine;
        add_or_copy_parts(pg, &piece);
    }
}

void scatter_or_gather_shm(ProcessGroup *pg, const Collective *c)
{
    bool adds = c->operation == OP_REDUCE_SCATTER;
    size_t part = c->count * dtype_size(c->dtype), bytes = adds ? (size_t)pg->world_size * part : part;
    size_t mine = adds ? (size_t)pg->rank * part : 0; /* this rank's part of each rank's `send` begins there */
    if (bytes <= MAILBOX_SMALL) {
        exchange_small(pg, c, bytes, mine);
        add_or_copy_parts(pg, c);
    } else if (announce_sends(pg, c, bytes, mine)) {
        add_or_copy_parts(pg, c);
        shared_barrier(pg, c); /* no rank reads this rank's `send` any more */
    } else
        run_staged(pg, c);
}
