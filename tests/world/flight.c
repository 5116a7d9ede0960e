/* flight.c: the buffers of a collective, while it is in flight. What will be written holds a pattern, so that a rank
 * that reads it too early computes with nonsense; and all of it must stay as it is until work_wait() returns. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "comm/buffers.h"
#include "comm/combine.h"
#include "world/baton.h"
#include "world/groups.h"
#include "world/memory.h"

enum { PATTERN = 0xFE }; /* as float32: -1.7e38; as two numbers of 16 bits: very large ones */

void world_fault(const char *format, ...)
{
    va_list arguments;
    const int rank = baton_rank();
    fflush(stdout);
    if (rank < 0)
        fprintf(stderr, "afterwards: ");
    else if (log_step(rank) >= 0)
        fprintf(stderr, "rank %d, step %d, micro-batch %d: ", rank, log_step(rank), log_micro_batch(rank));
    else
        fprintf(stderr, "rank %d, before the first step: ", rank);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
    job_abort(1);
}

/* ---- memory of pg_alloc_shared() ---- */

static Allocation *given[MOST_RANKS]; /* by the job's rank */

void flight_given(int job_rank, void *memory, size_t bytes)
{
    allocations_add(&given[job_rank], memory, bytes);
}

size_t flight_taken(int job_rank, const void *memory)
{
    const size_t before = allocations_bytes(given[job_rank]);
    allocations_remove(&given[job_rank], memory);
    return before - allocations_bytes(given[job_rank]);
}

/* ---- checks of a call ---- */

static size_t send_bytes(const Group *group, const Collective *c)
{
    return c->count * dtype_size(c->dtype) * (c->operation == OP_REDUCE_SCATTER ? (size_t)group->size : 1);
}

static size_t receive_bytes(const Group *group, const Collective *c)
{
    return c->count * dtype_size(c->dtype) * (c->operation == OP_ALL_GATHER ? (size_t)group->size : 1);
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    const unsigned char *x = a, *y = b;
    return a_bytes > 0 && b_bytes > 0 && x < y + b_bytes && y < x + a_bytes;
}

static void check_not_in_flight(const Group *group, int rank, const Collective *c)
{
    for (int i = group->called[rank] - 2; i >= 0 && i >= group->waited[rank]; i--) {
        const Part *part = &group->slots[i]->parts[rank];
        if (part->waited_for)
            continue;
        const Watched *watched[] = {&part->send, &part->receive};
        for (int k = 0; k < 2; k++)
            if (overlap(watched[k]->memory, watched[k]->bytes, c->receive, receive_bytes(group, c)) ||
                (k == 1 && overlap(watched[k]->memory, watched[k]->bytes, c->send, send_bytes(group, c))))
                world_fault("%s of %s uses memory of %s, which is still in flight: it had no work_wait() yet",
                            operation_name(c->operation), c->carries, part->call.carries);
    }
}

void flight_check_buffers(const Group *group, int rank, const Collective *c)
{
    if (c->operation == OP_BARRIER)
        return;
    check_buffers(c, rank, group->size, given[group->ranks[rank]], "");
    check_not_in_flight(group, rank, c);
}

/* ---- from the launch to work_wait() ---- */

static Watched watch(const void *memory, size_t bytes)
{
    Watched watched = {.memory = (unsigned char *)(uintptr_t)memory, .bytes = bytes};
    watched.image = world_alloc(bytes);
    memcpy(watched.image, memory, bytes);
    return watched;
}

static void unwatch(Watched *watched)
{
    world_free(watched->image);
    *watched = (Watched){0};
}

/* What is sent is not written in flight, so it must stay as it is; except where the result will be: this, and in place
 * all of what a reduce-scatter reads, may hold anything. */
