/* test_shards.c: stage 5: that weights, gradients and optimizer state are cut at the same places, that operations read
 * the new weights, and that memory is not freed too early. Compared are contents, at events. On 1 to 4 ranks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "ddp/replicas.h"
#include "device/device.h"
#include "mpi_main.h"
#include "sharded_run.h"

static ProcessGroup *pg;

static bool is_trained(const Run *run, int i)
{
    return run->replica->model.parameters.items[i]->tensor.requires_grad;
}

/* ---- where shards are cut ---- */

/* Every element is updated by exactly one rank. */
static void check_owners(Run *run, int i)
{
    const Parameter *parameter = run->replica->model.parameters.items[i];
    const Slice slice = ddp_partition(run->ddp)->slices[i];
    const int64_t count = tensor_count(&parameter->tensor);
    int32_t *owners = alloc_or_fault((size_t)count * sizeof *owners);
    for (int64_t k = 0; k < slice.count; k++)
        owners[slice.begin + k] = 1;
    pg_all_reduce(pg, owners, owners, (size_t)count, DTYPE_I32, REDUCE_SUM, "owners");
    for (int64_t k = 0; k < count; k++)
        if (owners[k] != 1)
            fail_msg("element %lld of %s is updated by %d ranks: a bucket's length must be a multiple of the ranks "
                     "(padding), and shard r is the r-th part of it", (long long)k, parameter->name, owners[k]);
    free(owners);
    if (slice.begin % SQUARES_BLOCK != 0)
        fail_msg("this rank's slice of %s begins at element %lld, in the middle of a block of %d: a bucket is padded "
                 "to a multiple of ranks x SQUARES_BLOCK", parameter->name, (long long)slice.begin, SQUARES_BLOCK);
}

/* The slices of all ranks together are rank 0's first weights. */
static void check_weights(Run *run, const Model *first, int i)
{
    const Parameter *parameter = first->parameters.items[i];
    const float *want = parameter->tensor.data;
    float *got = run_whole_weight(run, i);
    for (int64_t k = 0; k < tensor_count(&parameter->tensor); k++)
        if (got[k] != want[k])
            fail_msg("--zero %d: element %lld of %s, put together from the ranks' slices, is %g, not %g: the weights "
                     "were moved to another place than the one where their shards are cut", run->options.sharding.level,
                     (long long)k, parameter->name, (double)got[k], (double)want[k]);
    device_free(got);
}

/* Where the bucket's memory is always whole, a slice is a part of it. */
static void check_places(Run *run, int i)
{
    const Parameter *parameter = run->replica->model.parameters.items[i];
    const Slice slice = ddp_partition(run->ddp)->slices[i];
    const float *weights = parameter->tensor.data, *gradients = parameter->tensor.grad;
    if (weights != NULL && slice.count > 0 && slice.weight != weights + slice.begin)
        fail_msg("the slice of %s that the optimizer updates is not that of the parameter: weights are cut into shards "
                 "at another place than they stand in their bucket", parameter->name);
    if (gradients != NULL && slice.count > 0 && slice.grad != gradients + slice.begin)
        fail_msg("the slice of the gradient of %s that the optimizer reads is not that of the weight: gradients are "
                 "cut into shards at another place than weights", parameter->name);
}

static void test_every_weight_has_one_owner(void **state)
{
    for (int zero = 1; zero <= 3; zero++)
        for (int m = 0; m < 2 && run_has_level(zero); m++) {
            const Options options = run_options(m == 0 ? "mlp" : "gpt", zero);
            Model first;
            model_create(&first, &options.model, 1);
            Run *run = run_create(&options);
            for (int i = 0; i < first.parameters.count; i++) {
                check_owners(run, i);
                check_places(run, i);
                check_weights(run, &first, i);
            }
            run_free(run);
            model_free(&first);
        }
}

