/* test_sharded.c: stage 5: which collectives a step makes, and what they carry; that gathers run behind forward; that
 * nothing whole is kept which the level divides. (That the weights are right: test_equivalence.c and bits.c; what
 * operations read: test_shards.c.) No times are compared: a correct stage waits for milliseconds, a wrong one until the
 * test gives up. On 1 to 4 ranks. */
#include <stdio.h>
#include <string.h>

#include "device/device.h"
#include "mpi_main.h"
#include "sharded_run.h"

static ProcessGroup *pg;

/* ---- which collectives ---- */

/* The GPT's buckets are 0: block 1 and the last layernorm, 1: block 0, 2: both embeddings. The output layer uses the
 * token embedding again. At level 3 it has been dropped by then; in backward it is still there, and then it is not read
 * any more. */
static const char *const gpt_step[] = {
    "", "AG2 AG1 AG0 RS0 RS1 RS2 AR ", "AG2 AG1 AG0 RS0 RS1 RS2 AR ", "AG2 AG1 AG0 AG2 AG0 AG1 RS0 RS1 RS2 AR "};
/* 0: fc3, 1: fc2, 2: fc1, which no backward function reads: its input needs no gradient. */
static const char *const mlp_step[] = {
    "", "AG2 AG1 AG0 RS0 RS1 RS2 AR ", "AG2 AG1 AG0 RS0 RS1 RS2 AR ", "AG2 AG1 AG0 AG1 RS0 RS1 RS2 AR "};

static int occurrences(const char *log, const char *name)
{
    int count = 0;
    for (const char *at = strstr(log, name); at != NULL; at = strstr(at + 1, name))
        count++;
    return count;
}

/* The idea that the stage misses, if its collectives are not the expected ones. */
static const char *missed_idea(const char *got, const char *expected)
{
    const int scatters = occurrences(got, "RS") - occurrences(expected, "RS");
    const int gathers = occurrences(got, "AG") - occurrences(expected, "AG");
    if (occurrences(got, "AR") > 1)
        return "gradients are all-reduced: reduce-scatter them, because a rank needs the sum of its shard only";
    if (scatters != 0)
        return scatters < 0 ? "a bucket's gradients are never reduce-scattered" :
                              "gradients are reduce-scattered more than once in a step (only the last micro-batch "
                              "synchronises)";
    if (gathers < 0)
        return "weights are not gathered again: after the update by ddp_after_update(), at level 3 also for backward";
    if (gathers > 0)
        return "weights are gathered more often than they are needed";
    return "the right ones, but in another order: gathers start in the order in which the layers are used, "
           "reduce-scatters in that of the buckets";
}

/* After the first step, which gathers on demand at level 3, and nothing at levels 1 and 2. */
static void check_step(const char *model, int zero, int accumulate, const char *expected)
{
    const Options options = run_options(model, zero);
    Run *run = run_create(&options);
    for (int step = 0; step < 3; step++) {
        for (int k = 0; k < accumulate; k++)
            run_micro_batch(run, k + 1 == accumulate);
        if (step == 1)
            seen_forget(); /* what comes now belongs to the next step */
        if (step < 2)
            run_update(run, step);
    }
    clip_grad_norm(&run->replica->optimizer, 1); /* the last step's squares, without an update */
    pg_barrier(pg);
    char *got = strstr(seen.log, "AR "); /* of the update before the step */
    got = got != NULL ? got + strlen("AR ") : seen.log;
    char *barrier = strrchr(got, 'B');
    *barrier = '\0';
    if (strcmp(got, expected) != 0)
        fail_msg("%s, --zero %d, %d micro-batch(es): a step's collectives are \"%s\", not \"%s\" (AG2: all_gather of "
                 "bucket 2's weights; RS: reduce_scatter of gradients; AR: the squares for the norm): %s", model, zero,
                 accumulate, got, expected, missed_idea(got, expected));
    ShardedMemory memory;
    assert_true(ddp_sharded_memory(run->ddp, &memory));
    const size_t ranks = (size_t)pg_world_size(pg), padded = memory.weights * (zero == 3 ? ranks : 1);
    assert_int_equal(seen.scattered, padded);
    if (strcmp(model, "gpt") == 0)
        assert_int_equal(seen.gathered, (zero == 3 ? 2 * (size_t)accumulate : 1) * padded);
    run_free(run);
}

