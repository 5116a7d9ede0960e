/* lent.c: see lent.h. */
#include "lent.h"

#include <stdlib.h>
#include <sys/random.h>

#include "base/check.h"

void *lend(size_t bytes)
{
    uint16_t random;
    CHECK(getrandom(&random, sizeof random, 0) == sizeof random, "getrandom() failed");
    const size_t gap = 2 + (random & 0xffeu); /* even, so that the memory is aligned */
    void **block = alloc_or_fault(gap * sizeof *block + bytes);
    block[gap - 1] = block;
    return &block[gap];
}

void take_back(void *memory)
{
    free(((void **)memory)[-1]);
}

Replica *replica_lend(const Options *options, uint64_t seed, long total_steps)
{
    Replica *replica = lend(sizeof *replica + sizeof *options);
    Options *its = (Options *)(replica + 1);
    *its = *options;
    replica_create(replica, its, seed, total_steps);
    return replica;
}

void replica_take_back(Replica *replica)
{
    replica_free(replica);
    take_back(replica);
}
