/* test_sharded.c: stage 5: which collectives a step makes and what they carry; that gathers run behind the forward pass;
 * that nothing whole is kept which the level divides. (That the weights are right: test_equivalence.c and bits.c.) No
 * times are compared: a correct stage waits for milliseconds, a wrong one until the test gives up. On 1 to 4 ranks. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/group.h" /* to observe collectives, and to slow them down */
#include "mpi_main.h"
#include "toy_models.h"
#include "train/loop/replica.h"

enum { SAMPLES = 8, LOG_ROOM = 4096, MOST_SECONDS = 20 };

static ProcessGroup *pg;

/* ---- collectives, as they are carried out ---- */

static struct Seen {
    char log[LOG_ROOM]; /* "AG2 AG1 RS0 ": all_gather of bucket 2, ... */
    size_t gathered, scattered; /* bytes */
    /* The hold: a gather of this bucket does not go on before `released`, and says when it has come. */
    int held_bucket; /* -1: none */
    atomic_bool has_come, released;
    atomic_bool gave_up;
} seen = {.held_bucket = -1};

static void wait_for(atomic_bool *flag)
{
    const double deadline = now_seconds() + MOST_SECONDS;
    while (!atomic_load(flag) && now_seconds() < deadline)
        sleep_seconds(1e-4);
    if (!atomic_load(flag))
        atomic_store(&seen.gave_up, true);
}

static int bucket_number(const Collective *c)
{
    const char *number = strstr(c->carries, "bucket ");
    return number != NULL ? atoi(number + strlen("bucket ")) : -1;
}

static void called(void *self, const Collective *c)
{
    (void)self;
    if (c->operation != OP_ALL_GATHER || bucket_number(c) < 0 || bucket_number(c) != seen.held_bucket)
        return;
    atomic_store(&seen.has_come, true);
    wait_for(&seen.released);
}

static void done(void *self, const Collective *c, double start, double end)
{
    (void)self, (void)start, (void)end;
    const size_t used = strlen(seen.log), bytes = collective_bytes(pg, c);
    const char *names[] = {[OP_BARRIER] = "B", [OP_BROADCAST] = "BC", [OP_ALL_REDUCE] = "AR", [OP_ALL_GATHER] = "AG",
                           [OP_REDUCE_SCATTER] = "RS"};
    if (!pg_is_measuring(pg))
        return;
    if (bucket_number(c) >= 0)
        snprintf(seen.log + used, LOG_ROOM - used, "%s%d ", names[c->operation], bucket_number(c));
    else
        snprintf(seen.log + used, LOG_ROOM - used, "%s ", names[c->operation]);
    seen.gathered += c->operation == OP_ALL_GATHER ? bytes : 0;
    seen.scattered += c->operation == OP_REDUCE_SCATTER ? bytes : 0;
}

static void forget(void)
{
    pg_barrier(pg); /* the communication thread has nothing to do afterwards */
    seen.log[0] = '\0';
    seen.gathered = seen.scattered = 0;
}

/* ---- a small model on all ranks ---- */

typedef struct Run {
    Options options;
    Dataset dataset;
    Replica replica;
    Ddp *ddp;
    unsigned char *inputs, *targets;
} Run;

/* zero: the level; a bucket for each layer. */
static Options run_options(const char *model, int zero)
{
    Options options = toy_options(model);
    options.ddp.zero = zero;
    options.ddp.bucket_per_layer = true;
    options.optimizer.kind = OPTIMIZER_ADAMW;
    return options;
}

static Run *run_create(const Options *options)
{
    Run *run = alloc_or_fault(sizeof *run);
    run->options = *options;
    run->dataset = toy_dataset(&run->options, 64);
    run->inputs = alloc_or_fault(SAMPLES * run->dataset.input_bytes);
    run->targets = alloc_or_fault(SAMPLES * run->dataset.target_bytes);
    replica_create(&run->replica, &run->options, 1 + (uint64_t)pg_rank(pg), 100);
    run->ddp = ddp_create(pg, &run->replica.model.parameters, &run->replica.tape, &run->options.ddp);
    optimizer_set_partition(&run->replica.optimizer, ddp_partition(run->ddp));
    return run;
}

static void run_free(Run *run)
{
    ddp_destroy(run->ddp);
    replica_free(&run->replica);
    dataset_close(&run->dataset);
    free(run->inputs);
    free(run->targets);
    free(run);
}

static void micro_batch(Run *run, bool last)
{
    int64_t indices[SAMPLES] = {0, 1, 2, 3, 4, 5, 6, 7};
    dataset_get(&run->dataset, 0, indices, SAMPLES, run->inputs, run->targets);
    ddp_before_forward(run->ddp, last);
    Tensor *loss = replica_loss(&run->replica, &run->dataset, run->inputs, run->targets, SAMPLES);
    ddp_before_backward(run->ddp, loss);
    replica_backward(&run->replica, loss);
    ddp_after_backward(run->ddp, 1e-3f);
}

static void update(Run *run, long step)
{
    replica_update(&run->replica, step);
    ddp_after_update(run->ddp);
}

/* ---- which collectives ---- */

