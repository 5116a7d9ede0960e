/* test_mode_memory.c: in every mode of a stage (modes.h), memory does not grow, and ddp_destroy() gives all back. In
 * stage 5, no more is held than the level needs. On 1 to 7 ranks. */
#include "device/device.h"
#include "live_bytes.h"
#include "modes_trial.h"
#include "mpi_main.h"

static ProcessGroup *pg;

/* ---- what the level needs ---- */

#if LOCKSTEP_STAGE == 5

enum { SLACK = 64 << 10, IN_FLIGHT = 5 }; /* bytes of names, lists, handles; buckets that are used or sent at a time */

/* Of a bucket, which has one parameter here. It is padded, so that the ranks' shards are equally long. */
static int64_t bucket_bytes(const Trial *trial)
{
    const int64_t elements = (int64_t)trial->mode->width * trial->mode->width;
    const int64_t multiple = (int64_t)pg_world_size(pg) * SQUARES_BLOCK;
    return (elements + multiple - 1) / multiple * multiple * (int64_t)sizeof(float);
}

/* Stage 5 between steps: gradients, and perhaps this rank's sums beside them; at levels 2 and 3 only a part of the
 * gradients. In any case no copies, and a bucket or two of scratch memory. At level 3 it also holds a part of the
 * weights, and the model has none. */
static int64_t most_between_steps(const Trial *trial)
{
    const int64_t all = bucket_bytes(trial) * trial_trained(trial), part = all / pg_world_size(pg);
    const int64_t model = (int64_t)trial_bytes(trial), padding = all - model;
    if (trial->mode->sharding.level == 1)
        return padding + all + part + 2 * bucket_bytes(trial);
    return 2 * bucket_bytes(trial) + 2 * part + (trial->mode->sharding.level == 3 ? part - model : padding);
}

/* During the last micro-batch, level 1 has copies in 16 bits of all that is not sent yet; level 2 has some whole buckets
 * in addition, or all if earlier micro-batches have left them; level 3 also some buckets of weights. */
static int64_t most_in_step(const Trial *trial, int step)
{
    const int64_t some = IN_FLIGHT * bucket_bytes(trial), all = bucket_bytes(trial) * trial_trained(trial);
    const int64_t whole = mode_micro_batches(trial->mode, step) > 1 ? all : some;
    const bool in_16_bits = trial->mode->options.codec->dtype != DTYPE_F32;
    const int64_t halves = in_16_bits ? whole / 2 : 0;
    if (trial->mode->sharding.level == 1)
        return most_between_steps(trial) + (in_16_bits ? all / 2 : 0);
    return most_between_steps(trial) + whole + halves + (trial->mode->sharding.level == 3 ? some : 0);
}

static void expect_at_most(const Trial *trial, int64_t got, int64_t most, const char *when)
{
    const int64_t weights = (int64_t)trial_bytes(trial);
    most += weights / 16 + SLACK;
    if (got > most)
        fail_msg("rank %d: %s, weights, gradients, and what else the stage holds take %lld bytes, but %lld are enough; "
                 "all gradients have %lld (%s); usual cause: whole gradients, weights, or copies in 16 bits are kept "
                 "longer than they are used", pg_rank(pg), when, (long long)(weights + got), (long long)(weights + most),
                 (long long)weights, trial->mode->title);
}

/* Before that, ddp_before_forward() has dropped what was gathered for the end of a step, and forward what it used. */
static void backward_begins(bool begins)
{
    if (begins)
        live_bytes_restart();
}
static void check_level(const Mode *mode)
{
    Trial *trial = trial_prepare(pg, mode);
    const int64_t before = live_bytes();
    trial_start(trial);
    for (int step = 0; step < 2; step++) {
        const int micro_batches = mode_micro_batches(mode, step);
        /* In one step a message takes far longer than the backward pass of its bucket, so that what does not wait piles
         * up. Earlier micro-batches leave whole gradients anyhow. */
        trial_set_link(pg, mode, micro_batches == 1 ? 4e-4 : 0);
        trial->before_backward = step > 0 ? backward_begins : NULL;
        for (int k = 0; k < micro_batches; k++) {
            live_bytes_restart();
            trial_micro_batch(trial, step, k);
        }
        expect_at_most(trial, live_bytes() - before, most_between_steps(trial), "after backward");
        expect_at_most(trial, live_bytes_peak() - before, most_in_step(trial, step), "in the last micro-batch");
        trial_end_step(trial);
        ddp_gather_weights(trial->ddp); /* as for an evaluation */
    }
    trial_set_link(pg, mode, 0);
    trial_free(trial);
}

