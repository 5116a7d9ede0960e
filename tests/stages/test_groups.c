/* test_groups.c: groups that pg_split() makes. Run on 4 ranks. The even and the odd ranks train two models at
 * once, and all ranks together all-reduce meanwhile: the weights have the bits that each half has alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "mpi_main.h"
#include "toy_models.h"
#include "train/loop/replica.h"
#include "train/report/trace.h"

enum { STEPS = 8, SAMPLES = 6, MEANWHILE = 500000 /* so that it lasts until backward */ };

static ProcessGroup *world, *half, *all; /* half: the even ranks, or the odd ones */

/* ---- training ---- */

typedef struct Training {
    Options options;
    Dataset dataset;
    Replica replica;
    Ddp *ddp;
    void *inputs, *targets;
} Training;

static void training_create(Training *t)
{
    t->options = toy_options(pg_job_rank(half, 0) == 0 ? "mlp-toy" : "gpt");
    t->options.ddp.bucket_cap_bytes = t->options.ddp.first_bucket_cap_bytes = 2000; /* many buckets */
    t->dataset = toy_dataset(&t->options, 2 * SAMPLES * STEPS);
    t->inputs = alloc_or_fault(SAMPLES * t->dataset.input_bytes);
    t->targets = alloc_or_fault(SAMPLES * t->dataset.target_bytes);
    replica_create(&t->replica, &t->options, 1 + (uint64_t)pg_rank(half), STEPS);
    t->options.ddp.sharding = &t->options.sharding;
    t->ddp = ddp_create(half, &t->replica.model.parameters, &t->replica.tape, &t->options.ddp);
    optimizer_set_partition(&t->replica.optimizer, ddp_partition(t->ddp));
}

static void training_step(Training *t, long step)
{
    int64_t indices[SAMPLES], first = SAMPLES * (2 * step + pg_rank(half));
    for (int i = 0; i < SAMPLES; i++)
        indices[i] = first + i;
    dataset_get(&t->dataset, 0, indices, SAMPLES, t->inputs, t->targets);
    ddp_before_forward(t->ddp, true);
    Tensor *loss = replica_loss(&t->replica, &t->dataset, t->inputs, t->targets, SAMPLES);
    ddp_before_backward(t->ddp, loss);
    replica_backward(&t->replica, loss);
    ddp_after_backward(t->ddp, replica_gradient_scale(&t->replica, (int64_t)SAMPLES * pg_world_size(half)));
    assert_true(replica_try_update(&t->replica, step));
    ddp_after_update(t->ddp);
}

/* Returns the trained weights; free() them. meanwhile: a group that sums numbers during each step, or NULL. */
static float *train(ProcessGroup *meanwhile, size_t *count)
{
    static float numbers[MEANWHILE];
    Training t = {0};
    training_create(&t);
    for (long step = 0; step < STEPS; step++) {
        Work *work = NULL;
        for (int i = 0; i < MEANWHILE; i++)
            numbers[i] = (float)(i % 100 + step + pg_rank(world));
        if (meanwhile != NULL)
            work = pg_all_reduce_async(meanwhile, numbers, numbers, MEANWHILE, DTYPE_F32, REDUCE_SUM, "meanwhile");
        training_step(&t, step);
        if (work == NULL)
            continue;
        work_wait(work);
        const int ranks = pg_world_size(world);
        for (int i = 0; i < MEANWHILE; i++)
            assert_true(numbers[i] == (float)(ranks * (i % 100 + step) + ranks * (ranks - 1) / 2));
    }
    ddp_gather_weights(t.ddp);
    const ParameterList *parameters = &t.replica.model.parameters;
    *count = (size_t)parameters_total(parameters);
    float *weights = alloc_or_fault(*count * sizeof *weights), *end = weights;
    for (int i = 0; i < parameters->count; i++) {
        const Tensor *tensor = &parameters->items[i]->tensor;
        memcpy(end, tensor->data, (size_t)tensor_count(tensor) * sizeof *end);
        end += tensor_count(tensor);
    }
    ddp_destroy(t.ddp);
    replica_free(&t.replica);
    dataset_close(&t.dataset);
    free(t.inputs);
    free(t.targets);
    return weights;
}

static void check_training(AllReduceAlgorithm algorithm)
{
    size_t count, again;
    float *alone = NULL;
    pg_set_algorithm(half, algorithm);
    pg_set_algorithm(all, algorithm);
    for (int odd = 0; odd < 2; odd++) { /* one half after the other */
        if (pg_rank(world) % 2 == odd)
            alone = train(NULL, &count);
        pg_barrier(world);
    }
    float *together = train(all, &again);
    assert_int_equal(count, again);
    for (size_t i = 0; i < count; i++)
        if (memcmp(&alone[i], &together[i], sizeof *alone) != 0)
            fail_msg("weight %zu is %.9g, but %.9g if the other half does not train at the same time: do the groups "
                     "share something?", i, (double)together[i], (double)alone[i]);
    free(alone);
    free(together);
}

