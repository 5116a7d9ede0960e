/* join_group.c: collectives on device memory: see train/gpu.h. */
#include "train/gpu.h"

#include "backends/gpu/pg_nccl.h"
#include "backends/gpu/staging.h"

bool gpu_has_nccl(void)
{
    return true;
}

void gpu_join_group(ProcessGroup *pg, bool use_nccl)
{
    staging_use(pg);
    if (use_nccl)
        pg_use_nccl(pg);
}
