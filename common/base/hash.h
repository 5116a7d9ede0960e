/* hash.h: FNV-1a (64 bit): ranks compare hashes instead of data. They do not protect against attackers. Source: Fowler,
 * Noll and Vo, RFC 9923. */
#ifndef LOCKSTEP_BASE_HASH_H
#define LOCKSTEP_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define FNV1A_START 14695981039346656037u

/* Extends `hash`, the hash of the data so far, by `bytes` bytes of data. Begin with FNV1A_START. */
static inline uint64_t fnv1a(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ byte[i]) * 1099511628211u;
    return hash;
}

#endif
