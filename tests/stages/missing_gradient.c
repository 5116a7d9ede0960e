/* missing_gradient.c: trains the branching model without find_unused_parameters. In step 2 one branch is missing, on
 * one rank or on all ranks, perhaps in the first of two micro-batches only; or one rank has a different model from the
 * start. test_missing_gradient.sh checks the error that must follow.
 *
 * usage: missing_gradient RANK                     the rank that leaves branch 3 out; -1: all of them do
 *        missing_gradient first-micro-batch RANK   the same, in the first of two micro-batches only
 *        missing_gradient other-model RANK         the rank that has frozen the bias of branch 1 */
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

int main(int argc, char **argv)
{
    pg_initialize(&argc, &argv);
    guard_job();
    job_set_program("missing_gradient");
    ProcessGroup *pg = pg_create(&(ProcessGroupOptions){.timeout = 10});
    guard_group(pg);
    device_init(pg_local_rank(pg), 1);
    int rank = pg_rank(pg);
    bool other_model = argc > 2 && strcmp(argv[1], "other-model") == 0;
    bool in_first = argc > 2 && strcmp(argv[1], "first-micro-batch") == 0;
    int culprit = atoi(argv[argc - 1]);
    bool is_culprit = culprit < 0 || culprit == rank;
    Branches branches;
    DdpOptions options = {.bucket_cap_bytes = 200, .first_bucket_cap_bytes = 200, .grad_dtype = DTYPE_F32,
                          .zero = 2};
    BranchPlan plan = branches_plan(0);
    branches_create(&branches, 1);
    branches.parameters.items[3]->tensor.requires_grad = !(other_model && is_culprit);
    Ddp *ddp = ddp_create(pg, &branches.parameters, &branches.tape, &options);
    for (long step = 0; step < 5; step++) {
        job_set_step(step);
        plan.left_out[3] = !other_model && step == 2 && is_culprit;
        if (in_first) {
            micro_batch(ddp, &branches, &plan, rank, step, false);
            plan.left_out[3] = false;
        }
        micro_batch(ddp, &branches, &plan, rank, step, true);
        parameters_zero_gradients(&branches.parameters);
        printf("rank %d has done step %ld\n", rank, step);
        fflush(stdout);
    }
    ddp_destroy(ddp);
    branches_free(&branches);
    pg_destroy(pg);
    return 0;
}
