/* allreduce_shm.c: all-reduce between ranks of one host, in memory that all of them share.
 *
 * note: shm
 * MPI copies each message into a buffer between the processes, and out of it again. Ranks that share memory need no
 * messages: each can read the gradients of the others where they are. As in the ordered algorithm, rank c owns chunk c
 * and adds all parts of it in rank order, so the result has the same bits. There are three methods (a meeting is a
 * barrier in shared memory):
 *
 *   all_reduce_in_window  The buffers lie in a window (pg_alloc_shared). Rank c reads chunk c of all buffers and writes
 *                         the sum to all buffers. Nothing is copied. One meeting before, one after.
 *   all_reduce_staged     The buffers lie elsewhere. Piece after piece is copied into the mailboxes, summed there, and
 *                         copied out.
 *   all_reduce_small      For so few bytes that a meeting costs more than adding: each rank copies its part into its
 *                         mailbox, and after ONE meeting each rank adds all parts itself.
 */
#include <string.h>

#include "base/check.h"
#include "comm/allreduce.h"
#include "comm/shared_memory.h"

/* note: shm-small */
static void all_reduce_small(ProcessGroup *pg, const Collective *c)
{
    int slot = (int)(pg->shared->calls % 2);
    for (int rank = 0; rank < pg->world_size; rank++)
        pg->shared->parts[rank] = pg->shared->mailboxes[rank]->small[slot];
    memcpy(pg->shared->mailboxes[pg->rank]->small[slot], c->send, c->count * dtype_size(c->dtype));
    shared_announce_and_meet(pg, c, (Announcement){.count = c->count, .dtype = c->dtype});
    combine_parts(&c->receive, 1, pg->shared->parts, pg->world_size, c->count, c->dtype, c->op);
}

/* note: shm-in-window */
static void all_reduce_in_window(ProcessGroup *pg, const Collective *c, const SharedWindow *window)
{
    size_t offset = (size_t)((unsigned char *)c->receive - window->parts[pg->rank]);
    size_t mine = offset + chunk_start(c->count, pg->world_size, pg->rank) * dtype_size(c->dtype);
    for (int rank = 0; rank < pg->world_size; rank++)
        pg->shared->parts[rank] = pg->shared->totals[rank] = window->parts[rank] + mine;
    shared_announce_and_meet(pg, c, (Announcement){.count = c->count, .dtype = c->dtype, .window = window->number,
                                                   .offset = offset});
    combine_parts(pg->shared->totals, pg->world_size, pg->shared->parts, pg->world_size,
                  chunk_count(c->count, pg->world_size, pg->rank), c->dtype, c->op);
    shared_meet(pg, c); /* every chunk is done, and no rank touches this rank's buffer any more */
}

/* One piece: copy in, meet, add this rank's chunk of it, meet, copy out. */
static void reduce_piece(ProcessGroup *pg, const Collective *c, size_t start, size_t count)
{
    size_t size = dtype_size(c->dtype), mine = chunk_start(count, pg->world_size, pg->rank) * size;
    int slot = (int)(pg->shared->pieces++ % 2);
    unsigned char *receive = (unsigned char *)c->receive + start * size;
    memcpy(pg->shared->mailboxes[pg->rank]->staging[slot], (const unsigned char *)c->send + start * size, count * size);
    shared_meet(pg, c);
    for (int rank = 0; rank < pg->world_size; rank++)
        pg->shared->parts[rank] = pg->shared->mailboxes[rank]->staging[slot] + mine;
    void *totals[] = {pg->shared->mailboxes[pg->rank]->staging[slot] + mine, receive + mine};
    combine_parts(totals, 2, pg->shared->parts, pg->world_size, chunk_count(count, pg->world_size, pg->rank), c->dtype,
                  c->op);
    shared_meet(pg, c);
    for (int rank = 0; rank < pg->world_size; rank++) {
        size_t chunk = chunk_start(count, pg->world_size, rank) * size;
        if (rank != pg->rank)
            memcpy(receive + chunk, pg->shared->mailboxes[rank]->staging[slot] + chunk,
                   chunk_count(count, pg->world_size, rank) * size);
    }
}

/* note: shm-staged */
static void all_reduce_staged(ProcessGroup *pg, const Collective *c)
{
    size_t piece = MAILBOX_STAGING / dtype_size(c->dtype);
    shared_announce_and_meet(pg, c, (Announcement){.count = c->count, .dtype = c->dtype});
    for (size_t start = 0; start < c->count; start += piece)
        reduce_piece(pg, c, start, c->count - start < piece ? c->count - start : piece);
}

void all_reduce_shm(ProcessGroup *pg, const Collective *c)
{
    size_t bytes = c->count * dtype_size(c->dtype);
    bool in_place = c->send == c->receive;
    const SharedWindow *window = in_place ? shared_window_of(pg->shared, pg->rank, c->receive, bytes) : NULL;
    if (bytes <= MAILBOX_SMALL)
        all_reduce_small(pg, c);
    else if (window != NULL)
        all_reduce_in_window(pg, c, window);
    else
        all_reduce_staged(pg, c);
}
