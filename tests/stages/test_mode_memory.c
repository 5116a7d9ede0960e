/* test_mode_memory.c: in every mode of stage 5 (modes.h), no more memory is held than its level needs. (The other stages
 * may hold copies of everything.) On 1 to 7 ranks. */
#include "live_bytes.h"
#include "modes_trial.h"
#include "mpi_main.h"

static ProcessGroup *pg;

enum { SLACK = 64 << 10, IN_FLIGHT = 5 }; /* bytes of names, lists, handles; buckets that are used or sent at a time */

/* Of a bucket, which has one parameter here. It is padded, so that the ranks' shards are equally long. */
static int64_t bucket_bytes(const Trial *trial)
{
    const int64_t elements = (int64_t)trial->mode->width * trial->mode->width;
    const int64_t multiple = (int64_t)pg_world_size(pg) * SQUARES_BLOCK;
    return (elements + multiple - 1) / multiple * multiple * (int64_t)sizeof(float);
}

/* Stage 5 between steps: gradients, and their copies in 16 bits; at levels 2 and 3 a part of the gradients, perhaps their
 * sums beside them, no copies, and a bucket of scratch memory. At level 3 it also holds a part of the weights, and the
 * model has none. */
static int64_t most_between_steps(const Trial *trial)
{
    const int64_t all = bucket_bytes(trial) * trial_trained(trial), part = all / pg_world_size(pg);
    const int64_t model = (int64_t)trial_bytes(trial), padding = all - model;
    if (trial->mode->options.zero == 1)
        return padding + 2 * all;
    return 2 * bucket_bytes(trial) + 2 * part + (trial->mode->options.zero == 3 ? part - model : padding);
}

/* During the last micro-batch, level 2 has some whole buckets in addition, or all if earlier micro-batches have left them;
 * level 3 also some buckets of weights. */
static int64_t most_in_step(const Trial *trial, int step)
{
    const int64_t some = IN_FLIGHT * bucket_bytes(trial), all = bucket_bytes(trial) * trial_trained(trial);
    const int64_t whole = mode_micro_batches(trial->mode, step) > 1 ? all : some;
    const int64_t halves = trial->mode->options.codec->dtype == DTYPE_F32 ? 0 : whole / 2;
    if (trial->mode->options.zero == 1)
        return most_between_steps(trial);
    return most_between_steps(trial) + whole + halves + (trial->mode->options.zero == 3 ? some : 0);
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

static void check_memory(const Mode *mode)
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
    trial_modes(pg, (ModeChoice){.types = true, .unused = true, .accumulates = true, .width = 96}, check_memory);
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {cmocka_unit_test(test_no_more_is_kept_in_any_mode)};
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    const ProcessGroupOptions options = {.algorithm = ALLREDUCE_ORDERED, .timeout = tests_timeout()};
    pg = tests_start_group(&argc, &argv, &options);
    int failures = cmocka_run_group_tests_name("mode memory", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