static void test_collectives_of_a_step(void **state)
{
    for (int zero = 1; zero <= 3; zero++) {
        if (!run_has_level(zero))
            continue;
        check_step("gpt", zero, 1, gpt_step[zero]);
        check_step("mlp", zero, 1, mlp_step[zero]);
    }
    if (run_has_level(2))
        check_step("gpt", 2, 2, "AG2 AG1 AG0 RS0 RS1 RS2 AR "); /* no_sync */
    if (run_has_level(3))
        check_step("gpt", 3, 2, "AG2 AG1 AG0 AG2 AG0 AG1 AG2 AG1 AG0 AG2 AG0 AG1 RS0 RS1 RS2 AR ");
}

/* ---- gathers behind forward ---- */

static bool armed;

/* The first layer's weights are there. The next layer's gather must have begun, or begin now, and it cannot be over. */
static void first_layer_is_there(Run *run, Parameter *const *parameters, int count)
{
    if (!armed)
        return;
    armed = false;
    atomic_store(&seen.released, true);
    seen_wait_for(&seen.has_come);
}

static void check_gathers_behind_forward(int zero)
{
    const Options options = run_options("gpt", zero);
    Run *run = run_create(&options);
    run_intercept(run, first_layer_is_there, NULL);
    run_micro_batch(run, true); /* level 3 learns the order */
    pg_barrier(pg);
    seen_hold(OP_ALL_GATHER, 1);
    armed = true;
    run_update(run, 0);
    run_micro_batch(run, true);
    pg_barrier(pg);
    seen.held_bucket = -1;
    if (atomic_load(&seen.gave_up))
        fail_msg("--zero %d: the next layer's weights are not gathered while the first layer computes: either training "
                 "waits for them before it begins, or their gather is started too late", zero);
    run_free(run);
}

static void test_gathers_run_behind_forward(void **state)
{
    for (int zero = 1; zero <= 3; zero++)
        if (run_has_level(zero))
            check_gathers_behind_forward(zero);
}

/* ---- memory ---- */

/* Bytes of all buckets: parameters begin at multiples of SQUARES_BLOCK, and the ranks' shards are equally long. */
static size_t padded_bytes(const Run *run)
{
    const ParameterList *parameters = &run->replica->model.parameters;
    const size_t multiple = (size_t)pg_world_size(pg) * SQUARES_BLOCK;
    size_t blocks[8] = {0}, all = 0; /* blocks: by bucket */
    for (int i = 0; i < parameters->count; i++)
        blocks[run_bucket(run, parameters->items[i])] +=
            (size_t)squares_blocks(tensor_count(&parameters->items[i]->tensor));
    for (int b = 0; b < 8; b++)
        all += (blocks[b] * SQUARES_BLOCK + multiple - 1) / multiple * multiple;
    return all * sizeof(float);
}

static void check_memory(int zero, bool slow)
{
    Options options = run_options("gpt", zero);
    Run *run = run_create(&options);
    const ParameterList *parameters = &run->replica->model.parameters;
    pg->options.wire_gbps = slow ? 1 : 0; /* backward overtakes the link */
    pg->options.wire_latency = 2e-3;
    for (int step = 0; step < 3; step++) {
        run_micro_batch(run, true);
        for (int i = 0; i < parameters->count; i++) {
            if (zero >= 2 && parameters->items[i]->tensor.grad != NULL)
                fail_msg("--zero %d: after backward %s still has its whole gradient", zero, parameters->items[i]->name);
            if (zero == 3 && parameters->items[i]->tensor.data != NULL)
                fail_msg("--zero 3: after backward %s is still whole", parameters->items[i]->name);
        }
        run_update(run, step);
    }
    pg_barrier(pg);
    pg->options.wire_gbps = 0;

    ShardedMemory memory;
    assert_true(ddp_sharded_memory(run->ddp, &memory));
    const size_t ranks = (size_t)pg_world_size(pg), whole = memory.weights * (zero == 3 ? ranks : 1);
    assert_int_equal(whole, padded_bytes(run));
    if (memory.gradients != (zero >= 2 ? whole / ranks : whole))
        fail_msg("--zero %d on %zu ranks: a rank always holds %zu bytes of gradients, where all have %zu", zero, ranks,
                 memory.gradients, whole);
    /* The layer in use and the next one are whole at once, but never all three. */
    assert_int_equal(memory.peak_gathered_weights > 0, zero == 3);
    if (memory.peak_gathered_weights >= whole)
        fail_msg("--zero 3: all weights (%zu bytes) were whole at once: gather only the next layer ahead, and drop a "
                 "layer's weights after its use", whole);
    assert_int_equal(memory.peak_whole_gradients > 0, zero >= 2);

    int64_t state = (int64_t)optimizer_state_bytes(&run->replica->optimizer), all = 0;
    pg_all_reduce(pg, &state, &all, 1, DTYPE_I64, REDUCE_SUM, "state");
    if (all != 2 * parameters_total(parameters) * (int64_t)sizeof(float))
        fail_msg("--zero %d: all ranks together have %lld bytes of optimizer state, where the weights have %lld: each "
                 "rank keeps the state of its slices, and each weight has one owner", zero, (long long)all,
                 (long long)parameters_total(parameters) * (long long)sizeof(float));
    assert_true((size_t)state <= 2 * whole / ranks);
    run_free(run);
}