/* The GPT's buckets are 0: block 1 and the last layernorm, 1: block 0, 2: both embeddings. The output layer uses the
 * token embedding again. At level 3 it has been dropped by then; in backward it is still there, and then it is not read
 * any more. */
static const char *const gpt_step[] = {
    "", "AG2 AG1 AG0 RS0 RS1 RS2 AR ", "AG2 AG1 AG0 RS0 RS1 RS2 AR ", "AG2 AG1 AG0 AG2 AG0 AG1 RS0 RS1 RS2 AR "};
/* 0: fc3, 1: fc2, 2: fc1, which no backward function reads: its input needs no gradient. */
static const char *const mlp_step[] = {
    "", "AG2 AG1 AG0 RS0 RS1 RS2 AR ", "AG2 AG1 AG0 RS0 RS1 RS2 AR ", "AG2 AG1 AG0 AG1 RS0 RS1 RS2 AR "};

/* After the first step, which gathers on demand at level 3, and nothing at levels 1 and 2. */
static void check_step(const char *model, int zero, int accumulate, const char *expected)
{
    const Options options = run_options(model, zero);
    Run *run = run_create(&options);
    for (int step = 0; step < 3; step++) {
        for (int k = 0; k < accumulate; k++)
            micro_batch(run, k + 1 == accumulate);
        if (step == 1)
            forget(); /* what comes now belongs to the next step */
        if (step < 2)
            update(run, step);
    }
    clip_grad_norm(&run->replica.optimizer, 1); /* the last step's squares, without an update */
    pg_barrier(pg);
    char *got = strstr(seen.log, "AR "); /* of the update before the step */
    got = got != NULL ? got + strlen("AR ") : seen.log;
    char *barrier = strrchr(got, 'B');
    *barrier = '\0';
    if (strcmp(got, expected) != 0)
        fail_msg("%s, --zero %d, %d micro-batch(es): a step's collectives are \"%s\", not \"%s\" (AG2: all_gather of "
                 "bucket 2's weights; RS: reduce_scatter of gradients; AR: the squares for the norm)", model, zero,
                 accumulate, got, expected);
    const DdpMemory memory = ddp_memory(run->ddp, &run->replica.model.parameters);
    const size_t ranks = (size_t)pg_world_size(pg), padded = memory.weights * (zero == 3 ? ranks : 1);
    assert_int_equal(seen.scattered, padded);
    if (strcmp(model, "gpt") == 0)
        assert_int_equal(seen.gathered, (zero == 3 ? 2 * (size_t)accumulate : 1) * padded);
    run_free(run);
}

static void test_collectives_of_a_step(void **state)
{
    (void)state;
    for (int zero = 1; zero <= 3; zero++) {
        check_step("gpt", zero, 1, gpt_step[zero]);
        check_step("mlp", zero, 1, mlp_step[zero]);
    }
    check_step("gpt", 2, 2, "AG2 AG1 AG0 RS0 RS1 RS2 AR "); /* no_sync */
    check_step("gpt", 3, 2, "AG2 AG1 AG0 AG2 AG0 AG1 AG2 AG1 AG0 AG2 AG0 AG1 RS0 RS1 RS2 AR ");
}

/* ---- gathers behind forward ---- */

static struct Between { /* between the tape and the stage */
    ParametersNeeded inner;
    void *inner_listener;
    GradientNeeded gradient_needed;
    GradientReady gradient_ready;
    bool armed;
} between;

/* The first layer's weights are there. The next layer's gather must have begun, or begin now, and it cannot be over. */
static void first_layer_is_there(void *listener, Parameter *const *parameters, int count)
{
    (void)listener;
    between.inner(between.inner_listener, parameters, count);
    if (!between.armed)
        return;
    between.armed = false;
    atomic_store(&seen.released, true);
    wait_for(&seen.has_come);
}

static void pass_gradient_needed(void *listener, Parameter *parameter)
{
    (void)listener;
    between.gradient_needed(between.inner_listener, parameter);
}

static void pass_gradient_ready(void *listener, Parameter *parameter)
{
    (void)listener;
    between.gradient_ready(between.inner_listener, parameter);
}

static void check_gathers_behind_forward(int zero)
{
    const Options options = run_options("gpt", zero);
    Run *run = run_create(&options);
    Tape *tape = &run->replica.tape;
    between = (struct Between){.inner = tape->on_parameters_needed, .inner_listener = tape->listener,
                               .gradient_needed = tape->on_gradient_needed, .gradient_ready = tape->on_gradient_ready};
    tape->on_parameters_needed = first_layer_is_there;
    tape->on_gradient_needed = pass_gradient_needed;
    tape->on_gradient_ready = pass_gradient_ready;
    micro_batch(run, true); /* level 3 learns the order */
    pg_barrier(pg);
    atomic_store(&seen.has_come, false);
    atomic_store(&seen.released, false);
    seen.held_bucket = 1;
    between.armed = true;
    update(run, 0);
    micro_batch(run, true);
    pg_barrier(pg);
    seen.held_bucket = -1;
    if (atomic_load(&seen.gave_up))
        fail_msg("--zero %d: the next layer's weights are not gathered while the first layer computes: either training "
                 "waits for them before it begins, or their gather is started too late", zero);
    run_free(run);
}

