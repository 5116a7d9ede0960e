/* messages.h: inside comm/ only: what pg_mpi.c and the all-reduce algorithms share: chunks of a buffer, MPI messages,
 * and how a rank waits for them. */
#ifndef LOCKSTEP_COMM_MESSAGES_H
#define LOCKSTEP_COMM_MESSAGES_H

#include "comm/group.h"

/* Returns when all requests are done. */
void wait_for_messages(ProcessGroup *pg, const Collective *collective, int count, MPI_Request *requests);

/* ---- chunks and messages ---- */

/* The first element of a chunk if `count` elements are cut into `chunks` nearly equal chunks. Chunks start at multiples
 * of 32 elements, so that no two of them share a cache line. chunk_start(count, N, N) is count. */
size_t chunk_start(size_t count, int chunks, int chunk);
size_t chunk_count(size_t count, int chunks, int chunk);

/* Rank r owns part r of a buffer. The buffer of an all-reduce has `count` elements, and its parts are nearly equal
 * chunks. That of a reduce-scatter (its `send`) or an all-gather (its `receive`) has parts of `count` elements, each
 * beginning `stride` elements after the one before it. */
size_t part_count(const ProcessGroup *pg, const Collective *c, int rank);
/* Where the rank's part lies in `send`, and where its result belongs in `receive`. An all-gather sends only this rank's
 * part, and a reduce-scatter receives only this rank's, so for them `rank` must be this one. */
const void *part_sent(const ProcessGroup *pg, const Collective *c, int rank);
void *part_received(const ProcessGroup *pg, const Collective *c, int rank);

/* The collective on a segment of at most `max_count` elements, from element `start` on: of the buffer of an all-reduce,
 * or of each part of the others' buffers. */
Collective segment_of(const Collective *c, size_t start, size_t max_count);

/* Starts a message of `count` elements, and appends its request to requests[*pending]. Does nothing if count is 0. Do
 * not touch the elements until wait_for_messages() returns. */
void start_send(ProcessGroup *pg, const Collective *c, const void *elements, size_t count, int to, int tag,
                MPI_Request *requests, int *pending);
void start_receive(ProcessGroup *pg, const Collective *c, void *elements, size_t count, int from, int tag,
                   MPI_Request *requests, int *pending);

/* Tags separate different kinds of messages between the same two ranks. */
enum { TAG_PART = 1, TAG_RESULT, TAG_FOLD, TAG_SWAP, TAG_RING /* + the step */ };

MPI_Datatype mpi_datatype(DType dtype);
MPI_Op mpi_op(ReduceOp op);

/* Memory for the collective under way, at least `bytes`, not initialised. Owned by the group; valid until the next
 * call. */
void *group_scratch(ProcessGroup *pg, size_t bytes);

#endif
