/* memory.cpp: the device's memory: one range of addresses, accessible only between memory_open() and memory_close().
 *
 * There is a guard between two allocations. Guards, and memory that was just allocated or freed, hold a pattern that is
 * NaN as float32, bf16 and f16 and negative as an integer. So a wrong read shows in the results. A write to a guard is
 * found after the kernel that did it; a write to free memory is found when that memory is allocated (the NaN is a
 * signalling one: even x += 1 changes its bits). The address sanitizer, if it is on, finds both at once.
 */
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <map>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(start, bytes) ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(start, bytes) ((void)0)
#endif

namespace
{

const size_t ALIGNMENT = 256; /* as cudaMalloc's */
const size_t GUARD = 256;
const size_t PAGE = 2 << 20; /* a huge page: protecting these is fast, even if there are many */
const unsigned char PATTERN[4] = {0xa5, 0xff, 0xa5, 0xff};

char *pool;              /* NULL: not mapped yet */
size_t pool_bytes, used; /* used: the end of all memory that was ever allocated */
std::map<char *, size_t> allocations;

size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* The sanitizer must not check these two functions: guards are out of bounds for all other code. */
__attribute__((no_sanitize("address"))) void spoil(char *start, char *end)
{
    for (volatile char *p = start; p < end; p++)
        *p = (char)PATTERN[(uintptr_t)p % 4];
}

/* The first byte in the range that differs from the pattern; NULL: there is none. */
__attribute__((no_sanitize("address"))) const char *first_written(const char *start, const char *end)
{
    for (const char *p = start; p < end; p++)
        if ((unsigned char)*p != PATTERN[(uintptr_t)p % 4])
            return p;
    return nullptr;
}

void protect(int protection)
{
    if (pool != nullptr && used > 0 && mprotect(pool, round_up(used, PAGE), protection) != 0)
        emulator_fail("mprotect of the device's memory failed");
}

void reserve_pool()
{
    pool_bytes = memory_size();
    const size_t reserved = round_up(pool_bytes, PAGE) + PAGE;
    char *start = (char *)mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        emulator_fail("no address space for %zu bytes of device memory", pool_bytes);
    pool = (char *)round_up((uintptr_t)start, PAGE);
    madvise(pool, pool_bytes, MADV_HUGEPAGE); /* a hint: without huge pages it is only slower */
    ASAN_POISON_MEMORY_REGION(pool, pool_bytes);
}

/* The guard after an allocation ends GUARD bytes after the next aligned address. */
size_t with_guard(size_t bytes)
{
    return round_up(bytes, ALIGNMENT) + GUARD;
}

/* The first gap that is large enough for with_guard(bytes); a guard is before it. NULL: there is none. */
char *find_gap(size_t bytes)
{
    char *start = pool + GUARD;
    for (const auto &[other, other_bytes] : allocations) {
        if (start + with_guard(bytes) <= other)
            return start;
        start = other + with_guard(other_bytes);
    }
    return with_guard(bytes) <= (size_t)(pool + pool_bytes - start) ? start : nullptr;
}

} // namespace

size_t memory_size()
{
    return (size_t)emulator_setting("LOCKSTEP_EMULATED_MEMORY_MB", 1024) << 20;
}

size_t memory_free_bytes()
{
    size_t taken = 0;
    for (const auto &[start, bytes] : allocations)
        taken += with_guard(bytes);
    return memory_size() - taken;
}

void *memory_allocate(size_t bytes)
{
    if (pool == nullptr)
        reserve_pool();
    char *start = bytes < pool_bytes ? find_gap(bytes) : nullptr;
    if (start == nullptr)
        return nullptr;
    const size_t old_used = used;
    if (used < (size_t)(start - pool) + with_guard(bytes))
        used = (size_t)(start - pool) + with_guard(bytes);
    memory_open();
    spoil(pool + old_used, pool + used); /* including the guard before the first allocation */
    if (first_written(start, start + with_guard(bytes)) != nullptr)
        emulator_fail("a kernel or copy wrote to memory that was free at that time");
    ASAN_UNPOISON_MEMORY_REGION(start, bytes);
    protect(PROT_NONE);
    allocations[start] = bytes;
    return start;
}

bool memory_release(void *pointer)
{
    auto found = allocations.find((char *)pointer);
    if (found == allocations.end())
        return false;
    char *start = found->first;
    const size_t bytes = found->second;
    memory_open();
    memory_close("cudaFree");
    memory_open();
    spoil(start, start + with_guard(bytes));
    ASAN_POISON_MEMORY_REGION(start, with_guard(bytes));
    protect(PROT_NONE);
    allocations.erase(found);
    return true;
}

bool memory_is_device(const void *pointer)
{
    return pool != nullptr && (char *)pointer >= pool && (char *)pointer < pool + pool_bytes;
}

long memory_bytes_behind(const void *pointer)
{
    auto next = allocations.upper_bound((char *)pointer);
    if (!memory_is_device(pointer) || next == allocations.begin())
        return -1;
    const auto &[start, bytes] = *--next;
    const long behind = start + bytes - (const char *)pointer;
    return behind >= 0 ? behind : -1;
}

void memory_open()
{
    protect(PROT_READ | PROT_WRITE);
}

void memory_close(const char *what)
{
    for (const auto &[start, bytes] : allocations) {
        const char *end = start + bytes, *guard_end = start + with_guard(bytes);
        const char *behind = first_written(end, guard_end), *before = first_written(start - GUARD, start);
        if (behind != nullptr)
            emulator_fail("%s wrote behind the end of an allocation of %zu bytes", what, bytes);
        if (before != nullptr)
            emulator_fail("%s wrote before the start of an allocation of %zu bytes", what, bytes);
    }
    protect(PROT_NONE);
}
