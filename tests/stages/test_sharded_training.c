/* test_sharded_training.c: stage 5, the cases by which courses grade sharding, at levels 1, 2 and 3: a small GPT
 * (embeddings, layernorms, linear layers) on all ranks, and beside it in one process. In float32 every bit of every
 * gradient and weight must be equal, in 3 steps of SGD and 10 of AdamW, whose state is sharded. In fp16, weights differ
 * by at most 1e-4 in 3 steps. Stage 5 shards all that is trained, layernorms, too; so gradients are put together from
 * the shards, and every rank compares them. On 2 and 3 ranks. */
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "ddp/replicas.h"
#include "device/device.h"
#include "expect.h"
#include "mpi_main.h"
#include "toy_models.h"
#include "training_pair.h"

static ProcessGroup *pg;

/* Puts into pair->whole what N ranks compute with ordered sums: each rank's share from zero, added in rank order. */
static void ordered_gradient(Pair *pair, long step)
{
    ParameterList *parameters = &pair->whole.model.parameters;
    float **sums = alloc_or_fault((size_t)parameters->count * sizeof *sums);
    for (int rank = 0; rank < pg_world_size(pg); rank++) {
        pair_share(pair, step, rank, 0);
        for (int i = 0; i < parameters->count; i++) {
            const Tensor *tensor = &parameters->items[i]->tensor;
            const size_t bytes = (size_t)tensor_count(tensor) * sizeof(float);
            if (rank == 0)
                device_copy(sums[i] = device_alloc(bytes), tensor->grad, bytes);
            else
                device_accumulate(sums[i], tensor->grad, tensor_count(tensor));
        }
    }
    const float scale = replica_gradient_scale(&pair->whole, pair->options.batch_size);
    for (int i = 0; i < parameters->count; i++) {
        Tensor *tensor = &parameters->items[i]->tensor;
        device_copy(tensor->grad, sums[i], (size_t)tensor_count(tensor) * sizeof(float));
        device_scale(tensor->grad, scale, tensor_count(tensor));
        device_free(sums[i]);
    }
    free(sums);
}

static void expect_equal_gradients(const Pair *pair, long step)
{
    for (int i = 0; i < pair->ranks->model.parameters.count; i++) {
        const Parameter *got = pair->ranks->model.parameters.items[i], *want = pair->whole.model.parameters.items[i];
        char name[160];
        snprintf(name, sizeof name, "--zero %d: the gradient of %s in step %ld, put together from the ranks' shards",
                 pair->options.ddp.zero, got->name, step + 1);
        expect_bits_equal(name, got->tensor.grad, want->tensor.grad, tensor_count(&got->tensor),
                          "a shard of the gradient is not the sum of the ranks' shares in rank order, times "
                          "gradient_scale; or it is another part of its bucket");
    }
}

static void train(Options options, double tolerance, const char *what)
{
    for (options.ddp.zero = 1; options.ddp.zero <= 3; options.ddp.zero++) {
        Pair *pair = pair_create(pg, &options, 250, NULL);
        for (long step = 0; step < options.steps; step++) {
            char when[64];
            snprintf(when, sizeof when, "at --zero %d after step %ld", options.ddp.zero, step + 1);
            pair_ranks_gradient(pair);
            if (tolerance == 0) {
                ordered_gradient(pair, step);
                expect_equal_gradients(pair, step);
            } else {
                pair_whole_gradient(pair, step);
            }
            pair_update(pair, step);
            pair_compare_weights(pair, when, what, tolerance, "each rank updates its own shards, with its own part of "
                                                              "the optimizer's state, and gathers those of the others");
            replicas_check_equal(pg, &pair->ranks->model.parameters);
        }
        pair_free(pair);
    }
}

static Options gpt_options(long steps)
{
    Options options = toy_options("gpt");
    options.batch_size = 25; /* ranks have unequal shares */
    options.steps = steps;
    return options;
}

static void test_sgd_to_the_bit(void **state)
{
    train(gpt_options(3), 0, "a GPT with SGD");
}

static void test_sharded_adamw_to_the_bit(void **state)
{
    Options options = gpt_options(10);
    options.optimizer.kind = OPTIMIZER_ADAMW;
    options.optimizer.weight_decay = 0.1f;
    options.lr = 0.003f;
    train(options, 0, "a GPT with AdamW");
}

static void test_fp16(void **state)
{
    Options options = gpt_options(3);
    options.precision = DTYPE_F16;
    train(options, 1e-4, "a GPT in fp16");
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd_to_the_bit),
        cmocka_unit_test(test_sharded_adamw_to_the_bit),
        cmocka_unit_test(test_fp16),
    };
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    Options options = toy_options("gpt");
    options.group.algorithm = ALLREDUCE_ORDERED;
    pg = tests_start_group(&argc, &argv, &options.group);
    int failures = cmocka_run_group_tests_name("sharded_training", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