/* As in a run that goes on from a checkpoint: the state is whole when it is divided. */
static void test_state_is_that_of_the_slices(void **state)
{
    const Options options = run_options("gpt", 1);
    Run *run = run_create(&options);
    Optimizer optimizer;
    ParameterList *parameters = &run->replica->model.parameters;
    optimizer_create(&optimizer, &options.optimizer, parameters);
    optimizer_allocate_state(&optimizer);
    for (int i = 0; i < parameters->count; i++)
        for (int64_t k = 0; k < tensor_count(&parameters->items[i]->tensor); k++)
            optimizer.state1[i][k] = optimizer.state2[i][k] = (float)k;
    optimizer_set_partition(&optimizer, ddp_partition(run->ddp));
    for (int i = 0; i < parameters->count; i++) {
        const Slice slice = ddp_partition(run->ddp)->slices[i];
        for (int64_t k = 0; k < slice.count; k++)
            if (optimizer.state1[i][k] != (float)(slice.begin + k) || optimizer.state2[i][k] != optimizer.state1[i][k])
                fail_msg("after a resume, a rank keeps the optimizer's state of element %g of %s for its element %lld: "
                         "the state of the wrong shard", (double)optimizer.state1[i][k], parameters->items[i]->name,
                         (long long)(slice.begin + k));
    }
    float **whole = optimizer_gather_state(&optimizer, optimizer.state1, true);
    for (int i = 0; i < parameters->count; i++)
        for (int64_t k = 0; k < tensor_count(&parameters->items[i]->tensor); k++)
            if (whole[i][k] != (float)k)
                fail_msg("a checkpoint would hold the optimizer's state of element %g of %s for element %lld",
                         (double)whole[i][k], parameters->items[i]->name, (long long)k);
    optimizer_free_gathered(&optimizer, whole);
    optimizer_free(&optimizer);
    run_free(run);
}

/* ---- what is sent ---- */

/* Bucket 0's reduce-scatter is held until backward has a gradient of bucket 1 to write to. */
static void bucket_0_is_still_there(Run *run, Parameter *needed)
{
    const ParameterList *parameters = &run->replica->model.parameters;
    if (atomic_load(&seen.released) || run_bucket(run, needed) != 1)
        return;
    if (atomic_load(&seen.gave_up))
        fail_msg("--zero %d: backward waits for the reduce-scatter of bucket 0 before it goes on to bucket 1: nothing is "
                 "hidden", run->options.sharding.level);
    for (int i = 0; i < parameters->count; i++)
        if (run_bucket(run, parameters->items[i]) == 0 && parameters->items[i]->tensor.grad == NULL)
            fail_msg("--zero %d: the gradient of %s was dropped while its reduce-scatter still reads it: work_wait() "
                     "must come before shards_drop_gradients()", run->options.sharding.level, parameters->items[i]->name);
    atomic_store(&seen.released, true);
}

static void test_gradients_stay_until_they_are_sent(void **state)
{
    for (int zero = 2; zero <= 3; zero++) {
        if (!run_has_level(zero))
            continue;
        const Options options = run_options("gpt", zero);
        Run *run = run_create(&options);
        run_micro_batch(run, true); /* level 3 learns the order */
        run_update(run, 0);
        run_intercept(run, NULL, bucket_0_is_still_there);
        pg_barrier(pg); /* the communication thread is idle */
        seen_hold(OP_REDUCE_SCATTER, 0);
        run_micro_batch(run, true);
        pg_barrier(pg);
        seen.held_bucket = -1;
        run_free(run);
    }
}

/* ---- what operations read ---- */

static float *before[64], *after[64]; /* by parameter: whole weights, before and after the last update */

static void expect_new_weights(Run *run, Parameter *const *parameters, int count)
{
    const char *pass = run->in_backward ? "backward" : "forward";
    for (int p = 0; p < count; p++) {
        const Parameter *parameter = parameters[p];
        const float *got = parameter->tensor.data, *want = after[parameter->index];
        const size_t bytes = (size_t)tensor_count(&parameter->tensor) * sizeof *got;
        if (got == NULL)
            fail_msg("--zero %d: in %s, an operation that uses %s finds no weights: they were dropped before their "
                     "last use, and must be gathered again", run->options.sharding.level, pass, parameter->name);
        if (want == NULL || memcmp(got, want, bytes) == 0)
            continue;
        fail_msg("--zero %d: in %s, an operation reads %s %s", run->options.sharding.level, pass, parameter->name,
                 memcmp(got, before[parameter->index], bytes) == 0 ?
                 "of before the update: its gather was started too early, or is missing" :
                 "while its gather is still under way: parts of it are old, or missing (wait for the gather)");
    }
}

static void take_weights(Run *run, float **to)
{
    for (int i = 0; i < run->replica->model.parameters.count; i++) {
        device_free(to[i]);
        to[i] = is_trained(run, i) ? run_whole_weight(run, i) : NULL;
    }
}

