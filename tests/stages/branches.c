/* branches.c: a model whose branches can be recorded in any order. */
#include "branches.h"

#include <stdio.h>

#include "autograd/ops.h"
#include "base/rng.h"

void branches_create(Branches *branches, uint64_t seed)
{
    Rng rng;
    rng_seed(&rng, seed);
    *branches = (Branches){.tape = {.precision = DTYPE_F32}};
    for (int k = 0; k < BRANCHES; k++) {
        char name[32];
        snprintf(name, sizeof name, "branch%d.weight", k);
        parameters_add(&branches->parameters, name, 2, (int64_t[]){BRANCH_WIDTH, BRANCH_WIDTH});
        snprintf(name, sizeof name, "branch%d.bias", k);
        parameters_add(&branches->parameters, name, 1, (int64_t[]){BRANCH_WIDTH});
    }
    parameters_add(&branches->parameters, "trunk.weight", 2, (int64_t[]){BRANCH_WIDTH, BRANCH_WIDTH});
    for (int i = 0; i < branches->parameters.count; i++) {
        float *values = branches->parameters.items[i]->tensor.data;
        for (int64_t k = 0; k < tensor_count(&branches->parameters.items[i]->tensor); k++)
            values[k] = 0.4f * rng_normal(&rng);
    }
}

void branches_free(Branches *branches)
{
    tape_free(&branches->tape);
    parameters_free(&branches->parameters);
}

BranchPlan branches_plan(int turn)
{
    BranchPlan plan = {{0}, {false}, {false}};
    for (int k = 0; k < BRANCHES; k++)
        plan.order[k] = (turn % 2 == 0 ? turn + k : turn + BRANCHES - 1 - k) % BRANCHES;
    return plan;
}

static Tensor *random_rows(Tape *tape, Rng *rng)
{
    Tensor *rows = tape_tensor(tape, 2, (int64_t[]){BRANCH_SAMPLES, BRANCH_WIDTH}, false);
    for (int i = 0; i < BRANCH_SAMPLES * BRANCH_WIDTH; i++)
        ((float *)rows->data)[i] = rng_normal(rng);
    return rows;
}

Tensor *branches_loss(Branches *branches, const BranchPlan *plan, int rank, long step)
{
    Tape *tape = &branches->tape;
    Parameter **items = branches->parameters.items;
    Tensor *outputs[BRANCHES] = {NULL}, *prediction = NULL;
    Rng rng;
    rng_seed(&rng, 1000 + 100 * (uint64_t)step + (uint64_t)rank);
    Tensor *inputs = random_rows(tape, &rng), *targets = random_rows(tape, &rng);
    Tensor *trunk = &items[2 * BRANCHES]->tensor;
    Tensor *h = op_linear(tape, op_relu(tape, op_linear(tape, inputs, trunk, NULL)), trunk, NULL);
    for (int i = 0; i < BRANCHES; i++) {
        int k = plan->order[i];
        if (!plan->left_out[k])
            outputs[k] = op_linear(tape, h, &items[2 * k]->tensor, &items[2 * k + 1]->tensor);
    }
    for (int k = 0; k < BRANCHES; k++) /* added in one order on all ranks, so that the rounding is the same */
        if (outputs[k] != NULL && !plan->dead_end[k])
            prediction = prediction == NULL ? outputs[k] : op_add(tape, prediction, outputs[k]);
    return op_mse(tape, prediction, targets->data);
}
