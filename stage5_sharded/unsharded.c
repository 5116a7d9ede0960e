/* unsharded.c: the functions of sharded.h for stages 1 to 4. */
#include "stage5_sharded/sharded.h"

const Partition *ddp_partition(Ddp *ddp)
{
    (void)ddp;
    return NULL;
}

void ddp_after_update(Ddp *ddp)
{
    (void)ddp;
}

void ddp_gather_weights(Ddp *ddp)
{
    (void)ddp;
}

bool ddp_sharded_memory(const Ddp *ddp, ShardedMemory *memory)
{
    (void)ddp, (void)memory;
    return false;
}
