/* staging.c: collectives on device memory through copies in host memory.
 *
 * note: staging
 * MPI, as the distributions build it, reads host memory only. So device memory is copied to pinned host memory (which
 * the GPU reads and writes without the CPU, at full speed), MPI works on the copy, and the result is copied back. Two
 * copies over PCIe and an addition on the CPU are slow compared with NCCL, but need no special hardware. Two ranks can
 * share one GPU this way, which NCCL refuses. Every all-reduce algorithm written for the CPU also works for GPUs:
 * --allreduce ordered gives the same bits here as there.
 *
 * Both copies are done when they return. So when a collective is done, its result is in device memory, and any thread
 * can read it.
 */
#include "backends/gpu/staging.h"

#include <stdlib.h>

#include "base/check.h"
#include "comm/backend.h"
#include "device/device.h"

/* Host memory that replaces device memory during a collective; kept for the next one. */
typedef struct Staging {
    Backend backend;
    void *send, *receive; /* device_alloc_host(); owned */
    size_t send_bytes, receive_bytes;
} Staging;

/* Does the collective send or receive device memory? */
static bool is_needed(const Collective *collective)
{
    return device_owns(collective->send) || device_owns(collective->receive);
}

/* Bytes of the two buffers. A reduce-scatter sends one part per rank; an all-gather receives one part per rank. */
static size_t bytes_sent(const ProcessGroup *pg, const Collective *c)
{
    size_t bytes = c->count * dtype_size(c->dtype);
    return c->operation == OP_REDUCE_SCATTER ? bytes * (size_t)pg_world_size(pg) : bytes;
}

static size_t bytes_received(const ProcessGroup *pg, const Collective *c)
{
    size_t bytes = c->count * dtype_size(c->dtype);
    return c->operation == OP_ALL_GATHER ? bytes * (size_t)pg_world_size(pg) : bytes;
}

/* Makes *memory at least `bytes` large; its old contents may be lost. */
static void *grow(void **memory, size_t *size, size_t bytes)
{
    if (*memory == NULL || bytes > *size) {
        if (*memory != NULL)
            device_free_host(*memory);
        *memory = device_alloc_host(bytes);
        *size = bytes;
    }
    return *memory;
}

static void run_staged(Staging *staging, ProcessGroup *pg, const Collective *collective)
{
    Collective on_host = *collective;
    bool in_place = collective->send == collective->receive && collective->operation != OP_REDUCE_SCATTER;
    bool copy_back = device_owns(collective->receive);
    if (copy_back)
        on_host.receive = grow(&staging->receive, &staging->receive_bytes, bytes_received(pg, collective));
    if (device_owns(collective->send)) {
        size_t bytes = bytes_sent(pg, collective);
        void *copy = in_place ? on_host.receive : grow(&staging->send, &staging->send_bytes, bytes);
        if (collective->operation != OP_BROADCAST || collective->root == pg_rank(pg)) {
            device_range_begin("copy to host");
            device_to_host(copy, collective->send, bytes);
            device_range_end();
        }
        on_host.send = copy;
    }
    staging->backend.inner->run(staging->backend.inner, pg, &on_host);
    if (copy_back) {
        device_range_begin("copy to device");
        device_from_host(collective->receive, on_host.receive, bytes_received(pg, collective));
        device_range_end();
    }
}

static void run(Backend *self, ProcessGroup *pg, const Collective *collective)
{
    if (is_needed(collective))
        run_staged((Staging *)self, pg, collective);
    else
        self->inner->run(self->inner, pg, collective);
}

static void split(const Backend *self, ProcessGroup *part, int color)
{
    (void)self, (void)color;
    staging_use(part);
}

static void close(Backend *self, ProcessGroup *pg)
{
    Staging *staging = (Staging *)self;
    (void)pg;
    if (staging->send != NULL)
        device_free_host(staging->send);
    if (staging->receive != NULL)
        device_free_host(staging->receive);
    free(staging);
}

void staging_use(ProcessGroup *pg)
{
    Staging *staging = alloc_or_fault(sizeof *staging);
    staging->backend = (Backend){.name = pg_backend(pg), .run = run, .split = split, .close = close};
    pg_wrap_backend(pg, &staging->backend);
}
