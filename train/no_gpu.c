/* no_gpu.c: replaces backends/gpu/join_group.c in a program for the CPU. */
#include "train/gpu.h"

bool gpu_has_nccl(void)
{
    return false;
}

void gpu_join_group(ProcessGroup *pg, bool use_nccl)
{
    (void)pg, (void)use_nccl; /* options_check.c has rejected NCCL */
}
