/* memory.c: memory for gradients, in windows that all ranks of the host see, or not. The communication thread reads the
 * list of allocations, but never while the training thread changes it: see worker_drain() and
 * worker_check_all_waited_for() below. */
#include "comm/shared_memory.h"
#include "device/device.h"

void *pg_alloc_shared(ProcessGroup *pg, size_t bytes)
{
    if (pg == NULL)
        return device_alloc(bytes);
    worker_drain(pg); /* the communication thread must not read the two lists now */
    void *window = pg->shared != NULL ? window_create(pg, bytes) : NULL;
    void *memory = window != NULL ? window : device_alloc(bytes);
    allocations_add(&pg->allocations, memory, bytes);
    return memory;
}

void pg_free_shared(ProcessGroup *pg, void *memory)
{
    if (pg != NULL) {
        worker_check_all_waited_for(pg, "this rank frees memory");
        allocations_remove(&pg->allocations, memory);
    }
    if (pg == NULL || !window_free(pg, memory)) /* without room for a window, memory comes from device_alloc() */
        device_free(memory);
}

size_t pg_shared_bytes(const ProcessGroup *pg)
{
    return allocations_bytes(pg->allocations);
}