static void test_no_more_is_kept_in_any_mode(void **state)
{
    trial_modes(pg, (ModeChoice){.types = true, .unused = true, .accumulates = true, .width = 96}, check_level);
}

#endif

/* ---- what is given back ---- */

/* A leak makes most steps a new maximum, also one that ddp_destroy() ends. Memory that doubles when it is full grows
 * seldom, but beyond what a step needs. */
static void expect_no_growth(const Trial *trial, int step)
{
    enum { KEPT = 2 << 10, MOST_RISES = 16 };
    static int64_t first, most;
    static int rises;
    const int64_t held = live_bytes();
    if (step < 4) { /* what is made once is made by then */
        first = most = held;
        rises = 0;
    } else if (held > most) {
        most = held;
        rises++;
    }
    if (rises > MOST_RISES || held > first + KEPT + 2 * (int64_t)trial_bytes(trial))
        fail_msg("rank %d: memory grows: %lld bytes after step 4, %lld after step %d (%s); usual cause: something that "
                 "is allocated in every step and freed in none, or only by ddp_destroy()", pg_rank(pg),
                 (long long)first,
                 (long long)held, step + 1, trial->mode->title);
}

static int64_t held_before; /* ddp_create() */

/* The group keeps memory for sums, which is not the stage's: enough for each algorithm, and for shards with padding. */
static void warm_up_group(const Trial *trial)
{
    const size_t bytes = 4 * trial_bytes(trial) + (1 << 16);
    float *numbers = device_alloc(bytes);
    pg_all_reduce(pg, numbers, numbers, bytes / sizeof *numbers, DTYPE_F32, REDUCE_SUM, "warm-up");
    device_free(numbers);
}

static int modes_tried, modes_with_a_rest;

/* A static variable that still points to memory hides it from the address sanitizer. (MPI may keep a little here and
 * there.) */
static void expect_given_back(Trial *trial)
{
    enum { KEPT = 4 << 10 };
    ddp_destroy(trial->ddp);
    trial->ddp = NULL;
    if (live_bytes() > held_before + (int64_t)trial_bytes(trial) / 4 + KEPT)
        fail_msg("rank %d: ddp_destroy() has not given back %lld bytes of what the stage has made (%s)", pg_rank(pg),
                 (long long)(live_bytes() - held_before), trial->mode->title);
    modes_tried++;
    modes_with_a_rest += live_bytes() > held_before;
    if (LOCKSTEP_STAGE < 5 && modes_with_a_rest >= 4 && modes_with_a_rest == modes_tried)
        fail_msg("rank %d: ddp_destroy() leaves something each time, now %lld bytes (%s)", pg_rank(pg),
                 (long long)(live_bytes() - held_before), trial->mode->title);
}

static void check_given_back(const Mode *mode)
{
    Trial *trial = trial_prepare(pg, mode);
    warm_up_group(trial);
    held_before = live_bytes();
    trial_start(trial);
    trial_set_link(pg, mode, 2e-4);
    for (int step = 0; step < 2 + mode->later; step++) {
        if (step == 2)
            trial_set_link(pg, mode, 0);
        for (int k = 0; k < mode_micro_batches(mode, step); k++)
            trial_micro_batch(trial, step, k);
        trial_update(trial);
        pg_barrier(pg);
        expect_no_growth(trial, step);
    }
    trial_set_link(pg, mode, 0);
    expect_given_back(trial);
    trial_free(trial);
}

static void test_memory_is_given_back_in_all_modes(void **state)
{
    trial_modes(pg, (ModeChoice){.types = true, .micro_batches = true, .unused = true, .rebuilt = true,
                                 .grows = true},
                check_given_back);
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {
#if LOCKSTEP_STAGE == 5
        cmocka_unit_test(test_no_more_is_kept_in_any_mode),
#endif
        cmocka_unit_test(test_memory_is_given_back_in_all_modes),
    };
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    const ProcessGroupOptions options = {.algorithm = ALLREDUCE_ORDERED, .timeout = tests_timeout()};
    pg = tests_start_group(&argc, &argv, &options);
    int failures = cmocka_run_group_tests_name("mode memory", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