/* Gathers are slow, so an operation that does not wait for them reads something else. */
static void check_weights_read(const char *model, int zero)
{
    const Options options = run_options(model, zero);
    Run *run = run_create(&options);
    assert_true(run->replica->model.parameters.count <= (int)(sizeof after / sizeof *after));
    run_intercept(run, expect_new_weights, NULL);
    take_weights(run, before);
    take_weights(run, after);
    for (int step = 0; step < 3; step++) {
        run_micro_batch(run, true);
        take_weights(run, before);
        replica_update(run->replica, step);
        take_weights(run, after);
        seen.gather_seconds = 5e-3;
        ddp_after_update(run->ddp);
    }
    run_micro_batch(run, true);
    seen.gather_seconds = 0;
    ddp_gather_weights(run->ddp);
    expect_new_weights(run, run->replica->model.parameters.items, run->replica->model.parameters.count);
    for (int i = 0; i < run->replica->model.parameters.count; i++) {
        device_free(before[i]);
        device_free(after[i]);
        before[i] = after[i] = NULL;
    }
    run_free(run);
}

static void test_operations_read_new_weights(void **state)
{
    for (int zero = 1; zero <= 3; zero++) {
        if (!run_has_level(zero))
            continue;
        check_weights_read("mlp", zero);
        check_weights_read("gpt", zero);
    }
}

/* ---- 16 bits ---- */

/* Writes the bytes of a backward pass's reduce-scatters to *bytes, and returns its gradients; the caller frees them. */
static float **gradients_sent_in(DType dtype, int zero, size_t *bytes, int *count)
{
    Options options = run_options("mlp", zero);
    options.ddp.codec = codec_find(precision_name(dtype));
    Run *run = run_create(&options);
    *count = run->replica->model.parameters.count;
    float **gradients = alloc_or_fault((size_t)*count * sizeof *gradients);
    seen_forget();
    run_micro_batch(run, true);
    for (int i = 0; i < *count; i++)
        gradients[i] = run_whole_gradient(run, i);
    pg_barrier(pg);
    *bytes = seen.scattered;
    run_free(run);
    return gradients;
}

static void check_16_bits(int zero)
{
    size_t bytes32, bytes16;
    int count;
    float **exact = gradients_sent_in(DTYPE_F32, zero, &bytes32, &count);
    float **rounded = gradients_sent_in(DTYPE_BF16, zero, &bytes16, &count);
    Model model;
    const Options options = run_options("mlp", zero);
    model_create(&model, &options.model, 1);
    if (2 * bytes16 != bytes32)
        fail_msg("--zero %d: with --grad-dtype bf16, the reduce-scatters carry %zu bytes, where float32 has %zu: "
                 "gradients must be sent by options.codec", zero, bytes16, bytes32);
    for (int i = 0; i < count; i++) {
        double difference = 0, square = 0;
        for (int64_t k = 0; k < tensor_count(&model.parameters.items[i]->tensor); k++) {
            difference += pow((double)rounded[i][k] - (double)exact[i][k], 2);
            square += pow((double)exact[i][k], 2);
        }
        if (!(difference > 0 && difference < 1e-4 * square))
            fail_msg("--zero %d: the gradient of %s that was sent in bf16 differs by %.2g of its norm from the one "
                     "that was sent in float32; expected is some 2e-3", zero, model.parameters.items[i]->name,
                     sqrt(difference / square));
        device_free(exact[i]);
        device_free(rounded[i]);
    }
    free(exact);
    free(rounded);
    model_free(&model);
}

static void test_gradients_in_16_bits(void **state)
{
    for (int zero = 1; zero <= 3; zero++)
        if (run_has_level(zero))
            check_16_bits(zero);
}

/* ---- unused parameters ---- */

/* Branch 4 is used in the first step only, branch 1 not by rank 0, and branch 2 in the first micro-batch only. */
static BranchPlan plan_with_unused(int rank, int step, int micro_batch)
{
    BranchPlan plan = branches_plan(0);
    plan.left_out[4] = step > 0;
    plan.left_out[1] = rank == 0;
    plan.left_out[2] = micro_batch == 1;
    return plan;
}

