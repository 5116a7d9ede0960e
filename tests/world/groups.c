/* groups.c: slots. Collective number k of a group is one slot, and the n-th call of each rank belongs to slot n. */
#include "world/groups.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "world/baton.h"
#include "world/memory.h"

static Group *all_groups;

Group *group_make(int size, const int *ranks, const Slot *made_by, int color)
{
    Group *group = world_alloc(sizeof *group);
    *group = (Group){.size = size, .made_by = made_by, .color = color, .next = all_groups};
    group->ranks = world_alloc((size_t)size * sizeof *group->ranks);
    memcpy(group->ranks, ranks, (size_t)size * sizeof *ranks);
    group->called = world_alloc((size_t)size * sizeof *group->called);
    group->completed = world_alloc((size_t)size * sizeof *group->completed);
    group->waited = world_alloc((size_t)size * sizeof *group->waited);
    return all_groups = group;
}

Group *group_find(const Slot *made_by, int color)
{
    for (Group *group = all_groups; group != NULL; group = group->next)
        if (group->made_by == made_by && group->color == color)
            return group;
    return NULL;
}

int group_rank_of(const Group *group, int job_rank)
{
    for (int rank = 0; rank < group->size; rank++)
        if (group->ranks[rank] == job_rank)
            return rank;
    return -1;
}

static void slot_free(Slot *slot)
{
    for (int rank = 0; rank < slot->group->size; rank++)
        world_free(slot->parts[rank].input);
    world_free(slot->parts);
    world_free(slot);
}

void groups_free(void)
{
    for (Group *group = all_groups, *next; group != NULL; group = next) {
        next = group->next;
        for (int i = 0; i < group->count; i++)
            slot_free(group->slots[i]);
        world_free(group->slots);
        world_free(group->ranks);
        world_free(group->called);
        world_free(group->completed);
        world_free(group->waited);
        if (group->siblings != NULL && group->siblings[0] == group)
            world_free(group->siblings);
        world_free(group);
    }
    all_groups = NULL;
}

/* ---- calls ---- */

static const char *describe(const Slot *slot, int rank, char text[120])
{
    const Collective *c = &slot->parts[rank].call;
    if (slot->what[0] != '\0')
        snprintf(text, 120, "%s", slot->what);
    else if (c->operation == OP_BARRIER)
        snprintf(text, 120, "barrier");
    else
        snprintf(text, 120, "%s (%s, %zu x %s)", operation_name(c->operation), c->carries, c->count,
                 dtype_name(c->dtype));
    return text;
}

static void check_same_call(const Slot *slot, int rank)
{
    int other = 0;
    while (other == rank || !slot->parts[other].called)
        other++;
    const Collective *a = &slot->parts[other].call, *b = &slot->parts[rank].call;
    char text[120], other_text[120];
    if (a->operation == b->operation && a->count == b->count && a->dtype == b->dtype && a->op == b->op &&
        a->root == b->root && strcmp(a->carries, b->carries) == 0)
        return;
    world_fault("call number %d of its group is %s, but that of rank %d is %s: all ranks must make the same calls in "
                "the same order", slot->number, describe(slot, rank, text), slot->group->ranks[other],
                describe(slot, other, other_text));
}

static Slot *slot_of(Group *group, int number)
{
    if (number == group->capacity) {
        const size_t bytes = (size_t)group->capacity * sizeof(Slot *);
        group->capacity = group->capacity > 0 ? 2 * group->capacity : 64;
        group->slots = world_grow(group->slots, bytes, (size_t)group->capacity * sizeof(Slot *));
    }
    if (number == group->count) {
        Slot *slot = group->slots[group->count++] = world_alloc(sizeof *slot);
        *slot = (Slot){.group = group, .number = number, .left = group->size};
        slot->parts = world_alloc((size_t)group->size * sizeof *slot->parts);
    }
    return group->slots[number];
}

Slot *slot_call(Group *group, int rank, const Collective *call, const char *what, int color)
{
    Slot *slot = slot_of(group, group->called[rank]++);
    Part *part = &slot->parts[rank];
    part->call = *call;
    part->color = color;
    part->called = true;
    if (slot->arrived++ == 0)
        snprintf(slot->what, sizeof slot->what, "%s", what);
    else
        check_same_call(slot, rank);
    flight_check_buffers(group, rank, call);
    flight_begin(slot, rank);
    return slot;
}

void group_check_all_waited_for(const Group *group, int rank, const char *what)
{
    char text[120];
    for (int i = 0; i < group->called[rank]; i++)
        if (!group->slots[i]->parts[rank].waited_for)
            world_fault("%s, but its %s had no work_wait()", what, describe(group->slots[i], rank, text));
}

/* ---- the network: a collective is done on a rank at any time after the last rank's call, in the group's order ---- */

static bool all_have_called(const Slot *slot)
{
    if (slot->arrived < slot->group->size)
        return false;
    if (slot->parts[0].call.operation != OP_REDUCE_SCATTER)
        return true;
    for (int i = 0; i < slot->group->sibling_count; i++) {
        const Group *sibling = slot->group->siblings[i];
        if (sibling->count <= slot->number || sibling->slots[slot->number]->arrived < sibling->size)
            return false;
    }
    return true;
}

static bool can_complete(const Group *group, int rank)
{
    const int next = group->completed[rank];
    return next < group->called[rank] && all_have_called(group->slots[next]);
}

static int count_completions(void)
{
    int count = 0;
    for (const Group *group = all_groups; group != NULL; group = group->next)
        for (int rank = 0; rank < group->size; rank++)
            count += can_complete(group, rank);
    return count;
}

static void complete(int which)
{
    for (Group *group = all_groups; group != NULL; group = group->next)
        for (int rank = 0; rank < group->size; rank++)
            if (can_complete(group, rank) && which-- == 0) {
                Slot *slot = group->slots[group->completed[rank]++];
                const Collective *c = &slot->parts[rank].call;
                flight_arrive(slot, rank);
                slot->parts[rank].done = true;
                LogRecord record = {.kind = LOG_DONE, .operation = c->operation, .dtype = c->dtype, .count = c->count,
                                    .slot = slot->number, .group_size = group->size, .parameter = -1};
                snprintf(record.name, sizeof record.name, "%s", c->carries);
                log_add_for(group->ranks[rank], record);
                return;
            }
}

static void say_waits(int job_rank)
{
    char text[120];
    for (const Group *group = all_groups; group != NULL; group = group->next) {
        const int rank = group_rank_of(group, job_rank);
        for (int i = 0; rank >= 0 && i < group->called[rank]; i++) {
            const Slot *slot = group->slots[i];
            if (!slot->parts[rank].waits)
                continue;
            fprintf(stderr, "  rank %d, step %d, waits for its call number %d, %s, which", job_rank, log_step(job_rank),
                    i, describe(slot, rank, text));
            for (int other = 0; other < group->size; other++)
                if (!slot->parts[other].called)
                    fprintf(stderr, " rank %d", group->ranks[other]);
            fprintf(stderr, " has not made\n");
        }
    }
}

/* Messages of check.c name the step of the rank that runs. */
static void name_step(int job_rank)
{
    job_set_step(log_step(job_rank));
}

const Network groups_network = {.count = count_completions, .carry_out = complete, .say_waits = say_waits,
                                .runs = name_step};
