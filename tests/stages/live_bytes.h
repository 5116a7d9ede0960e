/* live_bytes.h: how much memory the program holds: what it has from malloc() and its kin, and from pg_alloc_shared(),
 * counted where the linker replaces these functions (-Wl,--wrap). What libraries allocate does not count. */
#ifndef LOCKSTEP_TESTS_LIVE_BYTES_H
#define LOCKSTEP_TESTS_LIVE_BYTES_H

#include <stdint.h>

int64_t live_bytes(void);        /* now */
int64_t live_bytes_peak(void);   /* at most since live_bytes_restart() */
void live_bytes_restart(void);

#endif
