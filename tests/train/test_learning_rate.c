/* test_learning_rate.c: the learning rate of every step: warm-up, constant, cosine. */
#include <math.h>

#include "expect.h"
#include "train/loop/replica.h"

static Options schedule(LrSchedule kind, long warmup_steps)
{
    return (Options){.lr = 0.02f, .lr_schedule = kind, .warmup_steps = warmup_steps, .warmup_given = true};
}

static void expect_rate(const Options *options, long step, long total_steps, double expected, const char *hint)
{
    double rate = (double)learning_rate(options, step, total_steps);
    if (!(fabs(rate - expected) <= 1e-6 * expected))
        fail_msg("step %ld of %ld, %ld of them warm-up: expected %.9g, got %.9g: %s", step, total_steps,
                 options->warmup_steps, expected, rate, hint);
}

static void test_constant(void **state)
{
    Options options = schedule(LR_CONSTANT, 0);
    for (long step = 0; step < 9; step++)
        expect_rate(&options, step, 9, 0.02, "--lr-schedule constant is --lr in every step");
}

static void test_warm_up(void **state)
{
    const char *hint = "step s of w warm-up steps has lr * (s + 1) / w: never 0, and lr in the last of them";
    for (int kind = 0; kind < 2; kind++) {
        Options options = schedule(kind == 0 ? LR_CONSTANT : LR_COSINE, 4);
        expect_rate(&options, 0, 12, 0.005, hint);
        expect_rate(&options, 1, 12, 0.010, hint);
        expect_rate(&options, 2, 12, 0.015, hint);
        expect_rate(&options, 3, 12, 0.020, hint);
        expect_rate(&options, 4, 12, 0.020, "after the warm-up comes lr itself");
    }
    Options options = schedule(LR_CONSTANT, 4);
    expect_rate(&options, 11, 12, 0.020, "after the warm-up, constant");
}

/* Half a cosine, from lr at the first step after the warm-up to a tenth of it at the last. */
static void test_cosine(void **state)
{
    for (long warmup = 0; warmup <= 4; warmup += 4) {
        Options options = schedule(LR_COSINE, warmup);
        long total = warmup + 9, last = total - 1;
        expect_rate(&options, warmup, total, 0.02, "the cosine begins at lr");
        expect_rate(&options, warmup + 2, total, 0.02 * (0.55 + 0.45 * sqrt(0.5)), "a quarter of the way: cos(pi/4)");
        expect_rate(&options, warmup + 4, total, 0.011, "half of the way: the mean of lr and a tenth of it");
        expect_rate(&options, last, total, 0.002, "the last step has a tenth of lr: does the cosine end a step late?");
        for (long step = warmup; step < last; step++)
            if (!(learning_rate(&options, step + 1, total) < learning_rate(&options, step, total)))
                fail_msg("the rate does not fall from step %ld to %ld", step, step + 1);
    }
}

/* Without steps after the warm-up, nothing is divided by zero. */
static void test_short_runs(void **state)
{
    Options options = schedule(LR_COSINE, 0);
    expect_rate(&options, 0, 1, 0.02, "a run of one step");
    expect_rate(&options, 0, 2, 0.02, "the first of two steps");
    expect_rate(&options, 1, 2, 0.002, "the last of two steps");
    options = schedule(LR_COSINE, 3);
    expect_rate(&options, 2, 3, 0.02, "a run of warm-up steps only");
    expect_rate(&options, 3, 4, 0.02, "one step after the warm-up");
}

/* The default warm-up is cut to a tenth of the run; a warm-up that was typed is not. */
static void test_default_warm_up(void **state)
{
    Options options = schedule(LR_CONSTANT, 4);
    options.warmup_given = false;
    expect_rate(&options, 0, 40, 0.005, "a tenth of 40 steps: the warm-up of 4 steps stays");
    expect_rate(&options, 0, 20, 0.010, "a tenth of 20 steps: 2 of warm-up");
    expect_rate(&options, 1, 20, 0.020, "a tenth of 20 steps: 2 of warm-up");
    expect_rate(&options, 0, 9, 0.020, "9 steps leave no warm-up");
}

int main(void)
{
    return run_cases("learning_rate", cmocka_unit_test(test_constant), cmocka_unit_test(test_warm_up),
                     cmocka_unit_test(test_default_warm_up), cmocka_unit_test(test_cosine),
                     cmocka_unit_test(test_short_runs));
}
