/* allreduce_ring.c: every rank sends only to the next rank, and receives only from the rank before it.
 *
 * note: ring
 * The buffer is cut into N chunks. In step s (0 to 2(N-1) - 1) rank r sends chunk r - s and receives chunk r - s - 1:
 *   steps 0 to N-2     (reduce-scatter): a partial sum arrives; the receiver adds its own part to it.
 *                      After these steps rank r holds the finished sum of chunk r + 1.
 *   steps N-1 to 2N-3  (all-gather): a finished sum arrives, directly in its place in the buffer.
 * Each rank sends 2(N-1) chunks of 1/N of the buffer, the minimum for any N. The price is 2(N-1) latencies.
 *
 * note: ring-pipeline
 * A long buffer is cut into segments, each with N chunks of its own, and a new segment enters the ring in every tick:
 * in tick t, segment g makes its step t - g. So up to 2(N-1) small messages are under way at once, the links are also
 * busy while ranks add, and a chunk is still in the cache when it is sent on.
 */
#include "comm/allreduce.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define CHUNK_BYTES ((size_t)256 << 10) /* of one segment */

typedef struct Ring {
    ProcessGroup *pg;
    const Collective *c;
    size_t segment_count; /* elements of a segment; the last one may be shorter */
    unsigned char *incoming; /* per reduce-scatter step: the chunk that arrives; CHUNK_BYTES each */
} Ring;

/* The address of a chunk in the buffer, and its number of elements. Chunk numbers are taken modulo N, and may be
 * negative. */
static unsigned char *ring_chunk(const Ring *ring, size_t segment, int chunk, size_t *count)
{
    int N = ring->pg->world_size, number = (chunk % N + N) % N;
    size_t begin = segment * ring->segment_count, left = ring->c->count - begin;
    size_t in_segment = left < ring->segment_count ? left : ring->segment_count;
    *count = chunk_count(in_segment, N, number);
    begin += chunk_start(in_segment, N, number);
    return (unsigned char *)ring->c->receive + begin * dtype_size(ring->c->dtype);
}

static void start_step(const Ring *ring, size_t segment, int step, MPI_Request *requests, int *pending)
{
    ProcessGroup *pg = ring->pg;
    int N = pg->world_size, rank = pg->rank;
    size_t count = 0;
    unsigned char *chunk = ring_chunk(ring, segment, rank - step - 1, &count);
    unsigned char *place = step < N - 1 ? ring->incoming + (size_t)step * CHUNK_BYTES : chunk;
    start_receive(pg, ring->c, place, count, (rank + N - 1) % N, TAG_RING + step, requests, pending);
    chunk = ring_chunk(ring, segment, rank - step, &count);
    start_send(pg, ring->c, chunk, count, (rank + 1) % N, TAG_RING + step, requests, pending);
}

static void finish_step(const Ring *ring, size_t segment, int step)
{
    if (step >= ring->pg->world_size - 1)
        return; /* all-gather: the chunk was received directly into its place */
    size_t count = 0;
    unsigned char *chunk = ring_chunk(ring, segment, ring->pg->rank - step - 1, &count);
    combine(chunk, ring->incoming + (size_t)step * CHUNK_BYTES, chunk, count, ring->c->dtype, ring->c->op);
}

void all_reduce_ring(ProcessGroup *pg, const Collective *c)
{
    int N = pg->world_size, steps = 2 * (N - 1);
    size_t size = dtype_size(c->dtype);
    Ring ring = {.pg = pg, .c = c, .segment_count = (size_t)N * (CHUNK_BYTES / size)};
    ring.incoming = group_scratch(pg, (size_t)(N - 1) * CHUNK_BYTES);
    MPI_Request *requests = alloc_or_fault(2 * (size_t)steps * sizeof *requests);
    if (c->send != c->receive && c->count > 0)
        memcpy(c->receive, c->send, c->count * size);
    long segments = (long)((c->count + ring.segment_count - 1) / ring.segment_count);
    for (long tick = 0; segments > 0 && tick < segments + steps - 1; tick++) {
        int first = tick < segments ? 0 : (int)(tick - segments + 1); /* step of the youngest segment under way */
        int last = tick < steps ? (int)tick : steps - 1;              /* and of the oldest */
        int pending = 0;
        for (int step = first; step <= last; step++)
            start_step(&ring, (size_t)(tick - step), step, requests, &pending);
        wait_for_messages(pg, c, pending, requests);
        for (int step = first; step <= last; step++)
            finish_step(&ring, (size_t)(tick - step), step);
    }
    free(requests);
}
