/* test_modes.c: what must hold in every mode of a stage (modes.h), however modes are combined: right gradients; no more
 * travels than needed, in the type asked for. Each case tries a table of modes and some that are drawn. (When things
 * are sent: test_mode_events.c. What a rank holds: test_mode_memory.c.) On 1 to 7 ranks. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "comm/observer.h"
#include "device/device.h"
#include "modes_trial.h"
#include "mpi_main.h"

#if LOCKSTEP_STAGE >= 3 /* as in the header of the watched calls, which the starters of stages 1 and 2 lack */
void calls_forget(void);
void calls_may_wait(bool begins);
void calls_take_waiting(int *without_a_wait, int *by_a_wait);
int calls_in_flight(void);
#else /* there is nothing to ask for */
static void calls_forget(void) {}
static void calls_may_wait(bool begins) {}
static void calls_take_waiting(int *without_a_wait, int *by_a_wait) { *without_a_wait = *by_a_wait = 0; }
static int calls_in_flight(void) { return 0; }
#endif

static ProcessGroup *pg;

static bool in_before_backward;
static int launched_before_backward;

/* From stage 3 on, buckets start in order even if a stage starts them in another one (given.h). */
static void begin_backward(bool begins)
{
    in_before_backward = begins;
    launched_before_backward = calls_in_flight();
    if (begins)
        calls_forget();
}

/* ---- gradients ---- */

static bool exact;

static void check_gradients(const Mode *mode)
{
    Trial *trial = trial_create(pg, mode);
    trial->exact = exact;
    trial->before_backward = begin_backward;
    trial->others_send = true;
    trial_set_link(pg, mode, mode->branches > 32 ? 0 : 2e-4);
    for (int step = 0; step < 3 + mode->later; step++) {
        if (step == 3)
            trial_set_link(pg, mode, 0);
        for (int k = 0; k < mode_micro_batches(mode, step); k++) {
            trial_micro_batch(trial, step, k);
            trial_expect_gradients(trial, step, k);
        }
        trial_update(trial);
    }
    trial_set_link(pg, mode, 0);
    trial->keeps_weights = true;
    trial_free(trial);
}

static void test_gradients_in_all_modes(void **state)
{
    exact = false;
    trial_modes(pg, (ModeChoice){.types = true, .micro_batches = true, .unused = true, .rebuilt = true, .many_buckets = 3,
                              .groups = true},
              check_gradients);
}

static void test_bits_in_all_modes(void **state)
{
    exact = true;
    trial_modes(pg, (ModeChoice){.types = true, .micro_batches = true, .unused = true, .rebuilt = true, .ordered = true},
              check_gradients);
}

/* ---- what travels ---- */

enum { MOST_BUCKETS = 300 };

typedef struct Traffic {
    int sums, gathers, others, windows; /* collectives; windows: ranks have met to make shared memory */
    size_t elements[MOST_BUCKETS]; /* by bucket; stage 1: by parameter, in the order of the calls */
    int sums_done;
    char wrong[200]; /* the first one of which the type or place is wrong */
} Traffic;
static Traffic traffic;
static const Mode *travels; /* the mode that is tried; NULL: nothing is counted */
static atomic_int sums_done;

/* Stage 1 sends parameters, which may have any names. */
static int bucket_of(const Collective *c)
{
    const char *number = strstr(c->carries, "bucket ");
    return number != NULL ? atoi(number + strlen("bucket ")) : -1;
}

static bool is_sum(const Collective *c)
{
    return c->operation == (LOCKSTEP_STAGE == 5 ? OP_REDUCE_SCATTER : OP_ALL_REDUCE) &&
           (LOCKSTEP_STAGE == 1 || bucket_of(c) >= 0);
}

/* self: NULL, or the group that shares the shards: then the sum of copies over groups is a part of it
 * (comm/copies.c). */
static void look_at(void *self, const Collective *c)
{
    if (self != NULL && c->operation == OP_ALL_REDUCE)
        return;
    if (travels == NULL || c->carries == trial_weights)
        return;
    if (c->operation == OP_BARRIER && c->carries[0] != '\0') { /* the group makes shared memory */
        if (in_before_backward)
            fail_msg("rank %d: ddp_before_backward() makes shared memory, for which all ranks meet (%s): between forward "
                     "and backward no rank waits for another", pg_rank(pg), travels->title);
        traffic.windows++;
        return;
    }
    const bool sum = is_sum(c), is_gather = c->operation == OP_ALL_GATHER && bucket_of(c) >= 0;
    const DType dtype = sum ? travels->options.codec->dtype : is_gather ? DTYPE_F32 : c->dtype;
    const int bucket = LOCKSTEP_STAGE == 1 ? traffic.sums : bucket_of(c);
    const bool in_turn = !sum || LOCKSTEP_STAGE < 3 || bucket == traffic.sums;
    if ((c->dtype != dtype || !in_turn) && traffic.wrong[0] == '\0')
        snprintf(traffic.wrong, sizeof traffic.wrong, "%s %s is number %d, and in %s", operation_name(c->operation),
                 c->carries, traffic.sums, dtype_name(c->dtype));
    *(sum ? &traffic.sums : is_gather ? &traffic.gathers : &traffic.others) += 1;
    if (sum && bucket < MOST_BUCKETS)
        traffic.elements[bucket] += collective_bytes(c, pg_world_size(self != NULL ? self : pg)) / dtype_size(c->dtype);
}

