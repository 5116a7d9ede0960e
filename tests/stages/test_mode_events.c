/* test_mode_events.c: stages 3 to 5, in every mode (modes.h): buckets are sent when they are full, neither before nor
 * later; backward goes on while they are sent, and forward while weights are gathered. Compared are orders of events
 * and calls, never times. With a correct stage the waits end at once. On 1 to 7 ranks. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/observer.h"
#include "modes_trial.h"
#include "mpi_main.h"
#include "toy_models.h"
#include "watch.h"

enum { STEPS = 3 };

static ProcessGroup *pg;
static Watch watch;
static const char *mode_title; /* of the mode that is tried */

static void try_modes(ModeChoice choice, void (*check)(const Mode *mode))
{
    choice.events = true;
    trial_modes(pg, choice, check);
    watch_set_title("");
}

/* With a link, a fast one, the communication thread carries out every collective. Otherwise a training thread that this
 * test holds would keep back small ones in shared memory, which it carries out itself: QUICK_BYTES in work.c. */
static Trial *watched_trial(const Mode *mode)
{
    Trial *trial = trial_create(pg, mode);
    watch_set_title(mode_title = mode->title);
    pg_set_options(pg, &(ProcessGroupOptions){.algorithm = mode->algorithm, .timeout = tests_timeout(),
                                              .wire_gbps = 1000});
    trial->before_backward = watch_before_backward;
    watch_start(&watch, pg, &trial->ranks->tape);
    return trial;
}

static void end_trial(Trial *trial)
{
    watch_stop(&watch);
    trial_free(trial);
}

/* ---- in time ---- */

static void check_starts(const Mode *mode)
{
    Trial *trial = watched_trial(mode);
    for (int step = 0; step < STEPS + mode->later; step++) {
        for (int k = 0; k < mode_micro_batches(mode, step); k++) {
            const bool last = k == mode_micro_batches(mode, step) - 1;
            watch_forget(&watch);
            trial_micro_batch(trial, step, k);
            watch_expect_starts(&watch, &trial->ranks->parameters, &mode->options, last);
            if (last && step == 0 && mode->options.rebuild_buckets)
                watch_follow_rank_0(&watch);
        }
        trial_update(trial);
    }
    end_trial(trial);
}

static void test_full_buckets_start_in_all_modes(void **state)
{
    try_modes((ModeChoice){.types = true, .micro_batches = true, .unused = true, .rebuilt = true, .many_buckets = 2,
                           .large_one = true},
              check_starts);
}

/* ---- backward goes on ---- */

static void backward_is_over(void)
{
    if (watch.hold_rank_0)
        watch_backward_is_over(&watch);
}

/* From level 2 on backward may wait, so that few buckets are whole: other ranks need only come to the second event.
 * (Not where earlier micro-batches have made all of them whole.) Level 3 waits for weights, in the first step for
 * all. */
static void check_goes_on(const Mode *mode)
{
    Trial *trial = watched_trial(mode);
    trial->after_events = backward_is_over;
    for (int step = 0; step < STEPS + mode->later; step++) {
        for (int k = 0; k < mode_micro_batches(mode, step); k++) {
            const bool whole = mode->sharding.level == 2 && mode_micro_batches(mode, step) > 1;
            const bool may_wait = LOCKSTEP_STAGE == 5 && mode->sharding.level >= 2 && !whole;
            watch_forget(&watch);
            watch.over_at = may_wait ? 1 : 0;
            /* What some ranks leave out fills up what may be under way. */
            watch.hold_rank_0 = step > 0 && !(may_wait && mode->unused);
            trial_micro_batch(trial, step, k);
        }
        watch.hold_rank_0 = false;
        trial_update(trial);
    }
    end_trial(trial);
}

static void test_backward_goes_on_in_all_modes(void **state)
{
    try_modes((ModeChoice){.types = true, .micro_batches = true, .unused = true, .rebuilt = true, .many_buckets = 2},
              check_goes_on);
}

/* ---- forward goes on (stage 5) ---- */

enum { ANY_BUCKET = -1 };
static atomic_bool is_held; /* the gather of this bucket */
static atomic_int held_bucket;

static int gathered_bucket(const Collective *c) /* -1: it is no gather of weights */
{
    const char *number = strstr(c->carries, "bucket ");
    return c->operation == OP_ALL_GATHER && number != NULL ? atoi(number + strlen("bucket ")) : -1;
}

static atomic_bool slow_one_is_under_way; /* the gather of bucket 0; it is slow as long as this is true */

static void hold_gather(void *self, const Collective *c)
{
    const int bucket = gathered_bucket(c), held = atomic_load(&held_bucket);
    if (bucket == 0 && atomic_load(&slow_one_is_under_way))
        sleep_seconds(0.03); /* longer than a micro-batch takes */
    if (bucket < 0 || (held != ANY_BUCKET && held != bucket))
        return;
    const double deadline = now_seconds() + tests_timeout() / 2;
    while (atomic_load(&is_held) && now_seconds() < deadline)
        sleep_seconds(1e-4);
    if (atomic_load(&is_held))
        watch.gave_up = true;
}

static void gather_is_over(void *self, const Collective *c)
{
    if (gathered_bucket(c) == 0)
        atomic_store(&slow_one_is_under_way, false);
}

static int operations_before; /* how many more operations of forward can go on while the gather is held */
static const Parameter *last_gathered; /* in bucket 0; NULL: it is not looked at */
static void weights_are_there(Parameter *const *parameters, int count)
{
    for (int i = 0; i < count; i++)
        if (parameters[i] == last_gathered && atomic_load(&slow_one_is_under_way))
            fail_msg("rank %d: forward goes on with %s while its gather is under way (%s); usual cause: only the first "
                     "micro-batch waits for gathers, though it has not used this parameter", pg_rank(pg),
                     last_gathered->name, mode_title);
    if (operations_before-- <= 0)
        atomic_store(&is_held, false);
}

