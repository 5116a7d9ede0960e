/* mode.h: what a row varies. A Mode is drawn from a seed, and a row may fix a part of it. */
#ifndef LOCKSTEP_TESTS_WORLD_MODE_H
#define LOCKSTEP_TESTS_WORLD_MODE_H

#include "base/dtype.h"

/* The order in which a backward pass makes gradients ready. */
typedef enum ReadyOrder {
    ORDER_REVERSED, /* of registration, on all ranks */
    ORDER_MIXED,    /* any other order, the same on all ranks and in all passes */
    ORDER_PER_RANK  /* each rank and each pass has its own */
} ReadyOrder;

typedef struct Mode {
    int stage;
    uint64_t seed;
    int ranks, parameters, steps, micro_batches;
    const char *wire;           /* the codec: "fp32", "bf16", "fp16" */
    int level, shard_ranks;     /* stage 5 */
    bool bucket_per_layer;
    size_t first_cap, cap;      /* bytes */
    ReadyOrder order;
    bool frozen, tied, buffer;  /* some parameter is frozen; one is used twice; one is a buffer */
    bool unused;                /* passes leave parameters out: needs find_unused */
    bool breaks_promise;        /* passes differ although static_graph is given */
    bool only_first;            /* of the unused: only the first micro-batch of a step leaves them out */
    bool find_unused, static_graph, rebuild;
    int most_elements;          /* of a parameter */
} Mode;

/* Draws all that the stage has. */
Mode mode_draw(int stage, uint64_t seed);
/* Makes what a row has fixed consistent: for example, unused parameters need find_unused. */
void mode_settle(Mode *mode);
void mode_describe(const Mode *mode, char *text, size_t size);

/* A number that depends on the mode's seed and on these four alone. */
uint64_t mode_hash(const Mode *mode, int what, int a, int b, int c);

#endif
