/* branch_pair.c: the branching model on N ranks, and beside it in one process. */
#include "branch_pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "ddp/replicas.h"
#include "device/device.h"
#include "expect.h"
#include "given.h"
#include "lent.h"

/* ---- the timeline ---- */

int timeline_length(void)
{
    const TimelineEvent *events;
    return timeline_events(&events);
}

static void expect_same_on_all_ranks(ProcessGroup *pg, uint64_t hash)
{
    uint64_t all[MAX_RANKS];
    CHECK(pg_world_size(pg) <= MAX_RANKS, "this test is for %d ranks at most", MAX_RANKS);
    pg_all_gather(pg, &hash, all, 1, DTYPE_I64, "sequence of collectives");
    for (int rank = 0; rank < pg_world_size(pg); rank++)
        if (all[rank] != all[0])
            fail_msg("ranks 0 and %d issued different sequences of collectives", rank);
}

void expect_bucket_order(ProcessGroup *pg, int from, int buckets)
{
    const TimelineEvent *events;
    int count = timeline_events(&events), next = 0;
    double latest = 0;
    uint64_t hash = FNV1A_START;
    for (int i = from; i < count; i++) {
        char expected[56];
        if (events[i].row != ROW_COMMUNICATION)
            continue;
        hash = fnv1a(hash, events[i].name, strlen(events[i].name));
        if (strncmp(events[i].name, "all_reduce bucket", 17) != 0)
            continue;
        snprintf(expected, sizeof expected, "all_reduce bucket %d", next++);
        if (strcmp(events[i].name, expected) != 0 || events[i].start < latest)
            fail_msg("rank %d: expected \"%s\" next, got \"%s\"; usual cause: buckets launched as they become ready, "
                     "not in bucket order", pg_rank(pg), expected, events[i].name);
        latest = events[i].start;
    }
    if (next != buckets)
        fail_msg("rank %d: expected %d all-reduces of buckets, got %d; usual cause: a bucket is not launched in every "
                 "backward pass, or ddp_after_backward() does not wait for it", pg_rank(pg), buckets, next);
    expect_same_on_all_ranks(pg, hash);
}

/* ---- the pair ---- */

BranchPair *branch_pair_create(ProcessGroup *pg, const DdpOptions *options, int frozen)
{
    const OptimizerOptions sgd = {.kind = OPTIMIZER_SGD, .momentum = 0.9f, .weight_decay = 0.1f};
    BranchPair *pair = alloc_or_fault(sizeof *pair);
    pair->pg = pg;
    pair->options = *options;
    pair->ranks = lend(sizeof *pair->ranks);
    branches_create(pair->ranks, toy_seed(pg));
    if (frozen >= 0)
        pair->ranks->parameters.items[frozen]->tensor.requires_grad = false;
    optimizer_create(&pair->ranks_optimizer, &sgd, &pair->ranks->parameters);
    pair->ddp = ddp_create(pg, &pair->ranks->parameters, &pair->ranks->tape, options);
    CHECK(pair->ddp != NULL, "ddp_create() returned NULL");
    branches_create(&pair->whole, toy_seed_of_rank_0(pg));
    if (frozen >= 0)
        pair->whole.parameters.items[frozen]->tensor.requires_grad = false;
    optimizer_create(&pair->whole_optimizer, &sgd, &pair->whole.parameters);
    give_start(&pair->ranks->parameters, &pair->whole.parameters, NULL);
    pair->whole_gradients = parameters_allocate_gradients(&pair->whole.parameters);
    watch_start(&pair->watch, pg, &pair->ranks->tape);
    return pair;
}

void branch_pair_free(BranchPair *pair)
{
    watch_stop(&pair->watch);
    ddp_destroy(pair->ddp);
    optimizer_free(&pair->ranks_optimizer);
    optimizer_free(&pair->whole_optimizer);
    device_free(pair->whole_gradients);
    branches_free(pair->ranks);
    take_back(pair->ranks);
    branches_free(&pair->whole);
    free(pair);
}

/* The factor that makes the mean from the sum over all ranks' samples. */
static float gradient_scale(const BranchPair *pair)
{
    return 1.0f / (float)(BRANCH_SAMPLES * pg_world_size(pair->pg));
}