static void test_two_models_over_messages(void **state)
{
    (void)state;
    check_training(ALLREDUCE_ORDERED);
}

static void test_two_models_in_shared_memory(void **state)
{
    (void)state;
    check_training(ALLREDUCE_SHM);
}

/* ---- what a group has of its own ---- */

static void test_ranks_and_names(void **state)
{
    (void)state;
    char name[80];
    const int rank = pg_rank(world), ranks = pg_world_size(world), odd = rank % 2;
    snprintf(name, sizeof name, "group 1/%d (%d ranks, %d to %d)", odd, ranks / 2, odd, ranks - 2 + odd);
    assert_string_equal(pg_name(half), name);
    assert_string_equal(pg_name(world), "the world");
    assert_int_equal(pg_world_size(half), ranks / 2);
    assert_int_equal(pg_rank(half), rank / 2);
    for (int r = 0; r < ranks / 2; r++)
        assert_int_equal(pg_job_rank(half, r), 2 * r + odd);
    ProcessGroup *alone = pg_split(half, pg_rank(half));
    snprintf(name, sizeof name, "group 1/%d.1/%d (1 ranks, %d to %d)", odd, pg_rank(half), rank, rank);
    assert_string_equal(pg_name(alone), name);
    pg_destroy(alone);
    assert_int_equal(pg_options(half)->timeout, tests_timeout());
}

static void test_counters(void **state)
{
    (void)state;
    float number = 1;
    pg_reset_counters(half);
    pg_reset_counters(world);
    pg_all_reduce(half, &number, &number, 1, DTYPE_F32, REDUCE_SUM, "a number");
    assert_true(number == (float)pg_world_size(half));
    assert_int_equal(pg_counters(half).collectives, 1);
    assert_int_equal(pg_counters(world).collectives, 0);
}

/* A sum that is too small to wake the communication thread must not stay in the queue while training waits in another
 * group, because another rank waits for this sum first. */
static void test_a_small_sum_does_not_wait_for_another_group(void **state)
{
    (void)state;
    pg_set_algorithm(world, ALLREDUCE_SHM);
    for (int round = 0; round < 10; round++) { /* in the first one the thread has not slept yet */
        float number = 1;
        Work *work = pg_all_reduce_async(world, &number, &number, 1, DTYPE_F32, REDUCE_SUM, "small");
        if (pg_rank(world) != 0)
            work_wait(work);
        pg_barrier(all);
        if (pg_rank(world) == 0)
            work_wait(work);
        assert_true(number == (float)pg_world_size(world));
    }
}

static void test_timeline_names_the_group(void **state)
{
    (void)state;
    const TimelineEvent *events;
    timeline_enable();
    pg_barrier(half);
    pg_barrier(world);
    int count = timeline_events(&events), of_half = 0, of_world = 0;
    for (int i = 0; i < count; i++) {
        of_half += strcmp(events[i].group, pg_rank(world) % 2 == 0 ? "group 1/0" : "group 1/1") == 0;
        of_world += events[i].group[0] == '\0';
    }
    assert_int_equal(of_half, 2); /* the barrier, and waiting for it */
    assert_int_equal(of_world, 2);

    char path[40], text[8192] = "";
    snprintf(path, sizeof path, "test_groups_%d.json", (int)getpid());
    pg_set_measuring(world, false);
    trace_write(world, path);
    if (pg_rank(world) != 0)
        return;
    FILE *file = fopen(path, "r");
    assert_true(file != NULL && fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    unlink(path);
    assert_non_null(strstr(text, "\"communication, group 1/0\"")); /* of each half, a row */
    assert_non_null(strstr(text, "\"communication, group 1/1\""));
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_and_names),
        cmocka_unit_test(test_counters),
        cmocka_unit_test(test_a_small_sum_does_not_wait_for_another_group),
        cmocka_unit_test(test_two_models_over_messages),
        cmocka_unit_test(test_two_models_in_shared_memory),
        cmocka_unit_test(test_timeline_names_the_group),
    };
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    world = tests_start_group(&argc, &argv, &(ProcessGroupOptions){.timeout = tests_timeout()});
    timeline_observe(world);
    half = pg_split(world, pg_rank(world) % 2);
    all = pg_split(world, 0);
    int failures = cmocka_run_group_tests_name("groups", tests, NULL, NULL);
    pg_destroy(all);
    pg_destroy(half);
    job_close(world);
    return failures != 0;
}
