/* fresh.c: freshly written data, and the meeting before a timed call. */
#include "fresh.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The numbers repeat after this many elements. Chunks whose sizes are powers of two begin at different numbers. */
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

/* How often a rank reads the others' counts before it yields its core. sysconf() takes long, so it is asked once. */
static int spins_of(int ranks)
{
    static atomic_long processors;
    if (atomic_load(&processors) == 0)
        atomic_store(&processors, sysconf(_SC_NPROCESSORS_ONLN));
    return ranks <= atomic_load(&processors) ? 2000 : 0;
}

void fresh_meet(void *arrivals, int rank, int ranks)
{
    _Atomic unsigned *mine = (_Atomic unsigned *)((char *)arrivals + rank * FRESH_ARRIVAL);
    const int spins = spins_of(ranks);
    const unsigned meeting = atomic_load_explicit(mine, memory_order_relaxed) + 1;
    atomic_store_explicit(mine, meeting, memory_order_release);
    for (int other = 0; other < ranks; other++) {
        _Atomic unsigned *theirs = (_Atomic unsigned *)((char *)arrivals + other * FRESH_ARRIVAL);
        for (int spin = 0; (int)(atomic_load_explicit(theirs, memory_order_acquire) - meeting) < 0; spin++)
            if (spin >= spins)
                sched_yield();
    }
}

double fresh_seconds_of_a_meeting(void *arrivals, int rank, int ranks)
{
    enum { ROUNDS = 20, MEETINGS = 100 };
    double fastest = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct timespec start, end;
        fresh_meet(arrivals, rank, ranks);
        clock_gettime(CLOCK_MONOTONIC, &start);
        for (int i = 0; i < MEETINGS; i++)
            fresh_meet(arrivals, rank, ranks);
        clock_gettime(CLOCK_MONOTONIC, &end);
        double seconds = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
        fastest = round == 0 || seconds < fastest ? seconds : fastest;
    }
    return fastest / MEETINGS;
}
