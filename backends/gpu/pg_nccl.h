/* pg_nccl.h: the NCCL backend, for GPUs. */
#ifndef LOCKSTEP_GPU_PG_NCCL_H
#define LOCKSTEP_GPU_PG_NCCL_H

#include "comm/process_group.h"

/* From now on NCCL carries out the collectives on device memory, of the world and of groups made of it; the backend
 * before this call carries out the others. Collective: call once on every rank, after device_init(). Every rank needs a
 * device of its own. */
void pg_use_nccl(ProcessGroup *world);

#endif
