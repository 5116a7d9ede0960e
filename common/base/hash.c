/* hash.c: FNV-1a. */
#include "base/hash.h"

uint64_t fnv1a(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ byte[i]) * 1099511628211u;
    return hash;
}
