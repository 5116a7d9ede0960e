/* test_sampler_misuse.c: settings and questions that the sampler and the loader reject. */
#include "data/dataset.h"
#include "data/loader.h"
#include "data/sampler.h"
#include "expect.h"

/* Eight samples on two ranks: two steps of 4. `own` may be NULL. */
static Sampler started(const int64_t *own)
{
    Sampler sampler;
    sampler_create(&sampler, 8, 2, 4, 0, true, false);
    sampler_set_rank_samples(&sampler, own);
    sampler_set_epoch(&sampler, 0);
    return sampler;
}

static const int64_t own_data[] = {5, 3};

/* {samples, ranks, global batch, drop_last} */
static void create(void *numbers)
{
    Sampler sampler;
    const int64_t *n = numbers;
    sampler_create(&sampler, n[0], (int)n[1], n[2], 0, true, n[3] != 0);
}

static void samples_ranks_and_batch_are_positive(void **state)
{
    expect_dies(create, (int64_t[]){0, 2, 4, 0}, 1, "a sampler of 0 samples, 2 ranks, batch 4");
    expect_dies(create, (int64_t[]){8, 0, 4, 0}, 1, "a sampler of 8 samples, 0 ranks, batch 4");
    expect_dies(create, (int64_t[]){8, 2, 0, 0}, 1, "a sampler of 8 samples, 2 ranks, batch 0");
}

/* DistributedSampler would give empty epochs here: a run without steps that never ends. */
static void drop_last_must_leave_samples(void **state)
{
    expect_dies(create, (int64_t[]){2, 3, 4, 1}, 2, "error: --drop-last: 2 samples on 3 ranks leave none");
}

/* {global batch, samples of rank 0, samples of rank 1} */
static void create_own(void *numbers)
{
    Sampler sampler;
    const int64_t *n = numbers;
    sampler_create(&sampler, 10, 2, n[0], 0, true, false);
    sampler_set_rank_samples(&sampler, n + 1);
}

static void give_own_data_twice(void *argument)
{
    Sampler sampler;
    sampler_create(&sampler, 8, 2, 4, 0, true, false);
    sampler_set_rank_samples(&sampler, own_data);
    sampler_set_rank_samples(&sampler, own_data);
}

static void give_own_data_too_late(void *argument)
{
    Sampler sampler = started(argument);
    sampler_set_rank_samples(&sampler, own_data);
}

static void own_data_must_be_there_and_be_shared(void **state)
{
    expect_dies(create_own, (int64_t[]){4, 6, 5}, 2, "--rank-samples: the ranks want 11 samples together, but the data "
                                                     "set has 10");
    expect_dies(create_own, (int64_t[]){5, 6, 3}, 1, "2 ranks with their own data, batch 5");
    expect_dies(give_own_data_twice, NULL, 1, "call sampler_set_rank_samples() once, before the first epoch");
    expect_dies(give_own_data_too_late, NULL, 1, "call sampler_set_rank_samples() once, before the first epoch");
}

static void set_epoch(void *epoch)
{
    Sampler sampler = started(NULL);
    sampler_set_epoch(&sampler, *(long *)epoch);
}

/* {step, rank, k, K} */
static void ask_for_indices(void *numbers)
{
    const int *n = numbers;
    int64_t indices[8];
    Sampler sampler = started(NULL);
    sampler_indices(&sampler, n[0], n[1], n[2], n[3], indices);
}

static void ask_before_the_first_epoch(void *whole_batch)
{
    Sampler sampler;
    int64_t indices[8];
    sampler_create(&sampler, 8, 2, 4, 0, true, false);
    if (whole_batch != NULL) {
        sampler_whole_batch(&sampler, 0, indices);
    } else {
        sampler_indices(&sampler, 0, 0, 0, 1, indices);
    }
}

static void ask_for_whole_batch(void *step)
{
    int64_t indices[8];
    Sampler sampler = started(NULL);
    sampler_whole_batch(&sampler, *(int64_t *)step, indices);
}

static void count_step(void *step)
{
    Sampler sampler = started(own_data);
    sampler_global_count(&sampler, *(int64_t *)step);
}

static void count_steps_of_rank(void *rank)
{
    Sampler sampler = started(own_data);
    sampler_rank_steps(&sampler, *(int *)rank);
}

static void there_is_no_such_place(void **state)
{
    expect_dies(set_epoch, &(long){-1}, 1, "epoch -1");
    expect_dies(ask_before_the_first_epoch, NULL, 1, "no epoch set");
    expect_dies(ask_before_the_first_epoch, "whole", 1, "no epoch set");
    expect_dies(ask_for_indices, (int[]){0, 2, 0, 1}, 1, "rank 2 of 2");
    expect_dies(ask_for_indices, (int[]){0, -1, 0, 1}, 1, "rank -1 of 2");
    expect_dies(ask_for_indices, (int[]){0, 0, 3, 3}, 1, "micro-batch 3 of 3");
    expect_dies(ask_for_indices, (int[]){0, 0, -1, 3}, 1, "micro-batch -1 of 3");
    expect_dies(ask_for_indices, (int[]){2, 0, 0, 1}, 1, "step 2 of an epoch of 2 steps");
    expect_dies(ask_for_indices, (int[]){-1, 0, 0, 1}, 1, "step -1 of an epoch of 2 steps");
    expect_dies(ask_for_whole_batch, &(int64_t){2}, 1, "step 2 of an epoch of 2 steps");
    expect_dies(count_step, &(int64_t){3}, 1, "step 3 of an epoch of 3 steps");
    expect_dies(count_steps_of_rank, &(int){2}, 1, "rank 2 of 2");
}

/* {samples of the data set, rank, accumulate, first step} */
static void load(void *numbers)
{
    const int *n = numbers;
    Dataset dataset;
    Sampler sampler = started(NULL);
    dataset_open_random(&dataset, n[0], 1, 1, 0);
    loader_stop(loader_start(&dataset, &sampler, n[1], n[2], n[3]));
}

static void loaders_start_with_a_possible_batch(void **state)
{
    expect_dies(load, (int[]){8, 2, 1, 0}, 1, "rank 2 of 2");
    expect_dies(load, (int[]){8, 0, 0, 5}, 1, "0 micro-batches, first step 5");
    expect_dies(load, (int[]){8, 0, 3, -1}, 1, "3 micro-batches, first step -1");
    expect_dies(load, (int[]){9, 0, 1, 0}, 1, "the data set has 9 samples, the sampler 8");
}

int main(void)
{
    return run_cases("sampler_misuse", cmocka_unit_test(samples_ranks_and_batch_are_positive),
                     cmocka_unit_test(drop_last_must_leave_samples),
                     cmocka_unit_test(own_data_must_be_there_and_be_shared), cmocka_unit_test(there_is_no_such_place),
                     cmocka_unit_test(loaders_start_with_a_possible_batch));
}
