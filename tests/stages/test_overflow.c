/* test_overflow.c: stage 4, fp16: an overflow on ONE rank skips the step on ALL ranks and halves the scale on all.
 * Run on 1 to 4 ranks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/rounding.h"
#include "base/check.h"
#include "ddp/replicas.h"
#include "device/device.h"
#include "expect.h"
#include "lent.h"
#include "mpi_main.h"
#include "toy_models.h"
#include "train/loop/replica.h"

enum { SAMPLES = 6 };

static ProcessGroup *pg;

typedef struct Run {
    Options options;
    Dataset dataset;
    Replica *replica; /* lent (lent.h) */
    Ddp *ddp;
    float *inputs, *targets;
} Run;

static void expect_fresh_copies(const Run *run)
{
    const Parameter *stale = parameters_find_stale(&run->replica->model.parameters);
    if (stale != NULL)
        fail_msg("rank %d of %d: the 16-bit copy of %s is stale; usual cause: weights that came by broadcast were not "
                 "reported by parameters_changed()", pg_rank(pg), pg_world_size(pg), stale->name);
}

static Run *run_create(DType sent_as)
{
    Run *run = alloc_or_fault(sizeof *run);
    run->options = toy_options("mlp-toy");
    run->options.precision = DTYPE_F16;
    run->options.initial_loss_scale = 64;
    run->options.optimizer.momentum = 0.9f;
    run->options.ddp.codec = codec_find(precision_name(sent_as));
    run->dataset = toy_dataset(&run->options, 100);
    run->replica = replica_lend(&run->options, 3 + (uint64_t)pg_rank(pg), 10);
    replica_load(run->replica, &run->dataset, NULL, NULL, 0);
    tape_begin(&run->replica->tape, false);
    model_forward(&run->replica->model, &run->replica->tape, run->replica->inputs, 0, 1); /* makes 16-bit copies */
    run->options.ddp.sharding = &run->options.sharding;
    run->ddp = ddp_create(pg, &run->replica->model.parameters, &run->replica->tape, &run->options.ddp);
    expect_fresh_copies(run);
    run->inputs = alloc_or_fault(SAMPLES * run->dataset.input_bytes);
    run->targets = alloc_or_fault(SAMPLES * run->dataset.target_bytes);
    return run;
}

static void run_free(Run *run)
{
    ddp_destroy(run->ddp);
    replica_take_back(run->replica);
    dataset_close(&run->dataset);
    free(run->inputs);
    free(run->targets);
    free(run);
}

/* Trains one step, in which rank `culprit` (-1: none) has a target so large that fp16 cannot hold the gradient. Returns
 * whether the optimizer took the step. */
static bool take_step(Run *run, long step, int culprit)
{
    int64_t indices[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        indices[i] = (step * SAMPLES + i) * pg_world_size(pg) % 90 + pg_rank(pg);
    dataset_get(&run->dataset, 0, indices, SAMPLES, run->inputs, run->targets);
    if (pg_rank(pg) == culprit)
        run->targets[7] = 1e6f;
    ddp_before_forward(run->ddp, true);
    Tensor *loss = replica_loss(run->replica, &run->dataset, run->inputs, run->targets, SAMPLES);
    ddp_before_backward(run->ddp, loss);
    replica_backward(run->replica, loss);
    ddp_after_backward(run->ddp, replica_gradient_scale(run->replica, SAMPLES * pg_world_size(pg)));
    bool taken = replica_update(run->replica, step);
    expect_fresh_copies(run);
    return taken;
}

static float *copy_weights(const Run *run)
{
    const ParameterList *parameters = &run->replica->model.parameters;
    float *values = alloc_or_fault((size_t)parameters_total(parameters) * sizeof *values);
    parameters_to_host(parameters, values);
    return values;
}

static void expect_scale(const Run *run, float expected, long skipped)
{
    if (!(run->replica->scaler.scale == expected) || run->replica->scaler.skipped != skipped)
        fail_msg("rank %d of %d: expected scale %g and %ld skipped step(s), got %g and %ld; usual cause: each rank "
                 "judges its own gradients, before they are synchronised", pg_rank(pg), pg_world_size(pg),
                 (double)expected, skipped, (double)run->replica->scaler.scale, run->replica->scaler.skipped);
}

static void check_overflow_on(int culprit, DType sent_as)
{
    Run *run = run_create(sent_as);
    int64_t total = parameters_total(&run->replica->model.parameters);
    if (!take_step(run, 0, -1))
        fail_msg("a step without an overflow was skipped");
    float *before = copy_weights(run);
    if (take_step(run, 1, culprit))
        fail_msg("rank %d of %d took the step in which rank %d had an overflow: an overflow on one rank skips the step "
                 "on all", pg_rank(pg), pg_world_size(pg), culprit);
    float *after = copy_weights(run);
    expect_bits_equal("weights after the skipped step", after, before, total, "a skipped step must not change them");
    expect_scale(run, 32, 1);
    replicas_check_equal(pg, &run->replica->model.parameters);

    if (!take_step(run, 2, -1)) /* the overflow must have no further effect */
        fail_msg("the step after the skipped one was skipped, too: gradients were not zeroed");
    free(after);
    after = copy_weights(run);
    if (memcmp(after, before, (size_t)total * sizeof *after) == 0)
        fail_msg("rank %d: the step after the skipped one changed no weight: its gradients are all zero", pg_rank(pg));
    for (int64_t i = 0; i < total; i++)
        if (!isfinite(after[i]))
            fail_msg("rank %d: weight %lld is %g after the step that follows the skipped one: an infinity of the "
                     "overflow is left in a gradient", pg_rank(pg), (long long)i, (double)after[i]);
    expect_scale(run, 32, 1);
    replicas_check_equal(pg, &run->replica->model.parameters);
    free(before);
    free(after);
    run_free(run);
}

static void test_overflow_on_one_rank(void **state)
{
    for (int culprit = 0; culprit < pg_world_size(pg); culprit++) {
        check_overflow_on(culprit, DTYPE_F32);
        check_overflow_on(culprit, DTYPE_F16);
        check_overflow_on(culprit, DTYPE_BF16);
    }
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {cmocka_unit_test(test_overflow_on_one_rank)};
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    Options options = toy_options("mlp-toy");
    pg = tests_start_group(&argc, &argv, &options.group);
    int failures = cmocka_run_group_tests_name("overflow", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
