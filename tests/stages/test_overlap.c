/* test_overlap.c: stages 3 and 4: the difficult cases of communication during backward: different orders of readiness,
 * tied weights, unused and frozen parameters, rebuilt buckets. Run on 1 to 4 ranks.
 * (test_launches.c checks that communication happens during backward at all.) */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "branch_pair.h"
#include "device/device.h"
#include "expect.h"
#include "mpi_main.h"
#include "train/report/trace.h"

static ProcessGroup *pg;

/* ---- different orders of readiness on the ranks ---- */

static void test_order_differs_by_rank(void **state)
{
    const size_t caps[] = {0, 200, 1 << 20, 200};
    for (int c = 0; c < 4; c++) {
        DdpOptions options = {.codec = codec_find("fp32"), .bucket_cap_bytes = caps[c],
                              .first_bucket_cap_bytes = caps[c], .rebuild_buckets = c == 3};
        BranchPair *pair = branch_pair_create(pg, &options, -1);
        BranchPlan plans[MAX_RANKS];
        for (long step = 0; step < 4; step++) {
            for (int rank = 0; rank < pg_world_size(pg); rank++)
                plans[rank] = branches_plan(rank + (int)step);
            int from = timeline_length();
            const long sums = pg_counters(pg).async_sums;
            branch_pair_step(pair, plans, step, "branches in another order on each rank");
            expect_bucket_order(pg, from, (int)(pg_counters(pg).async_sums - sums));
        }
        int orders[MAX_RANKS * PARAMETERS];
        pg_all_gather(pg, pair->watch.order, orders, PARAMETERS, DTYPE_I32, "orders of readiness");
        if (pg_world_size(pg) > 1 && memcmp(orders, orders + PARAMETERS, PARAMETERS * sizeof *orders) == 0)
            fail_msg("gradients became ready in the same order on ranks 0 and 1, so this test has proved nothing: does "
                     "the tape raise each event when the last contribution lands?");
        branch_pair_free(pair);
    }
}

/* ---- the tied weight ---- */

static void test_tied_weight(void **state)
{
    const DdpOptions one_bucket_per_parameter = {.codec = codec_find("fp32")};
    BranchPair *pair = branch_pair_create(pg, &one_bucket_per_parameter, -1);
    BranchPlan plan = branches_plan(0);
    pair->watch.copying = true;
    branch_pair_ranks_gradient(pair, &plan, 0, LOCKSTEP_STAGE == 3); /* stage 4: the gradient stays this rank's */
    int events[PARAMETERS] = {0};
    for (int i = 0; i < pair->watch.count; i++) {
        const Parameter *parameter = pair->ranks->parameters.items[pair->watch.order[i]];
        if (++events[parameter->index] > 1)
            fail_msg("%s raised a second event: a tied weight is ready once, after its last contribution",
                     parameter->name);
        if (LOCKSTEP_STAGE > 3)
            expect_bits_equal(parameter->name, pair->watch.gradient[i], parameter->tensor.grad,
                              tensor_count(&parameter->tensor), "the event came before the last contribution; or "
                              "ddp_after_backward() has scaled the gradient, or replaced it by the sum over ranks, "
                              "before the LAST micro-batch");
    }
    if (pair->watch.count != PARAMETERS)
        fail_msg("%d gradient-ready events came in a backward pass, expected one for each of %d parameters",
                 pair->watch.count, PARAMETERS);
    if (pair->watch.order[PARAMETERS - 1] != TRUNK)
        fail_msg("the last event was that of parameter %d, expected that of the tied weight, %d: every branch "
                 "contributes to it", pair->watch.order[PARAMETERS - 1], TRUNK);
    parameters_zero_gradients(&pair->ranks->parameters);

    /* The trunk was registered last, so it is in bucket 0: before its event, no bucket may be launched. */
    pg_reset_counters(pg);
    branch_pair_ranks_gradient(pair, &plan, 0, true);
    if (pair->watch.collectives[PARAMETERS - 1] != 0)
        fail_msg("%ld all-reduces were done before the tied weight, which is in bucket 0, was ready",
                 pair->watch.collectives[PARAMETERS - 1]);
    parameters_zero_gradients(&pair->ranks->parameters);
    branch_pair_free(pair);
}

