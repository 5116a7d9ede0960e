/* test_settings.c: what flags come to in a run, whether they fit its ranks, and how checkpoints and the summary of --json
 * name them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "command_line.h"
#include "expect.h"

typedef struct World {
    Options options;
    int size;
    const char *flags; /* of the options */
} World;

/* A run's group says what --allreduce auto stands for; here it is always MPI. */
static Resolved resolve(const World *world)
{
    const AllReduceAlgorithm algorithm = world->options.group.algorithm;
    return options_resolve(&world->options, algorithm == ALLREDUCE_AUTO ? ALLREDUCE_MPI : algorithm, world->size);
}

static void check_world(void *argument)
{
    const World *world = argument;
    const Resolved resolved = resolve(world);
    options_check_world(&world->options, &resolved, world->size);
}

static void check_in_child(void *argument)
{
    const World *world = argument;
    fprintf(stderr, "\"%s\" on %d rank(s): ", world->flags, world->size); /* for the failure's message */
    check_world(argument);
}

/* The same flags are right on one number of ranks and wrong on another. */
static void flags_must_fit_the_ranks(void **state)
{
    static const struct {
        int stage;
        const char *flags;
        int right, wrong; /* numbers of ranks */
        const char *message;
    } cases[] = {
        {1, "--batch-size 1", 1, 2, "--batch-size: "},
        {4, "--batch-size 6 --accumulate 2", 3, 4, "give at least 8"},
        {1, "--batch-size 6 --rank-samples 5,0,1", 3, 2, "--rank-samples: has 3 number(s) for 2 rank(s)"},
        {1, "--batch-size 8 --rank-samples 5,0", 2, 3, "--rank-samples: has 2 number(s) for 3 rank(s)"},
        {1, "--batch-size 7 --rank-samples 5,0,1", 0, 3, "7 is no multiple of 3 ranks; give 9"},
        {1, "--batch-size 6 --rank-samples 0,0,0", 0, 3, "--rank-samples: no rank has any sample"},
        {1, "--allreduce hierarchical --ranks-per-host 2", 4, 3,
         "--ranks-per-host: 3 ranks are not a whole number of hosts with 2"},
        {5, "--shard-ranks 2", 4, 3, "--shard-ranks: 3 ranks are not a whole number of groups of 2"},
        /* the sum of two numbers does not depend on their order; that of three does */
        {1, "--verify exact", 2, 3, "--allreduce ordered"},
        {4, "--verify --grad-dtype bf16", 0, 1, "--verify: whole batches send nothing, so they lack"},
        {1, "--verify --norm batch", 1, 2, "--verify: with --norm batch each rank normalizes over its own samples"},
        {1, "--verify exact --norm sync-batch", 1, 2, "--verify: exact computes one rank's share after the other"},
        {4, "--verify exact --norm sync-batch --grad-dtype bf16", 1, 2,
         "--verify: not with --norm and --grad-dtype together"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        World world = {parse(cases[i].flags, cases[i].stage), cases[i].wrong, cases[i].flags};
        expect_dies(check_in_child, &world, 2, cases[i].message);
        world.size = cases[i].right;
        if (world.size > 0)
            check_world(&world);
    }
    check_world(&(World){parse("--verify exact --allreduce ordered", 1), 3, NULL});
}

/* The algorithm adds 16 bits only if it can do so in rank order; on 2 ranks, every order is that of the ranks. */
static void what_flags_come_to(void **state)
{
    static const struct {
        const char *flags;
        int ranks;
        Resolved expected;
    } cases[] = {
        {"", 2, {BACKEND_MPI, ALLREDUCE_MPI, true}},
        {"", 3, {BACKEND_MPI, ALLREDUCE_MPI, false}},
        {"--allreduce root", 3, {BACKEND_MPI, ALLREDUCE_ROOT, true}},
        {"--allreduce ring --grad-dtype bf16", 3, {BACKEND_MPI, ALLREDUCE_ORDERED, true}},
        {"--allreduce hierarchical", 3, {BACKEND_MPI, ALLREDUCE_HIERARCHICAL, true}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const World world = {parse(cases[i].flags, 4), cases[i].ranks, cases[i].flags};
        const Resolved expected = cases[i].expected, got = resolve(&world);
        if (got.backend != expected.backend || got.algorithm != expected.algorithm ||
            got.rank_order != expected.rank_order)
            fail_msg("\"%s\" on %d ranks: backend %d, algorithm %s, in rank order: %d", cases[i].flags, cases[i].ranks,
                     (int)got.backend, all_reduce_name(got.algorithm), got.rank_order);
    }
}

/* What checkpoints hold: every flag that changes bits, in words. Equal numbers have equal words. */
static void flags_become_words(void **state)
{
    static const char *const cases[][3] = { /* flags, the name of one that changes bits, its words */
        {"", "seed", "--seed 42"},
        {"--seed 4294967295", "seed", "--seed 4294967295"},
        {"--lr 0.0200", "lr", "--lr 0.02"},
        {"--lr 2e-2", "lr", "--lr 0.02"},
        {"--optimizer adamw", "momentum", "no --momentum"},
        {"--precision bf16", "precision", "--precision bf16"},
        {"", "join", "no --join"},
        {"--join", "join", "--join"},
        {"--join initial", "join", "--join initial"},
        {"--drop-last", "drop-last", "--drop-last"},
        {"--rank-samples 700,300", "rank-samples", "--rank-samples 700,300"},
        {"--rank-samples 1000000000000,1000000000000,1000000000000,1000000000000,1000000000000", "rank-samples",
         "--rank-samples of fingerprint "},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const Options options = parse(cases[c][0], 4);
        char words[128];
        const char *name;
        int i = 0;
        while ((name = options_setting(&options, i, words, sizeof words)) != NULL && strcmp(name, cases[c][1]) != 0)
            i++;
        if (name == NULL || strncmp(words, cases[c][2], strlen(cases[c][2])) != 0)
            fail_msg("\"%s\": %s is \"%s\", expected \"%s\"", cases[c][0], cases[c][1], words, cases[c][2]);
    }
}

/* What the summary of --json holds of the flags. */
static void flags_become_json(void **state)
{
    static const struct {
        int stage;
        const char *flags, *key, *expected;
    } cases[] = {
        {1, "", "batch_size", "128"},
        {1, "--lr 2e-2", "lr", "0.02"},
        {1, "--wire 0.5,50", "wire", "[0.5,50]"},
        {1, "--rank-samples 7 --join", "rank_samples", "[7]"},
        {1, "--join", "join", "true"},
        {1, "--join initial", "join", "\"initial\""},
        {1, "", "join", "null"},
        {1, "", "drop_last", "false"},
        {1, "--drop-last", "drop_last", "true"},
        {1, "--model gpt", "model", "\"gpt\""},
        {3, "", "accumulate", "null"}, /* this stage lacks it */
        {4, "", "accumulate", "1"},
        {4, "", "bucket_cap_mb", "1"},
        {5, "", "bucket_cap_mb", "null"}, /* a bucket for each layer */
        {5, "--first-bucket-mb 2", "bucket_cap_mb", "1"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const Options options = parse(cases[c].flags, cases[c].stage);
        cJSON *json = options_to_json(&options, cases[c].stage);
        char *value = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(json, cases[c].key));
        if (value == NULL || strcmp(value, cases[c].expected) != 0)
            fail_msg("stage %d, \"%s\": %s is %s, expected %s", cases[c].stage, cases[c].flags, cases[c].key, value,
                     cases[c].expected);
        free(value);
        cJSON_Delete(json);
    }
}

int main(void)
{
    return run_cases("settings", cmocka_unit_test(flags_must_fit_the_ranks), cmocka_unit_test(what_flags_come_to),
                     cmocka_unit_test(flags_become_words), cmocka_unit_test(flags_become_json));
}
