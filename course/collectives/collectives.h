/* collectives.h: five collectives, on the messages of comm/messages.h. They are written in assignment 0.
 *
 * Interface: all ranks of the group call the same function. Each has its own Collective, of which these fields count:
 *   send, receive   arrays of `count` elements each: the same array (in place), or two that do not overlap; which of
 *                   the two it is may differ from rank to rank
 *   count           elements of the whole array, the same on all ranks; it may be 0, or less than the number of ranks
 *   dtype, op       what an element is, and how elements are added: by combine() in comm/combine.h
 *   root            of a broadcast
 * N is pg->world_size, and this rank is pg->rank. There may be one rank only. Chunk r of an array are its elements from
 * chunk_start(count, N, r) on, chunk_count(count, N, r) of them.
 *
 * When a function returns, `receive` has the result, and all messages of this rank were waited for. `send` is as it was,
 * if it is another array. A function must not count on messages being stored on their way: a long one is done only when
 * its receiver has started to receive it.
 */
#ifndef LOCKSTEP_COLLECTIVES_H
#define LOCKSTEP_COLLECTIVES_H

#include "comm/messages.h"

/* receive = the root's receive, on all ranks. (Here send == receive.) */
void broadcast(ProcessGroup *pg, const Collective *c);

/* Chunk `rank` of receive = op over all ranks of this chunk of send. The other chunks of receive may have any value. */
void ring_reduce_scatter(ProcessGroup *pg, const Collective *c);

/* Each chunk r of receive = chunk r of rank r's send, on all ranks. The other chunks of send may have any value. */
void ring_all_gather(ProcessGroup *pg, const Collective *c);

/* receive = op over all ranks of send, on all ranks, and with the same bits on all of them. */
void ring_all_reduce(ProcessGroup *pg, const Collective *c);
void halving_doubling_all_reduce(ProcessGroup *pg, const Collective *c);

#endif