/* ---- unused parameters ---- */

static void same_on_all_ranks(BranchPlan *plans, BranchPlan plan)
{
    for (int rank = 0; rank < pg_world_size(pg); rank++)
        plans[rank] = plan;
}

enum { USED_BY_SOME = 2, LEFT_OUT_BY_ALL = 3, DEAD_END_ON_ALL = 4 };

static void expect_untouched(const BranchPair *pair, const float *before, int i, long updates)
{
    const Parameter *parameter = pair->ranks->parameters.items[i];
    expect_bits_equal(parameter->name, parameter->tensor.data, before, tensor_count(&parameter->tensor),
                      "no rank used this parameter: momentum and weight decay must not change it");
    if (pair->ranks_optimizer.steps[i] != updates)
        fail_msg("%s: no rank used it, but the optimizer has counted %ld updates, not %ld", parameter->name,
                 pair->ranks_optimizer.steps[i], updates);
}

static void unused_in_step(BranchPair *pair, long step)
{
    float *before[PARAMETERS];
    BranchPlan plans[MAX_RANKS];
    same_on_all_ranks(plans, branches_plan(0));
    for (int rank = 0; rank < pg_world_size(pg); rank++) {
        plans[rank].left_out[LEFT_OUT_BY_ALL] = true;
        plans[rank].dead_end[DEAD_END_ON_ALL] = true;
        plans[rank].left_out[USED_BY_SOME] = rank == pg_world_size(pg) - 1 && rank > 0; /* not on the last rank */
    }
    for (int i = 0; i < PARAMETERS; i++) {
        size_t bytes = (size_t)tensor_count(&pair->ranks->parameters.items[i]->tensor) * sizeof(float);
        before[i] = memcpy(alloc_or_fault(bytes), pair->ranks->parameters.items[i]->tensor.data, bytes);
    }
    int from = timeline_length();
    const long sums = pg_counters(pg).async_sums;
    branch_pair_step(pair, plans, step, "unused parameters");
    expect_bucket_order(pg, from, (int)(pg_counters(pg).async_sums - sums));
    for (int i = 2 * LEFT_OUT_BY_ALL; i < 2 * DEAD_END_ON_ALL + 2; i++)
        expect_untouched(pair, before[i], i, step);
    if (pair->ranks_optimizer.steps[2 * USED_BY_SOME] != step + 1)
        fail_msg("rank %d: a parameter that some ranks used has had %ld updates, expected %ld on every rank: the ranks "
                 "must agree on which parameters were used (readiness_agree_on_use())", pg_rank(pg),
                 pair->ranks_optimizer.steps[2 * USED_BY_SOME], step + 1);
    for (int i = 0; i < PARAMETERS; i++)
        free(before[i]);
}

enum { ONLY_FIRST = 1, ONLY_FIRST_ON_RANK_0 = 2, FIRST_THEN_DEAD_END = 4 }; /* 0: always used; 3: never */

/* Two micro-batches. A parameter that the last one does not use still holds the first one's gradient, which must be
 * sent. "Ready before backward" does not mean that its gradient is zero, nor that no micro-batch used it. */
static void unused_in_last_micro_batch(BranchPair *pair, long step)
{
    BranchPlan first[MAX_RANKS], last[MAX_RANKS];
    same_on_all_ranks(first, branches_plan(0));
    same_on_all_ranks(last, branches_plan(0));
    for (int rank = 0; rank < pg_world_size(pg); rank++) {
        first[rank].left_out[LEFT_OUT_BY_ALL] = last[rank].left_out[LEFT_OUT_BY_ALL] = true;
        first[rank].left_out[ONLY_FIRST_ON_RANK_0] = rank > 0;
        last[rank].left_out[ONLY_FIRST_ON_RANK_0] = last[rank].left_out[ONLY_FIRST] = true;
        last[rank].dead_end[FIRST_THEN_DEAD_END] = true;
    }
    branch_pair_accumulate(pair, first, 100 + step);
    int from = timeline_length();
    const long sums = pg_counters(pg).async_sums;
    branch_pair_step(pair, last, step, "parameters used in the first micro-batch only");
    expect_bucket_order(pg, from, (int)(pg_counters(pg).async_sums - sums));
}

