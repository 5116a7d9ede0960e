/* hash.h: FNV-1a (64 bit) and CRC-32, to compare what ranks hold without sending it. Not meant against an attacker.
 * Source of FNV-1a: Fowler, Noll and Vo, RFC 9923. */
#ifndef LOCKSTEP_BASE_HASH_H
#define LOCKSTEP_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define FNV1A_START 14695981039346656037u

/* The hash of what `hash` covers followed by `bytes` bytes of data; begin with FNV1A_START. */
uint64_t fnv1a(uint64_t hash, const void *data, size_t bytes);

/* The CRC-32 of what `sum` covers followed by `bytes` bytes of data; begin with 0. data NULL: nothing follows. It takes
 * a fifth of FNV-1a's time, and is meant for whole files. */
uint32_t checksum(uint32_t sum, const void *data, size_t bytes);

#endif
