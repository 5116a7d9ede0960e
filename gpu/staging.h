/* staging.h: collectives on device memory for a backend that can read host memory only.
 *
 * Interface: call staging_use() once. Collectives on host memory go to the backend unchanged.
 */
#ifndef LOCKSTEP_GPU_STAGING_H
#define LOCKSTEP_GPU_STAGING_H

#include "comm/process_group.h"

/* From now on the group's backend gets host copies of device memory; results are copied back. */
void staging_use(ProcessGroup *pg);

#endif
