/* staging.h: inside dist/ only: collectives of device memory for a backend that can read host memory only.
 *
 * Interface: {0} to begin with; staging_run() for any collective; staging_free() at the end.
 */
#ifndef LOCKSTEP_DIST_STAGING_H
#define LOCKSTEP_DIST_STAGING_H

#include "dist/group.h"

/* Host memory that stands for device memory while a collective is under way; kept for the next one. */
typedef struct Staging {
    void *send, *receive; /* device_alloc_host(); owned */
    size_t send_bytes, receive_bytes;
} Staging;

/* Does the collective send or receive device memory? Never on the CPU. */
bool staging_needed(const Collective *collective);

/* Calls `run` with host memory in the place of device memory: copied there before, and back after. */
void staging_run(Staging *staging, ProcessGroup *pg, const Collective *collective,
                 void (*run)(ProcessGroup *pg, const Collective *collective));

void staging_free(Staging *staging);

#endif
