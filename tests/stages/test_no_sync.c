/* test_no_sync.c: the cost of gradient accumulation. Only the last micro-batch communicates. The weights must be
 * the same. For stage 4, on 1 to 4 ranks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "data/loader.h"
#include "ddp/replicas.h"
#include "device/device.h"
#include "expect.h"
#include "lent.h"
#include "mpi_main.h"
#include "toy_models.h"
#include "train/loop/replica.h"

static ProcessGroup *pg;

typedef struct Run {
    Options options;
    Dataset dataset;
    Sampler sampler;
    Loader *loader;
    Replica *replica; /* lent (lent.h) */
    Ddp *ddp;
} Run;

static Run *run_create(const char *model, int accumulate)
{
    Run *run = alloc_or_fault(sizeof *run);
    run->options = toy_options(model);
    run->options.accumulate = accumulate;
    run->options.optimizer.momentum = 0.9f;
    run->dataset = toy_dataset(&run->options, 240);
    run->replica = replica_lend(&run->options, 3 + (uint64_t)pg_rank(pg), 10);
    run->options.ddp.sharding = &run->options.sharding;
    run->ddp = ddp_create(pg, &run->replica->model.parameters, &run->replica->tape, &run->options.ddp);
    sampler_create(&run->sampler, 240, pg_world_size(pg), run->options.batch_size, 3, true, false);
    run->loader = loader_start(&run->dataset, &run->sampler, pg_rank(pg), accumulate, 0);
    return run;
}

static void run_free(Run *run)
{
    loader_stop(run->loader);
    ddp_destroy(run->ddp);
    replica_take_back(run->replica);
    sampler_free(&run->sampler);
    dataset_close(&run->dataset);
    free(run);
}

static void micro_batch(Run *run, bool last)
{
    const Batch *batch = loader_next(run->loader);
    ddp_before_forward(run->ddp, last);
    Tensor *loss = replica_loss(run->replica, &run->dataset, batch->inputs, batch->targets, batch->samples);
    ddp_before_backward(run->ddp, loss);
    replica_backward(run->replica, loss);
    ddp_after_backward(run->ddp, replica_gradient_scale(run->replica, batch->global_samples));
}

/* True if all ranks hold the same bits in every gradient. This comparison itself is not counted. */
static bool gradients_agree(Run *run)
{
    const ParameterList *parameters = &run->replica->model.parameters;
    uint64_t hash = FNV1A_START, hashes[16];
    for (int i = 0; i < parameters->count; i++) {
        const Tensor *tensor = &parameters->items[i]->tensor;
        hash = fnv1a(hash, tensor->grad, (size_t)tensor_count(tensor) * sizeof(float));
    }
    bool agree = true;
    CHECK(pg_world_size(pg) <= 16, "this test is for 16 ranks at most");
    pg_set_measuring(pg, false);
    pg_all_gather(pg, &hash, hashes, 1, DTYPE_I64, "hashes of gradients");
    pg_set_measuring(pg, true);
    for (int rank = 1; rank < pg_world_size(pg); rank++)
        agree = agree && hashes[rank] == hashes[0];
    return agree;
}

/* The number of collectives in one optimizer step. */
static long collectives_of_step(Run *run)
{
    int accumulate = run->options.accumulate;
    pg_reset_counters(pg);
    for (int k = 0; k < accumulate; k++) {
        micro_batch(run, k + 1 == accumulate);
        bool agree = gradients_agree(run), last = k + 1 == accumulate;
        if (!last && agree && pg_world_size(pg) > 1)
            fail_msg("after micro-batch %d of %d all ranks have the same gradient: it has been synchronised, or every "
                     "rank sees the same samples", k + 1, accumulate);
        if (last && !agree)
            fail_msg("after the last of %d micro-batches the ranks' gradients differ: that one must be synchronised",
                     accumulate);
    }
    long collectives = pg_counters(pg).collectives;
    replica_update(run->replica, 0);
    return collectives;
}

static void test_collectives_per_step(void **state)
{
    const char *models[] = {"mlp-toy", "mlp", "gpt"};
    for (int m = 0; m < 3; m++) {
        Run *one = run_create(models[m], 1), *four = run_create(models[m], 4);
        const int buckets = planned_sums(&one->replica->model.parameters, &one->options.ddp);
        assert_true(buckets > 1);
        for (int step = 0; step < 3; step++) {
            long single = collectives_of_step(one), got = collectives_of_step(four);
            if (single != buckets)
                fail_msg("%s, step %d: a step of one micro-batch needs %ld collectives, expected %d: "
                         "every bucket is all-reduced once, on the last micro-batch", models[m], step, single,
                         buckets);
            if (got != single)
                fail_msg("%s, step %d: 4 micro-batches need %ld collectives, expected %ld, as one micro-batch does; "
                         "usual cause: synchronising on the first micro-batch, on none, or on all", models[m], step,
                         got, single);
        }
        run_free(one);
        run_free(four);
    }
}

static void test_four_micro_batches_are_one_batch(void **state)
{
    const char *models[] = {"mlp-toy", "mlp", "gpt"};
    for (int m = 0; m < 3; m++) {
        Run *one = run_create(models[m], 1), *four = run_create(models[m], 4);
        for (long step = 0; step < 8; step++) {
            micro_batch(one, true);
            for (int k = 0; k < 4; k++)
                micro_batch(four, k == 3);
            replica_update(one->replica, step);
            replica_update(four->replica, step);
            for (int i = 0; i < one->replica->model.parameters.count; i++) {
                const Parameter *want = one->replica->model.parameters.items[i];
                const Parameter *got = four->replica->model.parameters.items[i];
                char name[160];
                snprintf(name, sizeof name, "%s: %s after step %ld", models[m], got->name, step);
                expect_close(name, got->tensor.data, want->tensor.data, tensor_count(&got->tensor), 1e-5, 0,
                             "the loss is not divided by the samples of ALL micro-batches, or a micro-batch is lost or "
                             "counted twice");
            }
            replicas_check_equal(pg, &four->replica->model.parameters);
        }
        run_free(one);
        run_free(four);
    }
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives_per_step),
        cmocka_unit_test(test_four_micro_batches_are_one_batch),
    };
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    Options options = toy_options("mlp");
    pg = tests_start_group(&argc, &argv, &options.group);
    int failures = cmocka_run_group_tests_name("no_sync", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
