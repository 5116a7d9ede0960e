/* messages.c: the parts of every algorithm: chunks, sends, receives, and waiting for them. */
#include "comm/messages.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"

#define SPIN 20e-6                    /* seconds; while training waits, if every rank has a core */
#define YIELDS_BEFORE_SLEEP 2000      /* while training waits: some ms on an idle machine */
#define SHORTEST_SLEEP 20e-6          /* seconds */
#define LONGEST_SLEEP 200e-6

void check_mpi(int code, const char *call, const char *file, int line)
{
    if (code == MPI_SUCCESS)
        return;
    char text[MPI_MAX_ERROR_STRING];
    int length, class;
    MPI_Error_string(code, text, &length);
    text[strcspn(text, "\n")] = '\0'; /* the rest is MPI's own call stack */
    MPI_Error_class(code, &class);
    fault_at(file, line, "%s failed: %s%s", call, text,
             class == MPI_ERR_TRUNCATE ? ": a rank has sent more than this one expects, so the ranks are in different "
                                         "collectives; --debug-collectives names the first one that differs" : "");
}

/* ---- chunks ---- */

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

size_t part_count(const ProcessGroup *pg, const Collective *c, int rank)
{
    return c->operation == OP_ALL_REDUCE ? chunk_count(c->count, pg->world_size, rank) : c->count;
}

static size_t part_offset(const ProcessGroup *pg, const Collective *c, int rank) /* bytes */
{
    bool chunks = c->operation == OP_ALL_REDUCE;
    return (chunks ? chunk_start(c->count, pg->world_size, rank) : (size_t)rank * c->stride) * dtype_size(c->dtype);
}

const void *part_sent(const ProcessGroup *pg, const Collective *c, int rank)
{
    return (const unsigned char *)c->send + (c->operation == OP_ALL_GATHER ? 0 : part_offset(pg, c, rank));
}

void *part_received(const ProcessGroup *pg, const Collective *c, int rank)
{
    return (unsigned char *)c->receive + (c->operation == OP_REDUCE_SCATTER ? 0 : part_offset(pg, c, rank));
}

Collective segment_of(const Collective *c, size_t start, size_t max_count)
{
    Collective segment = *c;
    segment.send = (const unsigned char *)c->send + start * dtype_size(c->dtype);
    segment.receive = (unsigned char *)c->receive + start * dtype_size(c->dtype);
    segment.count = c->count - start < max_count ? c->count - start : max_count;
    return segment;
}

/* ---- messages ---- */

static int mpi_count(size_t elements, DType dtype)
{
    return (int)(dtype == DTYPE_INT8_BLOCK ? elements * sizeof(Int8Block) : elements);
}

void start_send(ProcessGroup *pg, const Collective *c, const void *elements, size_t count, int to, int tag,
                MPI_Request *requests, int *pending)
{
    if (count > 0)
        CHECK_MPI(MPI_Isend(elements, mpi_count(count, c->dtype), mpi_datatype(c->dtype), to, tag, pg->comm,
                            &requests[(*pending)++]));
}

void start_receive(ProcessGroup *pg, const Collective *c, void *elements, size_t count, int from, int tag,
                   MPI_Request *requests, int *pending)
{
    if (count > 0)
        CHECK_MPI(MPI_Irecv(elements, mpi_count(count, c->dtype), mpi_datatype(c->dtype), from, tag, pg->comm,
                            &requests[(*pending)++]));
}

/* ---- waiting ---- */

/* note: waiting
 * A blocking MPI call spins. With more ranks than cores, it takes the core from the rank that it waits for. In a
 * communication thread, it takes the core from the computation that runs at the same time. So the loops that call this
 * spin for some microseconds if every rank has a core, then yield a number of times, and then sleep between their
 * tests. The communication thread sleeps at once while the training thread computes. */
void back_off(const ProcessGroup *pg, const Collective *collective, Backoff *backoff)
{
    double now = now_seconds();
    bool in_background = collective->background && !atomic_load(&pg->training_waits);
    if (backoff->start == 0)
        *backoff = (Backoff){.start = now, .pause = SHORTEST_SLEEP};
    if (!in_background && pg->core_per_rank && now - backoff->start < SPIN)
        return;
    if (!in_background && backoff->yields++ < YIELDS_BEFORE_SLEEP) {
        sched_yield();
        return;
    }
    sleep_seconds(backoff->pause);
    backoff->pause = fmin(backoff->pause * 1.5, LONGEST_SLEEP);
}

void wait_for_messages(ProcessGroup *pg, const Collective *collective, int count, MPI_Request *requests)
{
    Backoff backoff = {0};
    for (int finished = 0; finished < count;) {
        int done; /* a test of any request lets MPI make progress on all of them */
        CHECK_MPI(MPI_Test(&requests[finished], &done, MPI_STATUS_IGNORE));
        finished += done;
        if (!done)
            back_off(pg, collective, &backoff);
    }
}

/* ---- the group's own ---- */

void *group_scratch(ProcessGroup *pg, size_t bytes)
{
    if (pg->scratch == NULL || bytes > pg->scratch_bytes) {
        free(pg->scratch);
        pg->scratch = alloc_or_fault(bytes);
        pg->scratch_bytes = bytes;
    }
    return pg->scratch;
}

MPI_Datatype mpi_datatype(DType dtype)
{
    switch (dtype) {
    case DTYPE_F32: return MPI_FLOAT;
    case DTYPE_F64: return MPI_DOUBLE;
    case DTYPE_I32: return MPI_INT32_T;
    case DTYPE_I64: return MPI_INT64_T;
    case DTYPE_BF16:
    case DTYPE_F16: return MPI_UINT16_T; /* only to send: MPI cannot add 16-bit floating point */
    case DTYPE_INT8_BLOCK: return MPI_BYTE; /* only to send, as bytes */
    }
    FAULT("no such dtype: %d", (int)dtype);
}

MPI_Op mpi_op(ReduceOp op)
{
    return op == REDUCE_SUM ? MPI_SUM : MPI_MAX;
}
