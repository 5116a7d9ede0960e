/* staging.h: collectives on device memory for a backend that can read host memory only.
 *
 * Interface: call staging_use() once for a group. Collectives on host memory go to the backend unchanged.
 */
#ifndef LOCKSTEP_GPU_STAGING_H
#define LOCKSTEP_GPU_STAGING_H

#include "comm/process_group.h"

/* From now on the backend of the group, and of groups made of it, gets host copies of device memory. Results are copied
 * back. */
void staging_use(ProcessGroup *pg);

#endif
