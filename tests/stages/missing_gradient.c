/* missing_gradient.c: trains the branching model without find_unused_parameters, twice: first undisturbed, then in one
 * step one branch is missing, on one rank or on all ranks, in one of some micro-batches; or one rank has a different
 * model from the start. test_missing_gradient.sh checks the error that must follow.
 *
 * usage: missing_gradient RANK STEP K OF TYPE ZERO CAP [static|more]   RANK leaves branch 3 out (-1: all of them do) in
 *                  STEP, in micro-batch K of OF; gradients are sent as TYPE (fp32, bf16, fp16); ZERO: stage 5's level;
 *                  CAP: bytes; static: --static-graph, whose promise that breaks; more: RANK breaks it because it uses
 *                  branch 3 there, which all leave out elsewhere
 *        missing_gradient frozen|shape|size RANK         RANK has frozen the bias of branch 1, or another shape of its
 *                  weight, with as many elements, or half as many */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "ddp.h"
#include "device/device.h"
#include "toy_models.h"
#include "train/guard/guard.h"

static void micro_batch(Ddp *ddp, Branches *branches, const BranchPlan *plan, int rank, long step, bool last)
{
    ddp_before_forward(ddp, last);
    tape_begin(&branches->tape, true);
    Tensor *loss = branches_loss(branches, plan, rank, step);
    ddp_before_backward(ddp, loss);
    tape_backward(&branches->tape, loss, 1);
    ddp_after_backward(ddp, 1);
}

/* The disturbance: rank -1 is all ranks; step -1 is none. */
typedef struct Case {
    int rank, step, micro_batch, micro_batches;
    bool more;
    const char *other_model;
    DdpOptions options;
    ShardingOptions sharding;
} Case;

static Case read_case(char **argv)
{
    Case c = {.step = -1, .micro_batches = 1,
              .options = {.bucket_cap_bytes = 200, .first_bucket_cap_bytes = 200, .codec = codec_find("fp32")},
              .sharding = {.level = 2}};
    if (argv[3] == NULL) {
        c.other_model = argv[1];
        c.rank = atoi(argv[2]);
        c.sharding.level = strcmp(c.other_model, "frozen") == 0 ? 3 : 1;
        return c;
    }
    c.rank = atoi(argv[1]);
    c.step = atoi(argv[2]);
    c.micro_batch = atoi(argv[3]);
    c.micro_batches = atoi(argv[4]);
    c.options.codec = codec_find(argv[5]);
    c.sharding.level = atoi(argv[6]);
    c.options.bucket_cap_bytes = c.options.first_bucket_cap_bytes = (size_t)atol(argv[7]);
    c.options.static_graph = c.options.find_unused_parameters = argv[8] != NULL;
    c.more = argv[8] != NULL && strcmp(argv[8], "more") == 0;
    return c;
}

static void train(ProcessGroup *pg, const Case *c, bool disturbed, long steps)
{
    const int rank = pg_rank(pg);
    const bool is_culprit = disturbed && (c->rank < 0 || c->rank == rank);
    Branches branches;
    BranchPlan plan = branches_plan(0);
    branches_create(&branches, 1);
    if (is_culprit && c->other_model != NULL && strcmp(c->other_model, "frozen") == 0)
        branches.parameters.items[3]->tensor.requires_grad = false;
    if (is_culprit && c->other_model != NULL && strcmp(c->other_model, "shape") == 0)
        branches.parameters.items[2]->tensor.shape[0] /= 2, branches.parameters.items[2]->tensor.shape[1] *= 2;
    if (is_culprit && c->other_model != NULL && strcmp(c->other_model, "size") == 0)
        branches.parameters.items[2]->tensor.shape[0] /= 2;
    DdpOptions options = c->options;
    options.sharding = &c->sharding;
    Ddp *ddp = ddp_create(pg, &branches.parameters, &branches.tape, &options);
    for (long step = 0; step < steps; step++) {
        job_set_step(step);
        for (int k = 0; k < c->micro_batches; k++) {
            plan.left_out[3] = (is_culprit && step == c->step && k == c->micro_batch) != c->more;
            micro_batch(ddp, &branches, &plan, rank, step, k + 1 == c->micro_batches);
        }
        parameters_zero_gradients(&branches.parameters);
        ddp_after_update(ddp);
        printf("rank %d has done step %ld%s\n", rank, step, disturbed ? "" : " undisturbed");
        fflush(stdout);
    }
    ddp_destroy(ddp);
    branches_free(&branches);
}

int main(int argc, char **argv)
{
    ProcessGroup *pg = job_open(&argc, &argv);
    guard_job(pg);
    job_set_program("missing_gradient");
    pg_set_options(pg, &(ProcessGroupOptions){.timeout = 10});
    device_init(pg_local_rank(pg), 1);
    const Case c = read_case(argv);
    train(pg, &c, false, 1);
    train(pg, &c, true, c.step + 3);
    job_close(pg);
    return argc < 3;
}
