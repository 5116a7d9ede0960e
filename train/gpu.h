/* gpu.h: what the program needs from gpu/. no_gpu.c implements it in a build without a GPU. */
#ifndef LOCKSTEP_TRAIN_GPU_H
#define LOCKSTEP_TRAIN_GPU_H

#include "comm/process_group.h"

bool gpu_has_nccl(void); /* this program was built with NCCL */

/* From now on the group's collectives take device memory, too: over NCCL (use_nccl; MPI still carries host memory and
 * barriers), or through host memory over MPI. Call it once, after device_init(). Collective. A build without a GPU only
 * die()s if use_nccl. */
void gpu_join_group(ProcessGroup *pg, bool use_nccl);

#endif
