/* arena.h: memory for one step's activations, allocated piece by piece and freed all at once.
 *
 * Interface: call arena_alloc() as often as needed during a step, and arena_reset() at the start of the next.
 * The first step shows how much a step needs. From then on the arena is one block, and neither call allocates memory
 * from the system, unless a step needs more (a larger batch). A zeroed Arena is ready for use.
 */
#ifndef LOCKSTEP_DEVICE_ARENA_H
#define LOCKSTEP_DEVICE_ARENA_H

#include <stddef.h>

typedef struct ArenaBlock {
    unsigned char *memory; /* device memory */
    size_t size, used;     /* bytes */
} ArenaBlock;

typedef struct Arena {
    ArenaBlock *blocks;
    int block_count;
    size_t used; /* bytes handed out since the last reset */
    size_t peak; /* the largest value of `used` so far */
    size_t held; /* bytes of all blocks */
    size_t peak_held; /* the largest value of `held`; above `peak`, because the end of a full block stays unused */
} Arena;

/* Device memory, aligned to device_alignment(), not cleared. Valid until the next arena_reset(). */
void *arena_alloc(Arena *arena, size_t bytes);
void arena_reset(Arena *arena); /* invalidates all pointers from arena_alloc(); keeps the memory */
void arena_free(Arena *arena);

#endif