static void test_memory(void **state)
{
    for (int zero = 1; zero <= 3; zero++) {
        if (!run_has_level(zero))
            continue;
        check_memory(zero, false);
        check_memory(zero, true);
    }
}

/* Bytes of the gradients of a bucket. */
static size_t bucket_of_elements(size_t count)
{
    const size_t multiple = (size_t)pg_world_size(pg) * SQUARES_BLOCK;
    return (count + multiple - 1) / multiple * multiple * sizeof(float);
}

/* Each parameter has a bucket of its own, and the link is slow: gradients may not pile up. */
static void test_gradients_do_not_pile_up(void **state)
{
    Options options = run_options("gpt", 2);
    options.sharding.bucket_per_layer = false;
    options.ddp.first_bucket_cap_bytes = options.ddp.bucket_cap_bytes = 0;
    Run *run = run_create(&options);
    pg->options.wire_gbps = 1;
    pg->options.wire_latency = 1e-3;
    run_micro_batch(run, true);
    pg->options.wire_gbps = 0;
    ShardedMemory memory;
    assert_true(ddp_sharded_memory(run->ddp, &memory));
    const size_t whole = memory.weights, most = memory.peak_whole_gradients;
    const size_t of_a_weight = bucket_of_elements(4096), of_the_embedding = bucket_of_elements(8192);
    /* The embedding from its first contribution to its last; a weight and its bias, and two more that are sent. */
    if (most > of_the_embedding + 4 * of_a_weight)
        fail_msg("at --zero 2, %zu of %zu bytes of gradients were whole at once on a slow link, and %zu are enough: "
                 "backward must wait when more than two reduce-scatters are under way", most, whole,
                 of_the_embedding + 4 * of_a_weight);
    run_free(run);
}

static Run *looked_at;
static TapeListener stage;

/* What was launched before the barrier is over after it: the reduce-scatters of fc3 and fc2, when the gradients of fc1
 * begin. */
static void expect_others_dropped(void *self, Parameter *parameter)
{
    const ParameterList *list = &looked_at->replica->model.parameters;
    const bool of_fc1 = run_bucket(looked_at, parameter) == 2;
    if (of_fc1)
        pg_barrier(pg);
    stage.gradient_needed(self, parameter);
    for (int i = 0; i < list->count && of_fc1; i++)
        if (run_bucket(looked_at, list->items[i]) < 2 && list->items[i]->tensor.grad != NULL)
            fail_msg("--zero %d: when the gradients of fc1 begin, %s still has a whole one, though its reduce-scatter "
                     "was over before: all that is over (work_test()) must be finished, not only what is too much, or one",
                     looked_at->options.sharding.level, list->items[i]->name);
}

static void test_what_was_sent_is_dropped(void **state)
{
    for (int zero = 2; zero <= 3; zero++) {
        if (!run_has_level(zero))
            continue;
        const Options options = run_options("mlp", zero);
        Run *run = looked_at = run_create(&options);
        run_intercept(run, NULL, NULL); /* it looks whether the stage listens */
        stage = run->replica->tape.listener;
        TapeListener with_a_look = stage;
        with_a_look.gradient_needed = expect_others_dropped;
        tape_listen(&run->replica->tape, with_a_look);
        run_micro_batch(run, true);
        run_free(run);
    }
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_collectives_of_a_step),
        cmocka_unit_test(test_gathers_run_behind_forward),
        cmocka_unit_test(test_gradients_do_not_pile_up),
        cmocka_unit_test(test_what_was_sent_is_dropped),
    };
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    Options options = toy_options("gpt");
    pg = tests_start_group(&argc, &argv, &options.group);
    seen_start(pg);
    int failures = cmocka_run_group_tests_name("sharded", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
