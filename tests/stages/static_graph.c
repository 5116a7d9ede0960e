/* static_graph.c: trains the branching model for 4 steps of some micro-batches, and prints for each rank how many
 * collectives each step has had, and a hash of the weights. Branch 3 is left out by rank 0, branch 4 by all, and branch
 * 1 by all ranks but 0. test_static_graph.sh compares.
 *
 * usage: static_graph find|static MICRO_BATCHES ZERO [more|first|less]     ZERO: stage 5's level
 *                  more: from step 2 on, rank 0 uses branch 3; first: in the first micro-batch only; less: from step 2 on,
 *                  it does not use branch 2 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "ddp.h"
#include "device/device.h"
#include "optim/optimizer.h"
#include "toy_models.h"
#include "train/guard/guard.h"

enum { STEPS = 4 };

static void choose_branches(BranchPlan *plan, int rank, bool less, bool more)
{
    plan->left_out[1] = rank != 0;
    plan->left_out[2] = rank == 0 && less;
    plan->left_out[3] = rank == 0 && !more;
    plan->left_out[4] = true;
}

static void train_step(Ddp *ddp, Branches *branches, const char *change, int rank, long step, int micro_batches)
{
    BranchPlan plan = branches_plan(rank);
    for (int k = 0; k < micro_batches; k++) {
        const bool changed = step >= 2 && (k == 0 || strcmp(change, "first") != 0);
        const bool less = strcmp(change, "less") == 0;
        choose_branches(&plan, rank, changed && less, changed && !less && *change != '\0');
        ddp_before_forward(ddp, k + 1 == micro_batches);
        tape_begin(&branches->tape, true);
        Tensor *loss = branches_loss(branches, &plan, rank, step * micro_batches + k);
        ddp_before_backward(ddp, loss);
        tape_backward(&branches->tape, loss, 1);
        ddp_after_backward(ddp, 0.01f);
    }
}

int main(int argc, char **argv)
{
    ProcessGroup *pg = job_open(&argc, &argv);
    guard_job(pg);
    job_set_program("static_graph");
    pg_set_options(pg, &(ProcessGroupOptions){.timeout = 10, .algorithm = ALLREDUCE_ORDERED});
    device_init(pg_local_rank(pg), 1);
    const int rank = pg_rank(pg), micro_batches = atoi(argv[2]);
    long collectives[STEPS];
    const char *change = argc > 4 ? argv[4] : "";
    const ShardingOptions sharding = {.level = atoi(argv[3])};
    const DdpOptions options = {.bucket_cap_bytes = 200, .first_bucket_cap_bytes = 200, .codec = codec_find("fp32"),
                                .find_unused_parameters = true, .static_graph = strcmp(argv[1], "static") == 0,
                                .rebuild_buckets = true, .sharding = &sharding};
    const OptimizerOptions sgd = {.kind = OPTIMIZER_SGD, .momentum = 0.9f, .weight_decay = 0.1f};
    Branches branches;
    Optimizer optimizer;
    branches_create(&branches, 1);
    optimizer_create(&optimizer, &sgd, &branches.parameters);
    Ddp *ddp = ddp_create(pg, &branches.parameters, &branches.tape, &options);
    optimizer_set_partition(&optimizer, ddp_partition(ddp));
    for (long step = 0; step < STEPS; step++) {
        const long before = pg_counters(pg).collectives;
        job_set_step(step);
        train_step(ddp, &branches, change, rank, step, micro_batches);
        optimizer_step(&optimizer, 0.1f);
        parameters_zero_gradients(&branches.parameters);
        ddp_after_update(ddp);
        ddp_gather_weights(ddp);
        collectives[step] = pg_counters(pg).collectives - before;
    }
    printf("rank %d: %ld %ld %ld %ld %016llx\n", rank, collectives[0], collectives[1], collectives[2], collectives[3],
           (unsigned long long)parameters_hash(&branches.parameters));
    ddp_destroy(ddp);
    optimizer_free(&optimizer);
    branches_free(&branches);
    job_close(pg);
    return 0;
}
