/* join_group.c: device memory in collectives, for an emulated GPU: there is no NCCL. */
#include "base/check.h"
#include "backends/gpu/staging.h"
#include "train/gpu.h"

bool gpu_has_nccl(void)
{
    return false;
}

void gpu_join_group(ProcessGroup *pg, bool use_nccl)
{
    if (use_nccl)
        die("--backend: this program was built without NCCL; give mpi");
    staging_use(pg);
}
