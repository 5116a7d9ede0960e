/* rng.h: a small random number generator. A seed gives the same numbers on every machine.
 * The state is 256 bits of xoshiro256** (Blackman and Vigna, 2018), seeded through splitmix64. */
#ifndef LOCKSTEP_BASE_RNG_H
#define LOCKSTEP_BASE_RNG_H

#include <stdint.h>

typedef struct Rng {
    uint64_t state[4];
} Rng;

void rng_seed(Rng *rng, uint64_t seed);       /* any seed, also 0 */
uint64_t rng_bits(Rng *rng);                  /* 64 random bits */
uint64_t rng_below(Rng *rng, uint64_t limit); /* uniform in [0, limit), without bias; limit > 0 */
float rng_uniform(Rng *rng);                  /* uniform in [0, 1) */
float rng_normal(Rng *rng);                   /* mean 0, variance 1 (Box-Muller) */

/* Philox4x32-10 (Salmon et al., 2011): four random numbers that depend only on key and counter, so they can be computed
 * anywhere, in any order, and again. Different counters give independent numbers. */
void rng_philox(uint64_t key, const uint32_t counter[4], uint32_t numbers[4]);

#endif
