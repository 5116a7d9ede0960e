/* test_power_sgd.c: the codec powersgd, as one process computes it for several ranks. (That ranks get the same bits:
 * test_precision_runs.sh. That they resume with their errors: test_resume.sh.) */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/tensor.h"
#include "base/check.h"
#include "base/rng.h"
#include "ddp/power_sgd.h"
#include "expect.h"

enum { N = 12, M = 20, COUNT = N * M, RANKS = 3 };

typedef struct Trial {
    ParameterList model; /* a matrix and a vector */
    void *gradients;
    PowerSgd *power;
    const GradientCodec *codec;
    int samples;                      /* of the step */
    double given[COUNT], sent[COUNT]; /* all that the ranks have had for the matrix, and what came of it: for a sample */
} Trial;

static void trial_create(Trial *trial, int rank)
{
    memset(trial, 0, sizeof *trial);
    trial->samples = 1; /* as power_sgd_create() has it */
    parameters_add(&trial->model, "matrix", 2, (int64_t[]){N, M});
    parameters_add(&trial->model, "vector", 1, (int64_t[]){M});
    trial->gradients = parameters_allocate_gradients(&trial->model);
    trial->power = power_sgd_create(&trial->model, rank, 0, RANKS, RANKS);
    trial->codec = power_sgd_codec(trial->power);
}

static void trial_free(Trial *trial)
{
    power_sgd_free(trial->power);
    parameters_free_gradients(&trial->model, trial->gradients);
    parameters_free(&trial->model);
}

static float *gradient(const Trial *trial)
{
    return trial->model.items[0]->tensor.grad;
}

/* What all ranks get if rank r has share[r] of the matrix. Adds the ranks' parts as verify.c does. */
static void reduce(Trial *trial, float share[RANKS][COUNT])
{
    float sum[COUNT];
    for (int r = 0; r < RANKS; r++) {
        memcpy(gradient(trial), share[r], sizeof sum);
        for (int i = 0; i < COUNT; i++)
            trial->given[i] += (double)share[r][i] / trial->samples;
        trial->codec->round_share(trial->codec, r, gradient(trial), 0);
        for (int i = 0; i < COUNT; i++)
            sum[i] = r == 0 ? gradient(trial)[i] : sum[i] + gradient(trial)[i];
    }
    memcpy(gradient(trial), sum, sizeof sum);
    trial->codec->round_sum(trial->codec, -1, gradient(trial), 0);
    for (int i = 0; i < COUNT; i++)
        trial->sent[i] += (double)gradient(trial)[i] / trial->samples;
}

/* The sum over k of column k times row k: a matrix of this rank. */
static void draw(Rng *rng, int rank, float *matrix)
{
    memset(matrix, 0, COUNT * sizeof *matrix);
    for (int k = 0; k < rank; k++) {
        float column[N], row[M];
        for (int i = 0; i < N; i++)
            column[i] = rng_normal(rng);
        for (int j = 0; j < M; j++)
            row[j] = rng_normal(rng);
        for (int i = 0; i < COUNT; i++)
            matrix[i] += column[i / M] * row[i % M];
    }
}

/* Three matrices of rank 1 have a sum of rank 3. With R = 3 nothing is lost. */
static void test_low_rank_is_exact(void **state)
{
    Trial trial;
    Rng rng;
    float share[RANKS][COUNT], sum[COUNT] = {0};
    rng_seed(&rng, 1);
    trial_create(&trial, 3);
    for (int r = 0; r < RANKS; r++) {
        draw(&rng, 1, share[r]);
        for (int i = 0; i < COUNT; i++)
            sum[i] += share[r][i];
    }
    reduce(&trial, share);
    expect_close("the sum of three matrices of rank 1, with R = 3", gradient(&trial), sum, COUNT, 1e-4, 0,
                 "P Q^T is the whole matrix if R columns span it");
    trial_free(&trial);
}

/* Of the mean over a step's samples: the sum of all that was given is the sum of all that came, and of what the ranks
 * still keep. Steps differ in their number of samples, as the last of an epoch does. */
