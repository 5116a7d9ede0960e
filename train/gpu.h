/* gpu.h: what the program asks of gpu/. no_gpu.c answers where it was built without. */
#ifndef LOCKSTEP_TRAIN_GPU_H
#define LOCKSTEP_TRAIN_GPU_H

#include "comm/process_group.h"

bool gpu_has_nccl(void);

/* From now on the group's collectives take device memory, too: over NCCL (use_nccl: MPI goes on with host memory and
 * barriers), or through host memory over MPI. Call once, after device_init(); collective. Without a GPU in the build:
 * die()s if NCCL is asked for, and does nothing otherwise. */
void gpu_join_group(ProcessGroup *pg, bool use_nccl);

#endif
