/* hash.h: FNV-1a (64 bit), to compare what ranks hold without sending it. Not meant against an attacker.
 * Source: Fowler, Noll and Vo, RFC 9923. */
#ifndef LOCKSTEP_BASE_HASH_H
#define LOCKSTEP_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define FNV1A_START 14695981039346656037u

/* The hash of what `hash` covers followed by `bytes` bytes of data; begin with FNV1A_START. */
uint64_t fnv1a(uint64_t hash, const void *data, size_t bytes);

#endif