static void test_unused_parameters(void **state)
{
    const size_t caps[] = {0, 200, 1 << 20};
    for (int c = 0; c < 3; c++) {
        DdpOptions options = {.codec = codec_find("fp32"), .bucket_cap_bytes = caps[c],
                              .first_bucket_cap_bytes = caps[c],
                              .find_unused_parameters = true};
        BranchPair *pair = branch_pair_create(pg, &options, -1);
        BranchPlan plans[MAX_RANKS];
        same_on_all_ranks(plans, branches_plan(0));
        branch_pair_step(pair, plans, 0, "all parameters used"); /* every parameter gets some momentum */
        unused_in_step(pair, 1);
        if (LOCKSTEP_STAGE > 3)
            unused_in_last_micro_batch(pair, 2);
        branch_pair_step(pair, plans, 3, "all parameters used again");
        branch_pair_free(pair);
    }
}

/* Only one rank has an unused parameter: it must make the same calls as the others, and all ranks must agree. A frozen
 * parameter is in no bucket. It may be the unused one, or the trunk, through which all gradients pass. */
static void test_unused_on_one_rank(void **state)
{
    const int frozen[] = {-1, 2 * LEFT_OUT_BY_ALL, 2 * LEFT_OUT_BY_ALL + 1, TRUNK};
    const DdpOptions options = {.bucket_cap_bytes = 200, .first_bucket_cap_bytes = 100, .codec = codec_find("fp32"),
                                .find_unused_parameters = true};
    for (int f = 0; f < 4; f++) {
        BranchPair *pair = branch_pair_create(pg, &options, frozen[f]);
        for (int alone = 0; alone < pg_world_size(pg); alone++) {
            BranchPlan plans[MAX_RANKS];
            same_on_all_ranks(plans, branches_plan(0));
            plans[alone].left_out[LEFT_OUT_BY_ALL] = plans[alone].dead_end[DEAD_END_ON_ALL] = true;
            int from = timeline_length();
            const long sums = pg_counters(pg).async_sums;
            branch_pair_step(pair, plans, alone, f == 0 ? "something unused on one rank" :
                                                          "something unused on one rank, and something frozen");
            expect_bucket_order(pg, from, (int)(pg_counters(pg).async_sums - sums));
        }
        branch_pair_free(pair);
    }
}

/* ---- rebuilt buckets ---- */

/* With a bucket for each parameter, the buckets that were started at each event show the order of the parameters in the
 * buckets: branch_pair_step() compares them with rank 0's first order. Where gradients lie in memory is the stage's own
 * matter. Each step has another order of readiness, so buckets that are rebuilt again do not pass. */
static void rebuild_and_look(bool find_unused)
{
    const DdpOptions options = {.codec = codec_find("fp32"), .rebuild_buckets = true,
                                .find_unused_parameters = find_unused};
    BranchPair *pair = branch_pair_create(pg, &options, -1);
    BranchPlan plans[MAX_RANKS];
    for (long step = 0; step < 4; step++) {
        for (int rank = 0; rank < pg_world_size(pg); rank++)
            plans[rank] = branches_plan(rank + 1 + (int)step);
        if (find_unused && pg_world_size(pg) > 1) /* what is unused on some ranks is in rank 0's order all the same */
            plans[pg_world_size(pg) - 1].left_out[LEFT_OUT_BY_ALL] = true;
        int from = timeline_length();
        const long sums = pg_counters(pg).async_sums;
        branch_pair_step(pair, plans, step, step == 0 ? "before the buckets are rebuilt" :
                                                        "after the buckets were rebuilt");
        expect_bucket_order(pg, from, (int)(pg_counters(pg).async_sums - sums));
    }
    branch_pair_free(pair);
}

