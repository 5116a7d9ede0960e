/* arena.h: memory for one step's activations, taken piece by piece and given back all at once.
 *
 * Interface: arena_alloc() as often as needed during a step, arena_reset() at the start of the next.
 * The first step finds out how much a step needs; from then on the arena is one block and neither call
 * asks the system for memory. A step that needs more (a larger batch) makes it grow once more.
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
    size_t peak; /* the most that was ever handed out between two resets */
    size_t held; /* bytes of all blocks */
    size_t most_held; /* more than peak: in the first step, what is left at the end of a block stays unused */
} Arena;

/* Device memory, aligned to device_alignment(), not cleared. Valid until the next arena_reset(). */
void *arena_alloc(Arena *arena, size_t bytes);
void arena_reset(Arena *arena);
void arena_free(Arena *arena);

#endif
