/* memory.h: memory of the simulated world itself, apart from the heap, so that the heap is what a stage allocates. */
#ifndef LOCKSTEP_TESTS_WORLD_MEMORY_H
#define LOCKSTEP_TESTS_WORLD_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* Zeroed, aligned to 64 bytes. Free with world_free(), which takes NULL, too. */
void *world_alloc(size_t bytes);
void world_free(void *memory);
/* Twice the room; the old memory is freed. */
void *world_grow(void *memory, size_t old_bytes, size_t new_bytes);

/* True if heap_bytes() works: with glibc, and without a sanitizer. */
bool heap_is_counted(void);
/* Bytes of malloc() in use, of all ranks. */
size_t heap_bytes(void);
/* Call first in main(): restarts the program without the caches of freed memory that glibc counts as in use. */
void heap_count_exactly(char **argv);
/* Keeps this process on the processor that it runs on, where the system can do that: one thread runs at a time, and to
 * wake one on another processor takes far longer. */
void stay_on_this_processor(void);

#endif
