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
    return run_cases("sampler_misuse", cmocka_unit_test(drop_last_must_leave_samples),
                     cmocka_unit_test(own_data_must_be_there_and_be_shared), cmocka_unit_test(loaders_start_with_a_possible_batch));
}
