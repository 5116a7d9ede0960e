/* staging.h: collectives of device memory for a backend that can read host memory only.
 *
 * Interface: staging_use() once. A collective of host memory goes to the backend as it is.
 */
#ifndef LOCKSTEP_GPU_STAGING_H
#define LOCKSTEP_GPU_STAGING_H

#include "comm/process_group.h"

/* From now on the group's backend gets host memory in the place of device memory: copied there before, back after. */
void staging_use(ProcessGroup *pg);

#endif
