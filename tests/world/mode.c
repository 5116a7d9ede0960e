/* mode.c: draws modes, and says what they are. */
#include "world/mode.h"

#include <stdio.h>

#include "base/rng.h"

uint64_t mode_hash(const Mode *mode, int what, int a, int b, int c)
{
    const uint32_t counter[4] = {(uint32_t)what, (uint32_t)a, (uint32_t)b, (uint32_t)c};
    uint32_t numbers[4];
    rng_philox(mode->seed, counter, numbers);
    return (uint64_t)numbers[0] << 32 | numbers[1];
}

static bool one_in(Rng *rng, uint64_t n)
{
    return rng_below(rng, n) == 0;
}

/* Small models and few ranks most of the time, because they run in a millisecond, and because a mistake that needs many
 * of something mostly needs three. */
Mode mode_draw(int stage, uint64_t seed)
{
    static const int ranks[] = {1, 2, 2, 2, 3, 3, 4, 5, 6, 7};
    static const char *const wires[] = {"fp32", "fp32", "bf16", "fp16"};
    Rng rng;
    rng_seed(&rng, seed);
    Mode mode = {.stage = stage, .seed = seed, .wire = "fp32"};
    mode.ranks = ranks[rng_below(&rng, 10)];
    mode.parameters = 1 + (int)rng_below(&rng, one_in(&rng, 8) ? 30 : 8);
    mode.steps = 2 + (int)rng_below(&rng, 3);
    mode.micro_batches = 1 + (int)rng_below(&rng, 3);
    mode.wire = wires[rng_below(&rng, 4)];
    mode.level = 1 + (int)rng_below(&rng, 3);
    mode.shard_ranks = one_in(&rng, 3) ? 1 + (int)rng_below(&rng, (uint64_t)mode.ranks) : 0;
    mode.bucket_per_layer = one_in(&rng, 3);
    mode.most_elements = one_in(&rng, 5) ? 3000 : 60;
    mode.cap = 1 + rng_below(&rng, 4 * (uint64_t)mode.most_elements);
    mode.first_cap = one_in(&rng, 3) ? 1 + rng_below(&rng, mode.cap) : mode.cap;
    mode.order = (ReadyOrder)rng_below(&rng, 3);
    mode.frozen = one_in(&rng, 3);
    mode.tied = one_in(&rng, 3);
    mode.buffer = one_in(&rng, 4);
    mode.find_unused = one_in(&rng, 2);
    mode.unused = one_in(&rng, 2);
    mode.static_graph = one_in(&rng, 3);
    mode.rebuild = one_in(&rng, 2);
    mode_settle(&mode);
    return mode;
}

void mode_settle(Mode *mode)
{
    if (mode->stage < 3)
        mode->find_unused = mode->rebuild = false;
    if (mode->stage < 4) {
        mode->micro_batches = 1;
        mode->wire = "fp32";
    }
    if (mode->stage == 5)
        mode->rebuild = false;
    else
        mode->level = mode->shard_ranks = mode->bucket_per_layer = 0;
    if (mode->shard_ranks > 0 && (mode->ranks % mode->shard_ranks != 0 || mode->shard_ranks == mode->ranks))
        mode->shard_ranks = 0;
    if (mode->level == 3) { /* all passes use all weights in one order */
        mode->find_unused = false;
        if (mode->order == ORDER_PER_RANK)
            mode->order = ORDER_MIXED;
    }
    mode->unused = mode->unused && mode->find_unused;
    mode->static_graph = mode->static_graph && mode->find_unused;
}

void mode_describe(const Mode *mode, char *text, size_t size)
{
    static const char *const orders[] = {"in reversed order", "in a mixed order", "in each rank's own order"};
    int used = snprintf(text, size, "%d rank(s), %d parameter(s), %d steps, gradients ready %s", mode->ranks,
                        mode->parameters, mode->steps, orders[mode->order]);
#define ADD(...) used += used < (int)size ? snprintf(text + used, size - (size_t)used, __VA_ARGS__) : 0
    if (mode->stage >= 2)
        ADD(", caps of %zu and %zu bytes", mode->first_cap, mode->cap);
    if (mode->stage >= 4)
        ADD(", %d micro-batch(es), sent as %s", mode->micro_batches, mode->wire);
    if (mode->stage == 5)
        ADD(", level %d%s", mode->level, mode->bucket_per_layer ? ", a bucket per layer" : "");
    if (mode->shard_ranks > 0)
        ADD(", %d ranks share", mode->shard_ranks);
    const struct { bool is; const char *name; } parts[] = {
        {mode->frozen, "some are frozen"}, {mode->tied, "one is used twice"}, {mode->buffer, "one is a buffer"},
        {mode->unused, "some are unused"}, {mode->find_unused, "find_unused"}, {mode->static_graph, "static_graph"},
        {mode->rebuild, "rebuild"}};
    for (int i = 0; i < 7; i++)
        if (parts[i].is)
            ADD(", %s", parts[i].name);
#undef ADD
}