/* If a rank skips the agreement, the other ranks wait in it, and only this rank can report the mistake. */
static void expect_agreement(const BranchPair *pair, CommCounters before)
{
    const CommCounters now = pg_counters(pair->pg);
    if (pg_world_size(pair->pg) > 1 &&
        now.collectives - before.collectives <= now.sums + now.async_sums - before.sums - before.async_sums)
        fail_msg("rank %d has not agreed with the others on which parameters were used: every rank must call "
                 "readiness_agree_on_use() after each last micro-batch, also one whose own loss depends on all of them",
                 pg_rank(pair->pg));
}

void branch_pair_ranks_gradient(BranchPair *pair, const BranchPlan *plan, long step, bool last)
{
    const CommCounters before = pg_counters(pair->pg);
    watch_forget(&pair->watch);
    ddp_before_forward(pair->ddp, last);
    tape_begin(&pair->ranks->tape, true);
    Tensor *loss = branches_loss(pair->ranks, plan, pg_rank(pair->pg), step);
    watch_before_backward(true);
    ddp_before_backward(pair->ddp, loss);
    watch_before_backward(false);
    tape_backward(&pair->ranks->tape, loss, 1);
    watch_expect_starts(&pair->watch, &pair->ranks->parameters, &pair->options, last);
    ddp_after_backward(pair->ddp, gradient_scale(pair));
    if (last && pair->options.find_unused_parameters)
        expect_agreement(pair, before);
}

/* New buckets are zeroed. So gradients must have been used when buckets are made again. */
static void expect_gradients_not_lost(const BranchPair *pair)
{
    const ParameterList *parameters = &pair->ranks->parameters;
    for (int i = 0; i < parameters->count; i++) {
        const Tensor *tensor = &parameters->items[i]->tensor;
        const float *gradient = tensor->grad;
        for (int64_t k = 0; k < tensor_count(tensor) && gradient != NULL; k++)
            if (gradient[k] != 0)
                return;
    }
    fail_msg("rank %d: after ddp_after_backward() all gradients are zero: buckets were made again there, and the sums "
             "in the old ones are lost; make them again in the next ddp_before_forward()", pg_rank(pair->pg));
}

/* Adds the gradients of all ranks' samples in one process. */
static void whole_gradient(BranchPair *pair, const BranchPlan *plans, long step)
{
    for (int rank = 0; rank < pg_world_size(pair->pg); rank++) {
        tape_begin(&pair->whole.tape, true);
        tape_backward(&pair->whole.tape, branches_loss(&pair->whole, &plans[rank], rank, step), 1);
    }
}

void branch_pair_accumulate(BranchPair *pair, const BranchPlan *plans, long step)
{
    branch_pair_ranks_gradient(pair, &plans[pg_rank(pair->pg)], step, false);
    whole_gradient(pair, plans, step);
}

static void whole_mean_gradient(BranchPair *pair, const BranchPlan *plans, long step)
{
    ParameterList *parameters = &pair->whole.parameters;
    whole_gradient(pair, plans, step);
    for (int i = 0; i < PARAMETERS; i++)
        if (parameters->items[i]->tensor.requires_grad)
            device_scale(parameters->items[i]->tensor.grad, gradient_scale(pair),
                         tensor_count(&parameters->items[i]->tensor));
}

void branch_pair_step(BranchPair *pair, const BranchPlan *plans, long step, const char *what)
{
    branch_pair_ranks_gradient(pair, &plans[pg_rank(pair->pg)], step, true);
    expect_gradients_not_lost(pair);
    if (pair->options.rebuild_buckets && pair->watch.planned == 0)
        watch_follow_rank_0(&pair->watch);
    whole_mean_gradient(pair, plans, step);
    give_factor(&pair->ranks->parameters, &pair->whole.parameters, NULL);
    optimizer_step(&pair->ranks_optimizer, 0.02f);
    optimizer_step(&pair->whole_optimizer, 0.02f);
    parameters_zero_gradients(&pair->ranks->parameters);
    parameters_zero_gradients(&pair->whole.parameters);
    for (int i = 0; i < PARAMETERS; i++) {
        const Parameter *got = pair->ranks->parameters.items[i], *want = pair->whole.parameters.items[i];
        char name[160];
        snprintf(name, sizeof name, "%s, %s, after step %ld on %d ranks", what, got->name, step,
                 pg_world_size(pair->pg));
        expect_close(name, got->tensor.data, want->tensor.data, tensor_count(&got->tensor), 1e-6, 1e-6,
                     "gradients of different parameters added up, or one sent before it was complete; or ranks that do "
                     "not agree on which parameters were used; or an earlier micro-batch is lost, or scaled twice");
    }
    replicas_check_equal(pair->pg, &pair->ranks->parameters);
}
