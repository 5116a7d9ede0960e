/* buffers.c: the names and bytes of collectives, the list of allocations, and the checks of buffers against it. */
#include "comm/buffers.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"

/* ---- a collective ---- */

const char *operation_name(Operation operation)
{
    static const char *const names[] = {"barrier", "broadcast", "all_reduce", "all_gather", "reduce_scatter"};
    return names[operation];
}

const char *collective_text(const Collective *c, const char *of_group)
{
    static _Thread_local char name[300];
    char what[120] = "";
    if (c->operation != OP_BARRIER)
        snprintf(what, sizeof what, " (%.63s, %zu x %s)", c->carries, c->count, dtype_name(c->dtype));
    else if (c->carries[0] != '\0')
        snprintf(what, sizeof what, " (%.63s)", c->carries);
    snprintf(name, sizeof name, "%s number %ld%s%s", operation_name(c->operation), c->sequence, what, of_group);
    return name;
}

size_t collective_bytes(const Collective *collective, int world_size)
{
    size_t bytes = collective->count * dtype_size(collective->dtype);
    bool per_rank = collective->operation == OP_ALL_GATHER || collective->operation == OP_REDUCE_SCATTER;
    return per_rank ? bytes * (size_t)world_size : bytes;
}

bool adds_up_gradients(const Collective *c)
{
    return (c->operation == OP_ALL_REDUCE || c->operation == OP_REDUCE_SCATTER) && c->op == REDUCE_SUM &&
           c->dtype != DTYPE_F64 && c->dtype != DTYPE_I32 && c->dtype != DTYPE_I64;
}

/* ---- allocations ---- */

void allocations_add(Allocation **list, const void *memory, size_t bytes)
{
    Allocation *given = alloc_or_fault(sizeof *given);
    *given = (Allocation){.begin = (uintptr_t)memory, .bytes = bytes, .next = *list};
    *list = given;
}

void allocations_remove(Allocation **list, const void *memory)
{
    while (*list != NULL && (*list)->begin != (uintptr_t)memory)
        list = &(*list)->next;
    Allocation *given = *list;
    if (given != NULL)
        *list = given->next;
    free(given);
}

size_t allocations_bytes(const Allocation *list)
{
    size_t bytes = 0;
    for (; list != NULL; list = list->next)
        bytes += list->bytes;
    return bytes;
}

/* ---- checks of buffers ---- */

/* Faults if the buffer, of counts * `count` elements, begins in memory of pg_alloc_shared() and ends beyond it. */
static void check_count(const Collective *c, const void *buffer, int counts, const Allocation *allocations,
                        const char *of_group)
{
    const uintptr_t begin = (uintptr_t)buffer;
    size_t left = SIZE_MAX;
    for (const Allocation *a = allocations; a != NULL && left == SIZE_MAX; a = a->next) /* newest first */
        if (begin - a->begin < a->bytes) /* unsigned: huge if `begin` lies before it */
            left = (a->begin + a->bytes - begin) / dtype_size(c->dtype);
    CHECK(c->count <= left / (size_t)counts,
          "%s%s goes beyond the end of its memory, where %zu elements are left: counts are elements, never bytes; or "
          "the buffer is too small, or an earlier one of pg_alloc_shared() was freed by free()",
          collective_text(c, of_group), counts > 1 ? " for each rank" : "", left);
}

/* In a reduce-scatter or an all-gather, the short buffer must be this rank's part of the long one, or not overlap
 * it. */
static void check_places(const Collective *c, int rank, int world_size, const char *of_group)
{
    const bool gathers = c->operation == OP_ALL_GATHER;
    const uintptr_t bytes = c->count * dtype_size(c->dtype), whole_bytes = bytes * (uintptr_t)world_size;
    const uintptr_t whole = (uintptr_t)(gathers ? c->receive : c->send);
    const uintptr_t part = (uintptr_t)(gathers ? c->send : c->receive);
    if (!gathers && c->operation != OP_REDUCE_SCATTER)
        return;
    CHECK(part == whole + (uintptr_t)rank * bytes || part + bytes <= whole || whole + whole_bytes <= part,
          "%s: its buffers overlap: in place, the short one is part %d of the long one, this rank's",
          collective_text(c, of_group), rank);
}

void check_buffers(const Collective *c, int rank, int world_size, const Allocation *allocations, const char *of_group)
{
    CHECK(c->count <= PTRDIFF_MAX, "%s: this count is implausible: was it negative as an int?",
          collective_text(c, of_group));
    CHECK(c->count == 0 || (c->send != NULL && c->receive != NULL),
          "%s: a buffer is NULL, like the gradient of a frozen parameter, which needs no all-reduce, or in stage 5 a "
          "buffer that was dropped or has moved into shards", collective_text(c, of_group));
    check_count(c, c->send, c->operation == OP_REDUCE_SCATTER ? world_size : 1, allocations, of_group);
    check_count(c, c->receive, c->operation == OP_ALL_GATHER ? world_size : 1, allocations, of_group);
    check_places(c, rank, world_size, of_group);
}
