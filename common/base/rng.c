/* rng.c: xoshiro256** (Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2018). */
#include "base/rng.h"

#include <math.h>

/* splitmix64 (Steele, Lea and Flood 2014): turns any seed, also 0, into well mixed bits. */
static uint64_t splitmix(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void rng_seed(Rng *rng, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        rng->state[i] = splitmix(&seed);
}

static uint64_t rotate_left(uint64_t x, int bits)
{
    return (x << bits) | (x >> (64 - bits));
}

uint64_t rng_bits(Rng *rng)
{
    uint64_t *s = rng->state;
    uint64_t result = rotate_left(s[1] * 5, 7) * 9;
    uint64_t shifted = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = rotate_left(s[3], 45);
    return result;
}

uint64_t rng_below(Rng *rng, uint64_t limit)
{
    /* 2^64 is rarely a multiple of limit. The first (2^64 mod limit) numbers are drawn again, so that all
     * remainders have the same probability. */
    uint64_t unfair = (0 - limit) % limit;
    uint64_t bits;
    do
        bits = rng_bits(rng);
    while (bits < unfair);
    return bits % limit;
}

float rng_uniform(Rng *rng)
{
    return (float)(rng_bits(rng) >> 40) * 0x1p-24f; /* 24 bits: the size of a float's mantissa */
}

float rng_normal(Rng *rng)
{
    const double two_pi = 6.283185307179586;
    double u = 1.0 - (double)(rng_bits(rng) >> 11) * 0x1p-53; /* in (0, 1]: log(u) is finite */
    double v = (double)(rng_bits(rng) >> 11) * 0x1p-53;
    return (float)(sqrt(-2.0 * log(u)) * cos(two_pi * v));
}

void rng_philox(uint64_t key, const uint32_t counter[4], uint32_t numbers[4])
{
    uint32_t low_key = (uint32_t)key, high_key = (uint32_t)(key >> 32);
    uint32_t a = counter[0], b = counter[1], c = counter[2], d = counter[3];
    for (int round = 0; round < 10; round++) {
        const uint64_t of_a = (uint64_t)a * 0xd2511f53u, of_c = (uint64_t)c * 0xcd9e8d57u;
        a = (uint32_t)(of_c >> 32) ^ b ^ low_key;
        b = (uint32_t)of_c;
        c = (uint32_t)(of_a >> 32) ^ d ^ high_key;
        d = (uint32_t)of_a;
        low_key += 0x9e3779b9u;
        high_key += 0xbb67ae85u;
    }
    numbers[0] = a;
    numbers[1] = b;
    numbers[2] = c;
    numbers[3] = d;
}
