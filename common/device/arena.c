/* arena.c: see arena.h. If a step outgrows the arena, another block is added, so that earlier pointers stay valid. The
 * next reset replaces all blocks by one that is large enough. */
#include "device/arena.h"

#include <stdlib.h>

#include "base/check.h"
#include "device/device.h"

#define SMALLEST_BLOCK ((size_t)1 << 20)

static void add_block(Arena *arena, size_t size)
{
    arena->blocks = realloc(arena->blocks, (size_t)(arena->block_count + 1) * sizeof *arena->blocks);
    CHECK(arena->blocks != NULL, "out of memory for the arena's list of blocks");
    arena->blocks[arena->block_count++] = (ArenaBlock){.memory = device_alloc(size), .size = size};
    arena->held += size;
    if (arena->held > arena->peak_held)
        arena->peak_held = arena->held;
}

static void free_blocks(Arena *arena)
{
    for (int i = 0; i < arena->block_count; i++)
        device_free(arena->blocks[i].memory);
    arena->block_count = 0;
    arena->held = 0;
}

void *arena_alloc(Arena *arena, size_t bytes)
{
    bytes = (bytes + device_alignment() - 1) / device_alignment() * device_alignment();
    ArenaBlock *last = arena->block_count ? &arena->blocks[arena->block_count - 1] : NULL;
    if (last == NULL || last->size - last->used < bytes) {
        add_block(arena, bytes > SMALLEST_BLOCK ? bytes : SMALLEST_BLOCK);
        last = &arena->blocks[arena->block_count - 1];
    }
    void *memory = last->memory + last->used;
    last->used += bytes;
    arena->used += bytes;
    if (arena->used > arena->peak)
        arena->peak = arena->used;
    return memory;
}

void arena_reset(Arena *arena)
{
    if (arena->block_count > 1) {
        free_blocks(arena);
        add_block(arena, arena->peak);
    }
    if (arena->block_count == 1)
        arena->blocks[0].used = 0;
    arena->used = 0;
}

void arena_free(Arena *arena)
{
    free_blocks(arena);
    free(arena->blocks);
    *arena = (Arena){0};
}
