/* no_gpu.c: replaces backends/gpu/join_group.c in a program for the CPU. */
#include "base/check.h"
#include "train/gpu.h"

bool gpu_has_nccl(void)
{
    return false;
}

void gpu_join_group(ProcessGroup *pg, bool use_nccl)
{
    (void)pg;
    if (use_nccl)
        die("--backend: this program was built without NCCL; give mpi");
}