static void branches_micro_batch(Branches *branches, int rank, int step, int micro_batch, Ddp *ddp)
{
    const BranchPlan plan = plan_with_unused(rank, step, micro_batch);
    if (ddp != NULL)
        ddp_before_forward(ddp, micro_batch == 1);
    tape_begin(&branches->tape, true);
    Tensor *loss = branches_loss(branches, &plan, rank, 2 * step + micro_batch);
    if (ddp != NULL)
        ddp_before_backward(ddp, loss);
    tape_backward(&branches->tape, loss, 1);
    if (ddp != NULL)
        ddp_after_backward(ddp, 1.0f / (float)pg_world_size(pg));
}

/* The same step in one process. */
static void branches_whole_step(Branches *branches, Optimizer *optimizer, int step)
{
    for (int i = 0; i < 2 * pg_world_size(pg); i++)
        branches_micro_batch(branches, i / 2, step, i % 2, NULL);
    for (int i = 0; i < branches->parameters.count; i++)
        device_scale(branches->parameters.items[i]->tensor.grad, 1.0f / (float)pg_world_size(pg),
                     tensor_count(&branches->parameters.items[i]->tensor));
    optimizer_step(optimizer, 0.02f);
    parameters_zero_gradients(&branches->parameters);
}

static void expect_equal_branches(const Branches *ranks, const Branches *whole, int zero, int step)
{
    for (int i = 0; i < whole->parameters.count; i++) {
        const Parameter *got = ranks->parameters.items[i], *want = whole->parameters.items[i];
        char name[140];
        snprintf(name, sizeof name, "--zero %d, %s after step %d, with unused parameters", zero, got->name, step);
        expect_close(name, got->tensor.data, want->tensor.data, tensor_count(&got->tensor), 1e-6, 1e-6,
                     "a rank that does not use a parameter sends zeros for it, and all ranks agree on what was used: "
                     "its owner updates it if ANY rank used it in the step, and leaves it alone if none did");
    }
}

static void test_unused_parameters(void **state)
{
    const OptimizerOptions sgd = {.kind = OPTIMIZER_SGD, .momentum = 0.9f, .weight_decay = 0.1f};
    for (int zero = 1; zero <= 2; zero++) { /* level 3 refuses the option */
        const ShardingOptions sharding = {.level = zero};
        const DdpOptions options = {.sharding = &sharding, .bucket_cap_bytes = 1, .first_bucket_cap_bytes = 1, /* one each */
                                    .codec = codec_find("fp32"), .find_unused_parameters = true};
        if (!run_has_level(zero))
            continue;
        Branches ranks, whole;
        Optimizer ranks_optimizer, whole_optimizer;
        branches_create(&ranks, 1);
        branches_create(&whole, 1);
        optimizer_create(&ranks_optimizer, &sgd, &ranks.parameters);
        optimizer_create(&whole_optimizer, &sgd, &whole.parameters);
        Ddp *ddp = ddp_create(pg, &ranks.parameters, &ranks.tape, &options);
        optimizer_set_partition(&ranks_optimizer, ddp_partition(ddp));
        void *gradients = parameters_allocate_gradients(&whole.parameters);
        for (int step = 0; step < 3; step++) {
            branches_micro_batch(&ranks, pg_rank(pg), step, 0, ddp);
            branches_micro_batch(&ranks, pg_rank(pg), step, 1, ddp);
            optimizer_step(&ranks_optimizer, 0.02f);
            parameters_zero_gradients(&ranks.parameters);
            ddp_after_update(ddp);
            ddp_gather_weights(ddp);
            branches_whole_step(&whole, &whole_optimizer, step);
            expect_equal_branches(&ranks, &whole, zero, step);
        }
        ddp_destroy(ddp);
        device_free(gradients);
        optimizer_free(&ranks_optimizer);
        optimizer_free(&whole_optimizer);
        branches_free(&ranks);
        branches_free(&whole);
    }
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_weight_has_one_owner),
        cmocka_unit_test(test_state_is_that_of_the_slices),
        cmocka_unit_test(test_operations_read_new_weights), /* those below crash where operations find no weights */
        cmocka_unit_test(test_gradients_stay_until_they_are_sent),
        cmocka_unit_test(test_gradients_in_16_bits),
        cmocka_unit_test(test_unused_parameters),
    };
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    Options options = toy_options("gpt");
    pg = tests_start_group(&argc, &argv, &options.group);
    seen_start(pg);
    int failures = cmocka_run_group_tests_name("shards", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
