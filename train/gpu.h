/* gpu.h: the functions of backends/gpu/ that the program calls. no_gpu.c replaces them in a build without a GPU. */
#ifndef LOCKSTEP_TRAIN_GPU_H
#define LOCKSTEP_TRAIN_GPU_H

#include "comm/process_group.h"

bool gpu_has_nccl(void); /* this program was built with NCCL */

/* Makes the group's collectives take device memory, too: over NCCL (use_nccl; MPI still carries host memory and
 * barriers), or through host memory over MPI. Call it once, after device_init(). Collective. */
void gpu_join_group(ProcessGroup *pg, bool use_nccl);

#endif
