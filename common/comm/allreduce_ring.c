/* allreduce_ring.c: every rank sends only to the next rank, and receives only from the rank before it.
 *
 * note: ring
 * The buffer is cut into N chunks. In step s (0 to 2(N-1) - 1) rank r sends chunk r - s and receives chunk r - s - 1:
 *   steps 0 to N-2     (reduce-scatter): a partial sum arrives; the receiver adds its own part to it.
 *                      After these steps rank r holds the finished sum of chunk r + 1.
 *   steps N-1 to 2N-3  (all-gather): a finished sum arrives, directly in its place in the buffer.
 * Each rank sends 2(N-1) chunks of 1/N of the buffer, the minimum for any N. The price is 2(N-1) latencies.
 *
 * A reduce-scatter has only the first steps, and an all-gather only the last ones. Their chunks are numbered one lower,
 * so that rank r ends, or begins, with chunk r.
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
    size_t segment_count;    /* elements of a segment, see segment_of(); the last one may be shorter */
    unsigned char *incoming; /* (N-1, 2) partial sums of CHUNK_BYTES each */
} Ring;

static Collective segment_number(const Ring *ring, size_t segment)
{
    return segment_of(ring->c, segment * ring->segment_count, ring->segment_count);
}

/* Where the partial sum of a reduce-scatter step arrives. In the next tick it is sent on, while the partial sum of the
 * next segment arrives for the same step. So there are two places for each step. */
static unsigned char *partial_sum(const Ring *ring, size_t segment, int step)
{
    return ring->incoming + (2 * (size_t)step + segment % 2) * CHUNK_BYTES;
}

/* The chunk that arrives in this step. It is sent in the next one. */
static int arriving_chunk(const Ring *ring, int step)
{
    int N = ring->pg->world_size, first = ring->c->operation == OP_ALL_REDUCE ? 0 : -1;
    return (first + ring->pg->rank + 2 * N - 1 - step) % N;
}

static void start_step(const Ring *ring, size_t segment, int step, MPI_Request *requests, int *pending)
{
    ProcessGroup *pg = ring->pg;
    int N = pg->world_size, rank = pg->rank;
    int in = arriving_chunk(ring, step), out = (in + 1) % N;
    const Collective c = segment_number(ring, segment);
    void *place = step < N - 1 ? partial_sum(ring, segment, step) : part_received(pg, &c, in);
    start_receive(pg, &c, place, part_count(pg, &c, in), (rank + N - 1) % N, TAG_RING + step, requests, pending);
    const void *sent = step == 0      ? part_sent(pg, &c, out)
                       : step < N - 1 ? partial_sum(ring, segment, step - 1)
                                      : part_received(pg, &c, out);
    start_send(pg, &c, sent, part_count(pg, &c, out), (rank + 1) % N, TAG_RING + step, requests, pending);
}

static void finish_step(const Ring *ring, size_t segment, int step)
{
    ProcessGroup *pg = ring->pg;
    int last = pg->world_size - 2, in = arriving_chunk(ring, step);
    if (step > last)
        return; /* all-gather: the chunk was received directly into its place */
    const Collective c = segment_number(ring, segment);
    void *sum = partial_sum(ring, segment, step);
    combine(step == last ? part_received(pg, &c, in) : sum, sum, part_sent(pg, &c, in), part_count(pg, &c, in), c.dtype,
            c.op);
}

void run_ring(ProcessGroup *pg, const Collective *c)
{
    int N = pg->world_size;
    int from = c->operation == OP_ALL_GATHER ? N - 1 : 0, to = c->operation == OP_REDUCE_SCATTER ? N - 1 : 2 * (N - 1);
    size_t chunk = CHUNK_BYTES / dtype_size(c->dtype);
    Ring ring = {.pg = pg, .c = c, .segment_count = c->operation == OP_ALL_REDUCE ? (size_t)N * chunk : chunk};
    ring.incoming = group_scratch(pg, 2 * (size_t)(N - 1) * CHUNK_BYTES);
    MPI_Request *requests = alloc_or_fault(2 * (size_t)(to - from) * sizeof *requests);
    if (c->operation == OP_ALL_GATHER && c->send != part_received(pg, c, pg->rank))
        memcpy(part_received(pg, c, pg->rank), c->send, c->count * dtype_size(c->dtype));
    long segments = (long)((c->count + ring.segment_count - 1) / ring.segment_count);
    for (long tick = from; tick < segments + to - 1; tick++) { /* segment 0 makes step `tick` */
        int first = tick - segments + 1 > from ? (int)(tick - segments + 1) : from; /* step of the youngest under way */
        int last = tick < to ? (int)tick : to - 1;                                  /* and of the oldest */
        int pending = 0;
        for (int step = first; step <= last; step++)
            start_step(&ring, (size_t)(tick - step), step, requests, &pending);
        wait_for_messages(pg, c, pending, requests);
        for (int step = first; step <= last; step++)
            finish_step(&ring, (size_t)(tick - step), step);
    }
    free(requests);
}