void flight_begin(Slot *slot, int rank)
{
    Part *part = &slot->parts[rank];
    const Collective *c = &part->call;
    const size_t sent = send_bytes(slot->group, c), received = receive_bytes(slot->group, c);
    if (sent == 0 || c->operation == OP_BARRIER)
        return;
    part->input = world_alloc(sent);
    memcpy(part->input, c->send, sent);
    const bool in_place = overlap(c->send, sent, c->receive, received);
    if (c->operation == OP_BROADCAST) {
        part->receive = watch(c->receive, received);
        return;
    }
    if (in_place && c->operation == OP_REDUCE_SCATTER) {
        memset((void *)(uintptr_t)c->send, PATTERN, sent);
        part->receive = watch(c->send, sent);
        return;
    }
    memset(c->receive, PATTERN, received);
    if (in_place && c->operation == OP_ALL_GATHER)
        memcpy((void *)(uintptr_t)c->send, part->input, sent);
    part->receive = watch(c->receive, received);
    if (!in_place)
        part->send = watch(c->send, sent);
}

static void check_watched(const Watched *watched, const Collective *c, const char *when)
{
    if (watched->memory == NULL || memcmp(watched->memory, watched->image, watched->bytes) == 0)
        return;
    size_t first = 0;
    while (watched->memory[first] == watched->image[first])
        first++;
    world_fault("element %zu of %s was written %s: leave its buffers alone between the launch and work_wait()",
                first / dtype_size(c->dtype), c->carries, when);
}

static void check_untouched(const Slot *slot, int rank, const char *when)
{
    check_watched(&slot->parts[rank].send, &slot->parts[rank].call, when);
    check_watched(&slot->parts[rank].receive, &slot->parts[rank].call, when);
}

static void add_parts(const Slot *slot, size_t offset, unsigned char *result, const Collective *c)
{
    const int siblings = slot->group->siblings != NULL && c->operation == OP_REDUCE_SCATTER ? slot->group->sibling_count
                                                                                             : 1;
    const void *parts[MOST_RANKS];
    int count = 0;
    for (int s = 0; s < siblings; s++) {
        const Group *group = siblings > 1 ? slot->group->siblings[s] : slot->group;
        for (int r = 0; r < group->size; r++)
            parts[count++] = group->slots[slot->number]->parts[r].input + offset;
    }
    if (count == 1)
        memcpy(result, parts[0], c->count * dtype_size(c->dtype));
    else
        combine_parts((void *const[]){result}, 1, parts, count, c->count, c->dtype, c->op);
}

void flight_arrive(Slot *slot, int rank)
{
    Part *part = &slot->parts[rank];
    const Collective *c = &part->call;
    const size_t bytes = c->count * dtype_size(c->dtype);
    if (part->receive.memory == NULL)
        return;
    check_untouched(slot, rank, "in flight");
    if (c->operation == OP_BROADCAST)
        memcpy(c->receive, slot->parts[c->root].input, bytes);
    else if (c->operation == OP_ALL_GATHER)
        for (int r = 0; r < slot->group->size; r++)
            memcpy((unsigned char *)c->receive + (size_t)r * bytes, slot->parts[r].input, bytes);
    else
        add_parts(slot, c->operation == OP_REDUCE_SCATTER ? (size_t)rank * bytes : 0, c->receive, c);
    memcpy(part->receive.image, part->receive.memory, part->receive.bytes);
}

/* The last rank that returns frees what was sent: until then others may need it. */
void flight_end(Slot *slot, int rank)
{
    check_untouched(slot, rank, "after it was done, but before work_wait()");
    unwatch(&slot->parts[rank].send);
    unwatch(&slot->parts[rank].receive);
    slot->parts[rank].waited_for = true;
    for (int *waited = &slot->group->waited[rank];
         *waited < slot->group->called[rank] && slot->group->slots[*waited]->parts[rank].waited_for;)
        ++*waited;
    if (--slot->left > 0)
        return;
    for (int r = 0; r < slot->group->size && slot->group->siblings == NULL; r++) {
        world_free(slot->parts[r].input);
        slot->parts[r].input = NULL;
    }
}