static void look_at_end(void *self, const Collective *c)
{
    if (travels != NULL && c->carries != trial_weights && is_sum(c))
        atomic_fetch_add(&sums_done, 1);
}

static ProcessGroup *sharing; /* the group that shares the shards, if that is not all ranks */

static void look_at_part(void *self, ProcessGroup *part)
{
    if (travels == NULL || travels->sharding.shard_ranks == 0 || sharing != NULL)
        return;
    pg_observe(part, &(GroupObserver){.self = part, .called = look_at, .done = look_at_end});
    sharing = part;
}

/* What was called since the last call, and how many sums were done when this was called. */
static Traffic take_traffic(void)
{
    const int done = atomic_load(&sums_done);
    pg_barrier(pg); /* the communication thread has nothing to do afterwards */
    if (sharing != NULL)
        pg_barrier(sharing);
    Traffic taken = traffic;
    taken.others -= (travels != NULL) + (sharing != NULL); /* these barriers */
    taken.sums_done = done;
    traffic = (Traffic){0};
    atomic_store(&sums_done, 0);
    return taken;
}

static void expect_between(const Mode *mode, const char *what, const char *when, size_t got, size_t least, size_t most)
{
    char expected[64];
    snprintf(expected, sizeof expected, least == most ? "%zu" : "%zu to %zu", least, most);
    if (got < least || got > most)
        fail_msg("rank %d: %s %s: %zu, expected are %s (%s)", pg_rank(pg), when, what, got,
                 most == SIZE_MAX ? "more" : expected, mode->title);
}

/* Each bucket is sent, with its gradients in the type asked for, and what stands between and behind them. Stage 1 sends
 * its parameters in any order. Of rebuilt buckets, only their number is known. */
static void expect_sums(const Trial *trial, const Traffic *got, const char *when, bool rebuilt)
{
    const Mode *mode = trial->mode;
    size_t raw[MOST_BUCKETS], all = 0, all_raw = 0; /* raw: bytes of gradients; then elements */
    const size_t buckets = rebuilt ? (size_t)got->sums : (size_t)trial_plan(trial, raw);
    const size_t ranks = (size_t)pg_world_size(pg);
    expect_between(mode, "sums of buckets (stage 1: parameters)", when, (size_t)got->sums, buckets, buckets);
    for (size_t b = 0; b < buckets && !rebuilt; b++) {
        const size_t gap = LOCKSTEP_STAGE == 5 ? SQUARES_BLOCK : 64; /* so that each is aligned */
        const size_t count = (raw[b] /= sizeof(float)) / (size_t)mode->width + 1; /* of parameters, at most */
        const size_t most = raw[b] + count * gap + (LOCKSTEP_STAGE == 5 ? ranks * gap : 0);
        all += got->elements[b], all_raw += raw[b];
        if (LOCKSTEP_STAGE > 1)
            expect_between(mode, "elements of a bucket", when, got->elements[b], raw[b], most);
    }
    if (!rebuilt)
        expect_between(mode, "elements of all gradients", when, all, all_raw, LOCKSTEP_STAGE > 1 ? SIZE_MAX : all_raw);
    expect_between(mode, "sums that are done when ddp_after_backward() returns (each needs its work_wait())", when,
                   (size_t)got->sums_done, buckets, buckets);
}

/* Besides buckets, ranks agree on what was used, in the step's last micro-batch, and once on an order. */
static void expect_traffic(const Trial *trial, const Traffic *got, int step, bool last)
{
    const Mode *mode = trial->mode;
    const bool skips = LOCKSTEP_STAGE >= 4;
    const char *when = last ? "in the last micro-batch" : "in a micro-batch that is not the last one";
    const bool agree = mode->options.find_unused_parameters && (step == 0 || !mode->options.static_graph);
    const size_t agreements = last && agree;
    const size_t orders = last && step == 0 && mode->options.rebuild_buckets;
    if (got->wrong[0] != '\0')
        fail_msg("rank %d: %s: %s (%s); usual cause: buckets out of order, or a type other than that of options.codec",
                 pg_rank(pg), when, got->wrong, mode->title);
    if (step > 0 && !(step == 1 && mode->options.rebuild_buckets))
        expect_between(mode, "barriers of the ranks to make shared memory, after the first step", when,
                       (size_t)got->windows, 0, 0);
    if (!last && skips)
        expect_between(mode, "sums of buckets, though no_sync is for all but the last", when, (size_t)got->sums, 0, 0);
    else
        expect_sums(trial, got, when, step > 0 && mode->options.rebuild_buckets);
    expect_between(mode, "other collectives (a barrier is one)", when, (size_t)got->others, agreements, agreements + orders);
    if (mode->sharding.level < 3 || LOCKSTEP_STAGE < 5)
        expect_between(mode, "gathers between ddp_before_forward() and ddp_after_backward()", when,
                       (size_t)got->gathers, 0, 0);
}

