/* fresh.c: freshly written data, and the meeting before a timed call. */
#include "fresh.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

/* The numbers repeat after so many elements. A prime: where a chunk begins, they begin anew at no chunk. */
enum { PERIOD = 127 };

/* What the ranks from..to-1 write, added up: rank r writes (r + 1) * (i % PERIOD + 1) + call % 16 into element i. */
static void one_period(float *period, size_t first, int from, int to, unsigned call)
{
    const int factor = (to * (to + 1) - from * (from + 1)) / 2, added = (to - from) * (int)(call % 16);
    for (size_t i = 0; i < PERIOD; i++)
        period[i] = (float)(factor * (int)((first + i) % PERIOD + 1) + added);
}

static size_t block_at(size_t start, size_t count)
{
    return count - start < PERIOD ? count - start : PERIOD;
}

/* In short blocks: a long memcpy() would write past the caches. */
void fresh_write(float *values, size_t count, int rank, unsigned call)
{
    float period[PERIOD];
    one_period(period, 0, rank, rank + 1, call);
    for (size_t start = 0; start < count; start += PERIOD)
        memcpy(values + start, period, block_at(start, count) * sizeof *values);
}

long fresh_wrong(const float *values, size_t first, size_t count, int from, int to, unsigned call)
{
    float period[PERIOD];
    long wrong = 0;
    one_period(period, first, from, to, call);
    for (size_t start = 0; start < count; start += PERIOD) {
        const size_t block = block_at(start, count);
        if (memcmp(values + start, period, block * sizeof *values) != 0)
            for (size_t i = 0; i < block; i++)
                wrong += !(values[start + i] == period[i]);
    }
    return wrong;
}

/* How often the others' counts are read before this rank yields its core. */
enum { SPINS = 2000 };

void fresh_meet(void *arrivals, int rank, int ranks)
{
    _Atomic unsigned *mine = (_Atomic unsigned *)((char *)arrivals + rank * FRESH_ARRIVAL);
    const unsigned meeting = atomic_load_explicit(mine, memory_order_relaxed) + 1;
    atomic_store_explicit(mine, meeting, memory_order_release);
    for (int other = 0; other < ranks; other++) {
        _Atomic unsigned *theirs = (_Atomic unsigned *)((char *)arrivals + other * FRESH_ARRIVAL);
        for (int spin = 0; (int)(atomic_load_explicit(theirs, memory_order_acquire) - meeting) < 0; spin++)
            if (spin >= SPINS)
                sched_yield();
    }
}
