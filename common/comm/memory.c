/* memory.c: memory for gradients, in windows that all ranks of the host see, or not; and the list of allocations,
 * against which counts are checked. */
#include <stdlib.h>

#include "base/check.h"
#include "comm/shared_memory.h"
#include "device/device.h"

/* The communication thread reads the list, but never while the training thread changes it: see worker_drain() and
 * worker_check_all_waited_for() below. */
static void remove_from_list(ProcessGroup *pg, const void *memory)
{
    Allocation **link = &pg->allocations;
    while (*link != NULL && (*link)->begin != (uintptr_t)memory)
        link = &(*link)->next;
    Allocation *given = *link;
    if (given != NULL)
        *link = given->next;
    free(given);
}

void *pg_alloc_shared(ProcessGroup *pg, size_t bytes)
{
    if (pg == NULL)
        return device_alloc(bytes);
    worker_drain(pg); /* the communication thread must not read the two lists now */
    void *window = pg->shared != NULL ? window_create(pg, bytes) : NULL;
    void *memory = window != NULL ? window : device_alloc(bytes);
    Allocation *given = alloc_or_fault(sizeof *given);
    *given = (Allocation){.begin = (uintptr_t)memory, .bytes = bytes, .next = pg->allocations};
    pg->allocations = given;
    return memory;
}

void pg_free_shared(ProcessGroup *pg, void *memory)
{
    if (pg != NULL) {
        worker_check_all_waited_for(pg, "this rank frees memory");
        remove_from_list(pg, memory);
    }
    if (pg == NULL || !window_free(pg, memory)) /* without room for a window, memory comes from device_alloc() */
        device_free(memory);
}

size_t pg_shared_bytes(const ProcessGroup *pg)
{
    size_t bytes = 0;
    for (const Allocation *allocation = pg->allocations; allocation != NULL; allocation = allocation->next)
        bytes += allocation->bytes;
    return bytes;
}