static void test_gathers_run_behind_forward(void **state)
{
    (void)state;
    for (int zero = 1; zero <= 3; zero++)
        check_gathers_behind_forward(zero);
}

/* ---- memory ---- */

/* Every element is updated by exactly one rank, and a rank's slices begin where blocks of squares do. */
static void check_slices(Run *run)
{
    const Partition *partition = ddp_partition(run->ddp);
    const ParameterList *parameters = &run->replica.model.parameters;
    for (int i = 0; i < parameters->count; i++) {
        const int64_t count = tensor_count(&parameters->items[i]->tensor);
        int32_t *owners = alloc_or_fault((size_t)count * sizeof *owners);
        const Slice slice = partition->slices[i];
        assert_int_equal(slice.begin % SQUARES_BLOCK, 0);
        for (int64_t k = 0; k < slice.count; k++)
            owners[slice.begin + k] = 1;
        pg_all_reduce(pg, owners, owners, (size_t)count, DTYPE_I32, REDUCE_SUM, "owners");
        for (int64_t k = 0; k < count; k++)
            if (owners[k] != 1)
                fail_msg("element %lld of %s is updated by %d ranks", (long long)k, parameters->items[i]->name,
                         owners[k]);
        free(owners);
    }
}

static void check_memory(int zero, bool slow)
{
    Options options = run_options("gpt", zero);
    Run *run = run_create(&options);
    const ParameterList *parameters = &run->replica.model.parameters;
    check_slices(run);
    pg->options.wire_gbps = slow ? 1 : 0; /* backward overtakes the link */
    pg->options.wire_latency = 2e-3;
    for (int step = 0; step < 3; step++) {
        micro_batch(run, true);
        for (int i = 0; i < parameters->count; i++) {
            if (zero >= 2 && parameters->items[i]->tensor.grad != NULL)
                fail_msg("--zero %d: after backward %s still has its whole gradient", zero, parameters->items[i]->name);
            if (zero == 3 && parameters->items[i]->tensor.data != NULL)
                fail_msg("--zero 3: after backward %s is still whole", parameters->items[i]->name);
        }
        update(run, step);
    }
    pg_barrier(pg);
    pg->options.wire_gbps = 0;

    const DdpMemory memory = ddp_memory(run->ddp, parameters);
    const size_t ranks = (size_t)pg_world_size(pg), whole = memory.weights * (zero == 3 ? ranks : 1);
    assert_true(whole >= (size_t)parameters_total(parameters) * sizeof(float));
    assert_int_equal(memory.gradients, zero >= 2 ? whole / ranks : whole);
    /* The layer in use and the next one are whole at once, but never all three. */
    assert_int_equal(memory.most_gathered_weights > 0, zero == 3);
    assert_true(memory.most_gathered_weights < whole);
    assert_int_equal(memory.most_whole_gradients > 0, zero >= 2);

    int64_t state = (int64_t)optimizer_state_bytes(&run->replica.optimizer), all = 0;
    pg_all_reduce(pg, &state, &all, 1, DTYPE_I64, REDUCE_SUM, "state");
    assert_int_equal(all, 2 * parameters_total(parameters) * (int64_t)sizeof(float));
    assert_true((size_t)state <= 2 * whole / ranks);
    run_free(run);
}

static void test_memory(void **state)
{
    (void)state;
    for (int zero = 1; zero <= 3; zero++) {
        check_memory(zero, false);
        check_memory(zero, true);
    }
}

/* Each parameter has a bucket of its own, and the link is slow: gradients may not pile up. */
static void test_gradients_do_not_pile_up(void **state)
{
    (void)state;
    Options options = run_options("gpt", 2);
    options.ddp.bucket_per_layer = false;
    options.ddp.first_bucket_cap_bytes = options.ddp.bucket_cap_bytes = 0;
    Run *run = run_create(&options);
    pg->options.wire_gbps = 1;
    pg->options.wire_latency = 1e-3;
    micro_batch(run, true);
    pg->options.wire_gbps = 0;
    const size_t whole = ddp_memory(run->ddp, &run->replica.model.parameters).weights;
    const size_t most = ddp_memory(run->ddp, &run->replica.model.parameters).most_whole_gradients;
    /* The embedding's 32 KiB from the first to the last contribution; else at most 6 parameters of 16 KiB. */
    if (most > (size_t)(32 + 6 * 16) << 10)
        fail_msg("at --zero 2, %zu of %zu bytes of gradients were whole at once on a slow link: backward must wait when "
                 "too many reduce-scatters are under way", most, whole);
    run_free(run);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives_of_a_step),
        cmocka_unit_test(test_gathers_run_behind_forward),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_gradients_do_not_pile_up),
    };
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    Options options = toy_options("gpt");
    pg = tests_start_group(&argc, &argv, &options.group);
    pg_observe(pg, &(GroupObserver){.called = called, .done = done});
    int failures = cmocka_run_group_tests_name("sharded", tests, NULL, NULL);
    pg_destroy(pg);
    return failures != 0;
}
