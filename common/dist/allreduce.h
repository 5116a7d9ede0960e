/* allreduce.h: inside dist/ only: the all-reduce algorithms and what they share.
 *
 * Interface: pg_mpi.c calls all_reduce_by_hand(), which chooses (allreduce.c). An algorithm gets a Collective whose
 * `receive` it fills with the sum (or maximum) over all ranks' `send`; the two may be one buffer. Any count may come,
 * 0 and fewer elements than ranks too. There are at least two ranks.
 */
#ifndef LOCKSTEP_DIST_ALLREDUCE_H
#define LOCKSTEP_DIST_ALLREDUCE_H

#include "dist/mpi_messages.h"

/* Carries the all-reduce out and returns true; false: leave it to the MPI library. */
bool all_reduce_by_hand(ProcessGroup *pg, const Collective *collective);

/* ---- the algorithms, one file each ---- */
void all_reduce_root(ProcessGroup *pg, const Collective *collective);
void all_reduce_ring(ProcessGroup *pg, const Collective *collective);
void all_reduce_recursive_doubling(ProcessGroup *pg, const Collective *collective);
void all_reduce_halving_doubling(ProcessGroup *pg, const Collective *collective);
void all_reduce_ordered(ProcessGroup *pg, const Collective *collective);
void all_reduce_ordered_small(ProcessGroup *pg, const Collective *collective);
void all_reduce_shm(ProcessGroup *pg, const Collective *collective);

/* Tags keep messages of one kind apart from those of another between the same two ranks. */
enum { TAG_PART = 1, TAG_RESULT, TAG_FOLD, TAG_SWAP, TAG_RING /* + the step */ };

/* ---- allreduce.c ---- */

/* Where a chunk begins, if `count` elements are cut into `chunks` nearly equal ones. Chunks start at multiples of 32
 * elements, so that two of them share no cache line. chunk_start(count, N, N) is count. */
size_t chunk_start(size_t count, int chunks, int chunk);
size_t chunk_count(size_t count, int chunks, int chunk);

/* Starts a message of elements that begin at `elements`; an empty one is not sent. Appends to requests. */
void start_send(ProcessGroup *pg, const Collective *c, const void *elements, size_t count, int to, int tag,
                MPI_Request *requests, int *pending);
void start_receive(ProcessGroup *pg, const Collective *c, void *elements, size_t count, int from, int tag,
                   MPI_Request *requests, int *pending);

/* ---- combine.c ---- */
bool is_half(DType dtype); /* 16 bits */

/* out = a op b; out may be a or b. Not for 16-bit types. */
void combine(void *out, const void *a, const void *b, size_t count, DType dtype, ReduceOp op);

/* Every one of `totals` = parts[0] op parts[1] op ..., in this order; at least two parts. A total may be one of the parts.
 * 16-bit types are added in float32 and rounded once. */
void combine_parts(void *const *totals, int total_count, const void *const *parts, int part_count, size_t count,
                   DType dtype, ReduceOp op);

#endif