static void test_rebuilt_buckets_follow_readiness(void **state)
{
    rebuild_and_look(false);
    rebuild_and_look(true); /* both options together must work, too */
}

/* Rebuilt buckets may have other sizes and another number than the first ones. A stage must update everything that
 * depends on these sizes or this number. */
static void test_rebuilt_buckets_are_others(void **state)
{
    /* Bytes. Of all branches, a weight is the last in the plan, and a bias is ready last. */
    enum { ALL_BRANCHES = BRANCHES * BRANCH_WIDTH * (BRANCH_WIDTH + 1) * (int)sizeof(float) };
    const struct {
        size_t first_cap, cap; /* bytes */
        int frozen;            /* a parameter */
        const char *what;
    } cases[] = {{160, 340, TRUNK, "with a larger bucket after rebuilding"}, /* 176 elements, after 144 */
                 {26, 10, TRUNK, "with more buckets after rebuilding"},      /* 10, after 9 */
                 {26, 10, TRUNK - 2, "with fewer buckets after rebuilding"}, /* 9, after 10 */
                 {ALL_BRANCHES - 100, 10, TRUNK, "with two buckets after rebuilding, and one before"}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const DdpOptions options = {.bucket_cap_bytes = cases[c].cap, .first_bucket_cap_bytes = cases[c].first_cap,
                                    .codec = codec_find("fp32"), .rebuild_buckets = true};
        BranchPair *pair = branch_pair_create(pg, &options, cases[c].frozen);
        BranchPlan plans[MAX_RANKS];
        same_on_all_ranks(plans, branches_plan(0));
        for (long step = 0; step < 3; step++) {
            if (LOCKSTEP_STAGE > 3)
                branch_pair_accumulate(pair, plans, 100 + step);
            branch_pair_step(pair, plans, step, cases[c].what);
        }
        branch_pair_free(pair);
    }
}

static uint64_t hash_after_steps(bool rebuild)
{
    DdpOptions options = {.bucket_cap_bytes = 200, .first_bucket_cap_bytes = 100, .codec = codec_find("fp32"),
                          .rebuild_buckets = rebuild};
    BranchPair *pair = branch_pair_create(pg, &options, -1);
    BranchPlan plans[MAX_RANKS];
    same_on_all_ranks(plans, branches_plan(0));
    for (long step = 0; step < 4; step++) {
        int from = timeline_length();
        const long sums = pg_counters(pg).async_sums;
        branch_pair_step(pair, plans, step, rebuild ? "with rebuilt buckets" : "with the first buckets");
        expect_bucket_order(pg, from, (int)(pg_counters(pg).async_sums - sums));
    }
    uint64_t hash = parameters_hash(&pair->ranks->parameters);
    branch_pair_free(pair);
    return hash;
}

static void test_rebuilt_buckets_give_the_same_bits(void **state)
{
    uint64_t first = hash_after_steps(false), rebuilt = hash_after_steps(true); /* ordered sums: see main() */
    if (first != rebuilt)
        fail_msg("rank %d: the weights have other bits when buckets are rebuilt after the first step (hash %016" PRIx64
                 ", not %016" PRIx64 "): a gradient was lost or counted twice when it moved to its new bucket",
                 pg_rank(pg), rebuilt, first);
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_differs_by_rank),
        cmocka_unit_test(test_tied_weight),
        cmocka_unit_test(test_unused_parameters),
        cmocka_unit_test(test_unused_on_one_rank),
        cmocka_unit_test(test_rebuilt_buckets_follow_readiness),
        cmocka_unit_test(test_rebuilt_buckets_are_others),
        cmocka_unit_test(test_rebuilt_buckets_give_the_same_bits),
    };
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    ProcessGroupOptions options = {.algorithm = ALLREDUCE_ORDERED, .timeout = tests_timeout(),
                                   .debug_collectives = true};
    pg = tests_start_group(&argc, &argv, &options);
    timeline_enable();
    timeline_observe(pg);
    int failures = cmocka_run_group_tests_name("overlap", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
