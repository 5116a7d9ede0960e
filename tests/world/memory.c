/* memory.c: pieces of a few sizes, from blocks that are mapped and never given back. */
#include "world/memory.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "base/check.h"

#if !defined(MAP_ANONYMOUS)
#define MAP_ANONYMOUS MAP_ANON
#endif

enum { SMALLEST = 7, CLASSES = 40, HEAD = 64 }; /* pieces of 2^SMALLEST bytes and more, with their head */
#define BLOCK_BYTES ((size_t)16 << 20)

typedef struct Piece {
    int size_class;
    struct Piece *next; /* while it is free */
} Piece;

static Piece *free_pieces[CLASSES];
static unsigned char *block;
static size_t left;

static void *map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "out of memory for the simulated world");
    return memory;
}

static Piece *new_piece(size_t bytes)
{
    if (bytes >= BLOCK_BYTES)
        return map(bytes);
    if (left < bytes) {
        block = map(BLOCK_BYTES);
        left = BLOCK_BYTES;
    }
    Piece *piece = (Piece *)(void *)block;
    block += bytes;
    left -= bytes;
    return piece;
}

void *world_alloc(size_t bytes)
{
    int size_class = SMALLEST;
    while (((size_t)1 << size_class) < bytes + HEAD)
        size_class++;
    Piece *piece = free_pieces[size_class];
    if (piece != NULL) {
        free_pieces[size_class] = piece->next;
        memset((unsigned char *)piece + HEAD, 0, bytes);
    } else {
        piece = new_piece((size_t)1 << size_class);
    }
    piece->size_class = size_class;
    return (unsigned char *)piece + HEAD;
}

void world_free(void *memory)
{
    if (memory == NULL)
        return;
    Piece *piece = (Piece *)(void *)((unsigned char *)memory - HEAD);
    piece->next = free_pieces[piece->size_class];
    free_pieces[piece->size_class] = piece;
}

void *world_grow(void *memory, size_t old_bytes, size_t new_bytes)
{
    void *larger = world_alloc(new_bytes);
    if (memory != NULL)
        memcpy(larger, memory, old_bytes);
    world_free(memory);
    return larger;
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

bool heap_is_counted(void)
{
    return true;
}

size_t heap_bytes(void)
{
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

void heap_count_exactly(char **argv)
{
    if (getenv("GLIBC_TUNABLES") != NULL)
        return;
    setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1", 1);
    execv("/proc/self/exe", argv); /* if there is no /proc, the count is less exact, and nothing else changes */
}

#else

bool heap_is_counted(void)
{
    return false;
}

size_t heap_bytes(void)
{
    return 0;
}

void heap_count_exactly(char **argv)
{
    (void)argv;
}

#endif

void stay_on_this_processor(void)
{
#if defined(__linux__)
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
#endif
}
