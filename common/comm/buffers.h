/* buffers.h: inside comm/ only: what a collective is called, how long its buffers are, and where they may lie. It needs
 * neither MPI nor a ProcessGroup, so every implementation of process_group.h can make the same checks. (Two more of its
 * functions are in collective.h, for everybody: operation_name() and collective_bytes().) */
#ifndef LOCKSTEP_COMM_BUFFERS_H
#define LOCKSTEP_COMM_BUFFERS_H

#include <stdint.h>

#include "comm/collective.h"

/* Memory that pg_alloc_shared() gave. A list of them begins with NULL; it does not own the memory. */
typedef struct Allocation {
    uintptr_t begin;
    size_t bytes;
    struct Allocation *next;
} Allocation;

void allocations_add(Allocation **list, const void *memory, size_t bytes);
void allocations_remove(Allocation **list, const void *memory); /* does nothing if the memory is not in the list */
size_t allocations_bytes(const Allocation *list);               /* of all memory in the list */

/* Faults unless the buffers of the collective are there, large enough and in allowed places. rank, world_size: this
 * process's in the group. of_group: as of collective_text(). */
void check_buffers(const Collective *collective, int rank, int world_size, const Allocation *allocations,
                   const char *of_group);

/* "all_reduce number 7 (bucket 2, 65536 x float32)" and of_group: "" or " of group 1/0 (...)", see pg_of_group(). Valid
 * until this thread's next call. */
const char *collective_text(const Collective *collective, const char *of_group);

/* True if the call counts in CommCounters.sums or async_sums: it adds up numbers such as gradients. */
bool adds_up_gradients(const Collective *collective);

#endif
