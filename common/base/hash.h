/* hash.h: FNV-1a (64 bit) and CRC-32: ranks compare hashes instead of data. They do not protect against attackers.
 * Source of FNV-1a: Fowler, Noll and Vo, RFC 9923. */
#ifndef LOCKSTEP_BASE_HASH_H
#define LOCKSTEP_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define FNV1A_START 14695981039346656037u

/* The hash of all data so far, whose hash is `hash`, followed by `bytes` bytes of data. Begin with FNV1A_START. */
uint64_t fnv1a(uint64_t hash, const void *data, size_t bytes);

/* The CRC-32 of all data so far, whose CRC-32 is `sum`, followed by `bytes` bytes of data. Begin with 0. data NULL:
 * returns sum. It takes a fifth of FNV-1a's time, so it is used for whole files. */
uint32_t checksum(uint32_t sum, const void *data, size_t bytes);

#endif
