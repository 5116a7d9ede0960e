/* pg_nccl.h: a backend for GPUs. */
#ifndef LOCKSTEP_GPU_PG_NCCL_H
#define LOCKSTEP_GPU_PG_NCCL_H

#include "comm/process_group.h"

/* From now on NCCL carries what lies in device memory; the backend that the group had goes on with the rest. Call once,
 * after device_init(), with a device for each rank; collective. */
void pg_use_nccl(ProcessGroup *pg);

#endif
