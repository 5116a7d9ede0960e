/* allreduce.c: which algorithm carries an all-reduce out, and what the algorithms share.
 *
 *   mpi                 the library's own MPI_Iallreduce
 *   root                allreduce_root.c      all parts to rank 0, the sum back
 *   ring                allreduce_ring.c      chunks travel round the ring
 *   recursive-doubling  allreduce_doubling.c  pairs at distance 1, 2, 4, ...
 *   ordered             allreduce_ordered.c   the owner of a chunk adds all parts of it in rank order
 *   shm                 allreduce_shm.c       the same, without messages, in memory that all ranks see
 *
 * What each costs and when it wins: notes/allreduce.md.
 */
#include "dist/allreduce.h"

#include <string.h>

#include "base/check.h"

/* note: segments
 * A long buffer is reduced segment after segment, so that what one step of an algorithm has written is still in the
 * cache when the next one reads it, and scratch memory stays small. On a real network a segment must be long enough to
 * be worth its latency. */
#define SEGMENT_BYTES ((size_t)2 << 20)

/* Up to here recursive doubling sends the whole buffer log2(N) times: fewest messages. Above, halving-doubling sends
 * less. */
#define SMALL_BYTES ((size_t)16 << 10)

/* Up to here the ordered algorithm sends everything to everyone, in one exchange instead of two. */
#define ORDERED_SMALL_BYTES ((size_t)4 << 10)

size_t chunk_start(size_t count, int chunks, int chunk)
{
    size_t blocks = (count + 31) / 32;
    size_t start = blocks * (size_t)chunk / (size_t)chunks * 32;
    return start < count ? start : count;
}

size_t chunk_count(size_t count, int chunks, int chunk)
{
    return chunk_start(count, chunks, chunk + 1) - chunk_start(count, chunks, chunk);
}

void start_send(ProcessGroup *pg, const Collective *c, const void *elements, size_t count, int to, int tag,
                MPI_Request *requests, int *pending)
{
    if (count > 0)
        CHECK_MPI(MPI_Isend(elements, (int)count, mpi_datatype(c->dtype), to, tag, group_communicator(pg),
                            &requests[(*pending)++]));
}

void start_receive(ProcessGroup *pg, const Collective *c, void *elements, size_t count, int from, int tag,
                   MPI_Request *requests, int *pending)
{
    if (count > 0)
        CHECK_MPI(MPI_Irecv(elements, (int)count, mpi_datatype(c->dtype), from, tag, group_communicator(pg),
                            &requests[(*pending)++]));
}

/* Runs the algorithm on one segment of the buffer after the other. */
static void in_segments(ProcessGroup *pg, const Collective *c, void (*algorithm)(ProcessGroup *, const Collective *))
{
    size_t size = dtype_size(c->dtype), segment = SEGMENT_BYTES / size;
    for (size_t start = 0; start < c->count; start += segment) {
        Collective part = *c;
        part.send = (const unsigned char *)c->send + start * size;
        part.receive = (unsigned char *)c->receive + start * size;
        part.count = c->count - start < segment ? c->count - start : segment;
        algorithm(pg, &part);
    }
}

/* note: half-precision-sums
 * A 16-bit partial sum would be rounded at every hop, and lose what is small beside it: 256 + 1 + 1 + 1 + 1 is 256 in
 * bf16. The algorithms that collect all PARTS in one place add them in float32 and round once. Those that pass partial
 * SUMS on would have to send them as float32, so 16-bit types take the ordered algorithm instead: it sends no more
 * bytes than a ring. (MPI has no 16-bit floating point at all.) */
AllReduceAlgorithm all_reduce_algorithm(AllReduceAlgorithm wanted, DType dtype)
{
    bool passes_sums_on = wanted == ALLREDUCE_MPI || wanted == ALLREDUCE_RING || wanted == ALLREDUCE_DOUBLING;
    return is_half(dtype) && passes_sums_on ? ALLREDUCE_ORDERED : wanted;
}

bool all_reduce_by_hand(ProcessGroup *pg, const Collective *c)
{
    size_t bytes = c->count * dtype_size(c->dtype);
    AllReduceAlgorithm algorithm = all_reduce_algorithm(pg->options.algorithm, c->dtype);
    if (algorithm == ALLREDUCE_MPI)
        return false;
    if (pg->world_size == 1 || c->count == 0) {
        if (c->send != c->receive && bytes > 0)
            memcpy(c->receive, c->send, bytes);
        return true;
    }
    switch (algorithm) {
    case ALLREDUCE_ROOT: in_segments(pg, c, all_reduce_root); break;
    case ALLREDUCE_RING: all_reduce_ring(pg, c); break;
    case ALLREDUCE_DOUBLING:
        in_segments(pg, c, bytes <= SMALL_BYTES ? all_reduce_recursive_doubling : all_reduce_halving_doubling);
        break;
    case ALLREDUCE_ORDERED:
        in_segments(pg, c, bytes <= ORDERED_SMALL_BYTES ? all_reduce_ordered_small : all_reduce_ordered);
        break;
    case ALLREDUCE_SHM: all_reduce_shm(pg, c); break;
    case ALLREDUCE_MPI: break;
    }
    return true;
}