static void backward_is_over(void) /* ddp_after_backward() comes next */
{
    calls_may_wait(true);
}

static TapeListener stage; /* its own: stage 5 may wait in one of its events, too */

/* Stage 5, where all buckets are equal: a stage may also limit bytes. What no rank uses may all be launched before
 * backward, and be under way then. */
static void expect_two_in_flight(const Parameter *parameter)
{
    if (travels->sharding.level < 2 || pg_world_size(pg) == 1 || travels->branches < 32)
        return;
    if (calls_in_flight() > 2 + launched_before_backward)
        fail_msg("rank %d: when the gradient of %s begins, %d reduce-scatters are not finished, and two are enough (%s): "
                 "each one keeps a bucket of whole gradients", pg_rank(pg), parameter->name, calls_in_flight(),
                 travels->title);
}

static void pass_gradient_needed(void *self, Parameter *parameter)
{
    backward_is_over();
    stage.gradient_needed(stage.self, parameter);
    calls_may_wait(false);
    expect_two_in_flight(parameter);
}

static void look_at_waits(Trial *trial)
{
    trial->after_events = backward_is_over;
    stage = trial->ranks->tape.listener;
    TapeListener with_a_look = stage;
    if (stage.gradient_needed != NULL)
        with_a_look.gradient_needed = pass_gradient_needed;
    if (LOCKSTEP_STAGE == 5)
        tape_listen(&trial->ranks->tape, with_a_look);
}

static void look_away(Trial *trial)
{
    trial->after_events = NULL;
    if (LOCKSTEP_STAGE == 5)
        tape_listen(&trial->ranks->tape, stage);
}

/* What a stage asks for until it is done counts as time in which training computes. */
static void expect_honest_waits(const Mode *mode)
{
    int without_a_wait, by_a_wait;
    calls_take_waiting(&without_a_wait, &by_a_wait);
    if (without_a_wait > 3 && without_a_wait > by_a_wait / 2) /* a right stage may be lucky */
        fail_msg("rank %d: work_test() was asked for %d sums until they were done, and work_wait() waited for "
                 "%d (%s): so the time in which training waits for them does not count as exposed. Ask once, and then "
                 "call work_wait()", pg_rank(pg), without_a_wait, by_a_wait, mode->title);
}

static void check_traffic(const Mode *mode)
{
    travels = mode;
    Trial *trial = trial_create(pg, mode);
    trial->before_backward = begin_backward;
    look_at_waits(trial);
    take_traffic();
    trial_set_link(pg, mode, mode->branches > 32 ? 0 : 2e-4);
    for (int step = 0; step < 2 + mode->later; step++) {
        if (step == 2) {
            trial_set_link(pg, mode, 0);
            look_away(trial);
        }
        for (int k = 0; k < mode_micro_batches(mode, step); k++) {
            trial_micro_batch(trial, step, k);
            const Traffic got = take_traffic();
            expect_traffic(trial, &got, step, k == mode_micro_batches(mode, step) - 1);
        }
        trial_update(trial);
        const Traffic got = take_traffic();
        size_t bytes[MOST_BUCKETS];
        const size_t gathers = LOCKSTEP_STAGE < 5 ? 0 : (size_t)trial_plan(trial, bytes);
        const size_t first = mode->sharding.level == 3 && gathers > 1 ? 1 : gathers; /* level 3: of the first layer */
        expect_between(mode, "gathers of weights", "after the update", (size_t)got.gathers, first, first);
        expect_between(mode, "collectives that are no gathers (barriers are some)", "after the update", (size_t)(got.sums + got.others), 0, 0);
    }
    expect_honest_waits(mode);
    look_away(trial);
    travels = NULL;
    sharing = NULL;
    trial_set_link(pg, mode, 0);
    trial_free(trial);
}

static void test_no_more_travels_in_any_mode(void **state)
{
    trial_modes(pg, (ModeChoice){.types = true, .micro_batches = true, .unused = true, .rebuilt = true, .many_buckets = 2,
                              .large_one = true, .groups = true},
              check_traffic);
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_in_all_modes),
        cmocka_unit_test(test_bits_in_all_modes),
        cmocka_unit_test(test_no_more_travels_in_any_mode),
    };
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    const ProcessGroupOptions options = {.algorithm = ALLREDUCE_ORDERED, .timeout = tests_timeout()};
    pg = tests_start_group(&argc, &argv, &options);
    pg_observe(pg, &(GroupObserver){.called = look_at, .done = look_at_end, .split = look_at_part});
    int failures = cmocka_run_group_tests_name("modes", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