/* Gathers start in ddp_after_update(), and are not over before it has returned. */
static void update_while_gathers_are_held(Trial *trial)
{
    atomic_store(&held_bucket, ANY_BUCKET);
    atomic_store(&is_held, true);
    trial_update(trial);
    atomic_store(&is_held, false);
    if (watch.gave_up)
        fail_msg("rank %d: ddp_after_update() waits for a gather of weights, but it only starts them: forward waits, "
                 "where it needs them (%s)", pg_rank(pg), mode_title);
}

/* So that one micro-batch of the third step leaves out the last branch, which has bucket 0 for itself, and the next one
 * uses it; if this mode has branches that are left out in some micro-batches only, and the last one is one of them. */
static Mode with_late_use(const Mode *mode)
{
    Mode late = *mode;
    if (!mode->unused)
        return late;
    late.seed += (uint64_t)(6 - (mode->branches + 1 + (int)(mode->seed % 6)) % 6);
    late.options.first_bucket_cap_bytes = (size_t)(mode->width * mode->width) * sizeof(float);
    return late;
}

/* So slow that the micro-batch which leaves out the last branch is over before. */
static void slow_down_last_gather(const Trial *trial)
{
    const Mode *mode = trial->mode;
    if (!mode->unused || mode_micro_batches(mode, 2) == 1 || pg_world_size(pg) == 1 || mode->frozen >= 0)
        return;
    last_gathered = trial->ranks->parameters.items[fan_weight(mode, mode->branches - 1)];
    atomic_store(&slow_one_is_under_way, true);
}

/* Levels 1 and 2: all gathers start after the update. The first layer's weights are in the last bucket. In turns the
 * last gather is held until two more operations have theirs; or the second, until it has them (but the second update's
 * last one may be slow instead); or all, until ddp_after_update() has returned. */
static void check_forward_at_levels_1_and_2(const Mode *mode)
{
    const Mode late = with_late_use(mode);
    Trial *trial = watched_trial(&late);
    const int buckets = planned_sums(&trial->ranks->parameters, &mode->options);
    const bool later_ones = buckets > 1; /* there are weights that the first layer does not need */
    watch.after_parameters_needed = weights_are_there;
    for (int step = 0; step < STEPS + mode->later; step++) {
        watch_forget(&watch);
        for (int k = 0; k < mode_micro_batches(mode, step); k++)
            trial_micro_batch(trial, step, k);
        if (watch.gave_up)
            fail_msg("rank %d: forward did not go on before a later gather of weights was over, though its first "
                     "operations do not need them: %s; usual cause: a wait for all gathers", pg_rank(pg), mode->title);
        pg_barrier(pg);
        last_gathered = NULL;
        if (step == 1)
            slow_down_last_gather(trial);
        if (step % 3 == 2) {
            update_while_gathers_are_held(trial);
            continue;
        }
        /* The first bucket has the weights of the last branches, if all ranks record them in the same order. */
        operations_before = step % 3 == 0 && !mode->shuffled && !mode->unused && !mode->tied && buckets > 2 ? 2 : 0;
        atomic_store(&held_bucket, step % 3 == 0 ? 0 : buckets - 2);
        atomic_store(&is_held, later_ones && step + 1 < STEPS + mode->later && last_gathered == NULL);
        trial_update(trial);
    }
    end_trial(trial);
}

static int gathers_before; /* when the last micro-batch's backward was over; -1: the first weights have been needed */

static void remember_gathers(void)
{
    gathers_before = watch_gathers();
}

static void expect_gather(void)
{
    if (gathers_before >= 0 && watch_gathers() == gathers_before)
        fail_msg("rank %d: the first layer's weights are gathered only when forward needs them: their gather starts "
                 "after the update, or after the micro-batch before: %s", pg_rank(pg), mode_title);
    gathers_before = -1;
}

/* Level 3: the first layer's gather starts before forward, in each micro-batch but the first. */
static void check_forward_at_level_3(const Mode *mode)
{
    Trial *trial = watched_trial(mode);
    gathers_before = -1;
    trial->after_events = remember_gathers;
    watch.before_parameters_needed = expect_gather;
    for (int step = 0; step < STEPS + mode->later; step++) {
        for (int k = 0; k < mode_micro_batches(mode, step); k++) {
            watch_forget(&watch);
            trial_micro_batch(trial, step, k);
        }
        update_while_gathers_are_held(trial);
    }
    end_trial(trial);
}

static void check_forward(const Mode *mode)
{
    if (ddp_stage_number == 5 && mode->branches >= 8)
        (mode->sharding.level < 3 ? check_forward_at_levels_1_and_2 : check_forward_at_level_3)(mode);
}

static void test_forward_goes_on_in_all_modes(void **state)
{
    try_modes((ModeChoice){.types = true, .micro_batches = true, .unused = true, .several = true}, check_forward);
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_buckets_start_in_all_modes),
        cmocka_unit_test(test_backward_goes_on_in_all_modes),
        cmocka_unit_test(test_forward_goes_on_in_all_modes),
    };
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    const ProcessGroupOptions options = {.algorithm = ALLREDUCE_ORDERED, .timeout = tests_timeout()};
    pg = tests_start_group(&argc, &argv, &options);
    pg_observe(pg, &(GroupObserver){.called = hold_gather, .done = gather_is_over});
    int failures = cmocka_run_group_tests_name("mode events", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