static void test_nothing_is_lost_for_ever(void **state)
{
    Trial trial;
    Rng rng;
    float share[RANKS][COUNT], kept[COUNT] = {0}, missing[COUNT];
    double square = 0;
    rng_seed(&rng, 2);
    trial_create(&trial, 1);
    for (int step = 0; step < 20; step++) {
        trial.samples = step % 5 == 4 ? 3 : 64;
        power_sgd_set_samples(trial.power, trial.samples);
        for (int r = 0; r < RANKS; r++) {
            draw(&rng, 4, share[r]);
            for (int i = 0; i < COUNT; i++)
                share[r][i] *= (float)trial.samples;
        }
        reduce(&trial, share);
    }
    ParameterList *saved = power_sgd_state(trial.power);
    for (int k = 0; k < saved->count; k++)
        for (int i = 0; i < COUNT && strstr(saved->items[k]->name, "powersgd.error.") != NULL; i++)
            kept[i] += ((const float *)saved->items[k]->tensor.data)[i];
    for (int i = 0; i < COUNT; i++) {
        missing[i] = (float)(trial.given[i] - trial.sent[i]);
        square += (double)missing[i] * (double)missing[i];
    }
    expect_close("what has not come", kept, missing, COUNT, 1e-3, 0,
                 "each rank keeps its M less an equal part of what came, and adds it to the next M");
    if (!(square > 1))
        fail_msg("R = 1 has lost nothing of matrices of rank 12: does this test send anything?");
    trial_free(&trial);
}

/* Columns that depend on each other, as those of a matrix of rank 1 with R = 3; and nothing at all. */
static void test_dependent_columns(void **state)
{
    Trial trial;
    Rng rng;
    float share[RANKS][COUNT] = {{0}}, zeros[COUNT] = {0};
    rng_seed(&rng, 3);
    trial_create(&trial, 3);
    reduce(&trial, share);
    expect_close("a gradient of zeros", gradient(&trial), zeros, COUNT, 0, 0, "a vector of length 0 stays 0");
    draw(&rng, 1, share[1]);
    reduce(&trial, share);
    expect_close("a matrix of rank 1, with R = 3, after zeros", gradient(&trial), share[1], COUNT, 1e-4, 0,
                 "what is left of a column that depends on others is rounding, and must become 0");
    trial_free(&trial);
}

/* A step that overflows is skipped, and leaves nothing behind. */
static void test_not_finite(void **state)
{
    const float odd[] = {NAN, INFINITY};
    for (int kind = 0; kind < 2; kind++) {
        Trial trial;
        Rng rng;
        float share[RANKS][COUNT] = {{0}};
        bool seen = false;
        rng_seed(&rng, 4);
        trial_create(&trial, 2);
        draw(&rng, 1, share[0]);
        share[2][COUNT / 2] = odd[kind];
        reduce(&trial, share);
        for (int i = 0; i < COUNT; i++)
            seen = seen || !isfinite(gradient(&trial)[i]);
        if (!seen)
            fail_msg("%g of one rank is hidden, but --on-nan must see it", (double)odd[kind]);
        share[2][COUNT / 2] = 0;
        reduce(&trial, share);
        expect_close("the matrix after a step that overflowed", gradient(&trial), share[0], COUNT, 1e-4, 0,
                     "a rank may keep no NaN");
        trial_free(&trial);
    }
}

/* With R = 4 both factors of a 12 x 20 matrix have 128 numbers, more than half of its 240. */
static void test_what_is_not_half_as_large_is_sent_whole(void **state)
{
    Trial trial;
    trial_create(&trial, 4);
    assert_int_equal(power_sgd_state(trial.power)->count, 0);
    trial_free(&trial);
    trial_create(&trial, 3);
    assert_int_equal(power_sgd_state(trial.power)->count, 1 + RANKS); /* q, and each rank's error; none of the vector */
    trial_free(&trial);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_low_rank_is_exact),
        cmocka_unit_test(test_nothing_is_lost_for_ever),
        cmocka_unit_test(test_dependent_columns),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_what_is_not_half_as_large_is_sent_whole),
    };
    return cmocka_run_group_tests_name("powersgd", tests, NULL, NULL);
}
