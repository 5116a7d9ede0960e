/* hash.c: FNV-1a, and zlib's CRC-32. */
#include "base/hash.h"

#include <zlib.h>

uint64_t fnv1a(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ byte[i]) * 1099511628211u;
    return hash;
}

uint32_t checksum(uint32_t sum, const void *data, size_t bytes)
{
    return data != NULL ? (uint32_t)crc32_z(sum, data, bytes) : sum;
}
