/* test_gathers.c: stage 5, level 3, with products in 16 bits: weights that only products read are gathered in 16 bits,
 * and everything else as it is. (That a run's bits are those of stage 4: test_bits.sh, test_sharded_runs.sh. No grader
 * asks for this, because a stage that gathers float32 is right, too.) On 1 to 4 ranks. With
 * LOCKSTEP_TEST_OTHER_READER=1, another operation reads such a weight in the second micro-batch: a fault. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "device/device.h"
#include "mpi_main.h"
#include "sharded_run.h"

static ProcessGroup *pg;
static float *owned[64]; /* by parameter: whole weights, put together from the owners' slices */

/* The embeddings are tables with two dimensions, too. The token embedding is also the output layer's weight. */
static bool only_products_read(const Parameter *parameter)
{
    const bool is_table = strstr(parameter->name, "wte") != NULL || strstr(parameter->name, "wpe") != NULL;
    return parameter->tensor.ndim == 2 && !is_table;
}

/* ---- bytes ---- */

static size_t round_up(size_t value, size_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* Bytes of what a rank sends of bucket b, if its shard begins at element `begin` and has `shard` elements. */
static size_t bytes_sent(const Run *run, int b, size_t begin, size_t shard)
{
    const ParameterList *list = &run->replica->model.parameters;
    size_t offset = 0, bytes = 0;
    for (int i = list->count - 1; i >= 0; i--) {
        const size_t count = (size_t)tensor_count(&list->items[i]->tensor);
        if (run_bucket(run, list->items[i]) != b)
            continue;
        const size_t first = offset > begin ? offset : begin;
        const size_t last = offset + count < begin + shard ? offset + count : begin + shard;
        if (first < last)
            bytes += round_up((last - first) * (only_products_read(list->items[i]) ? 2 : 4), device_alignment());
        offset += round_up(count, SQUARES_BLOCK);
    }
    return bytes;
}

/* Every rank sends as much as the one that has most to send. Without weights of products it sends its shard. */
static size_t bytes_of_gather(const Run *run, int b)
{
    const ParameterList *list = &run->replica->model.parameters;
    const size_t ranks = (size_t)pg_world_size(pg);
    size_t elements = 0, most = 0;
    bool products = false;
    for (int i = 0; i < list->count; i++)
        if (run_bucket(run, list->items[i]) == b) {
            elements += round_up((size_t)tensor_count(&list->items[i]->tensor), SQUARES_BLOCK);
            products = products || only_products_read(list->items[i]);
        }
    const size_t shard = round_up(elements, ranks * SQUARES_BLOCK) / ranks;
    for (size_t rank = 0; rank < ranks; rank++) {
        const size_t bytes = products ? bytes_sent(run, b, rank * shard, shard) : shard * sizeof(float);
        most = bytes > most ? bytes : most;
    }
    return ranks * most;
}

/* Of all gathers in the log. */
static void expect_bytes(const Run *run, const char *title)
{
    size_t expected = 0;
    for (const char *at = strstr(seen.log, "AG"); at != NULL; at = strstr(at + 1, "AG"))
        expected += bytes_of_gather(run, atoi(at + strlen("AG")));
    if (seen.gathered != expected)
        fail_msg("%s: a step's gathers (%s) carry %zu bytes, expected are %zu: 2 for each weight that only matrix "
                 "products read, 4 for the others, on all ranks as much as on the one that sends most", title, seen.log,
                 seen.gathered, expected);
}

/* ---- what is read ---- */

static void take_weights(Run *run)
{
    for (int i = 0; i < run->replica->model.parameters.count; i++) {
        device_free(owned[i]);
        owned[i] = run_whole_weight(run, i);
    }
}

/* Only a product may find a weight that is rounded already: it would round it itself. */
static void expect_weights(Run *run, const Parameter *parameter, bool rounded, const char *reader)
{
    const DType dtype = rounded ? run->options.precision : DTYPE_F32;
    const int64_t count = tensor_count(&parameter->tensor);
    const size_t bytes = (size_t)count * sizeof(float);
    float *got = alloc_or_fault(bytes), *want = alloc_or_fault(bytes);
    device_round(got, parameter->tensor.data, dtype, count);
    device_round(want, owned[parameter->index], dtype, count);
    const bool same = memcmp(got, want, bytes) == 0;
    device_round(want, want, run->options.precision, count);
    if (!same)
        fail_msg("--precision %s: %s reads %s%s", precision_name(run->options.precision), reader, parameter->name,
                 memcmp(got, want, bytes) == 0 ? " rounded to 16 bits, though not only matrix products read it" :
                                                 " with other numbers than its owners have");
    free(got);
    free(want);
}

static void expect_weights_of_operation(Run *run, Parameter *const *parameters, int count)
{
    for (int p = 0; p < count && owned[0] != NULL; p++)
        expect_weights(run, parameters[p], only_products_read(parameters[p]),
                       run->in_backward ? "an operation in backward" : "an operation in forward");
}

/* An evaluation has all bits of a weight, so any operation may read it there. */
static void expect_weights_of_evaluation(Run *run)
{
    ddp_gather_weights(run->ddp);
    for (int i = 0; i < run->replica->model.parameters.count; i++) {
        Parameter *parameter = run->replica->model.parameters.items[i];
        expect_weights(run, parameter, false, "an evaluation (ddp_gather_weights())");
        tape_needs(&run->replica->tape, &parameter->tensor, NULL, NULL);
    }
}

/* ---- a few micro-batches ---- */

/* The first micro-batch shows what reads which weight. The next one's collectives are left in the log. */
static void check_gathers(const char *model, DType precision, char *log)
{
    Options options = run_options(model, 3);
    char title[64];
    options.precision = precision;
    snprintf(title, sizeof title, "%s, --precision %s", model, precision_name(precision));
    Run *run = run_create(&options);
    run_micro_batch(run, true);
    replica_update(run->replica, 0);
    take_weights(run);
    run_intercept(run, expect_weights_of_operation, NULL);
    seen_forget();
    ddp_after_update(run->ddp);
    run_micro_batch(run, false);
    pg_barrier(pg);
    snprintf(log, LOG_ROOM, "%s", seen.log);
    *strstr(log, "B ") = '\0'; /* from here on the next micro-batch's */
    if (precision != DTYPE_F32)
        expect_bytes(run, title);
    expect_weights_of_evaluation(run); /* with the next gather under way */
    run_micro_batch(run, true);
    expect_weights_of_evaluation(run);
    for (int i = 0; i < run->replica->model.parameters.count; i++) {
        device_free(owned[i]);
        owned[i] = NULL;
    }
    run_free(run);
}

static void check_model(const char *model)
{
    char as_float32[LOG_ROOM], in_16_bits[LOG_ROOM];
    check_gathers(model, DTYPE_F32, as_float32);
    check_gathers(model, DTYPE_BF16, in_16_bits);
    assert_string_equal(in_16_bits, as_float32);
    check_gathers(model, DTYPE_F16, in_16_bits);
    assert_string_equal(in_16_bits, as_float32);
}

static void read_by_another_operation(Run *run, Parameter *const *parameters, int count)
{
    for (int p = 0; p < count; p++)
        parameters[p]->reads += only_products_read(parameters[p]);
}

static void check_other_reader(void)
{
    Options options = run_options("mlp", 3);
    options.precision = DTYPE_BF16;
    Run *run = run_create(&options);
    run_micro_batch(run, false);
    run_intercept(run, read_by_another_operation, NULL);
    run_micro_batch(run, true);
    run_free(run);
}

static void test_gathers_in_16_bits(void **state)
{
    if (getenv("LOCKSTEP_TEST_OTHER_READER") != NULL)
        check_other_reader();
    check_model("mlp");
    check_model("gpt");
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {cmocka_unit_test(test_gathers_in_16_bits)};
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    Options options = toy_options("gpt");
    pg = tests_start_group(&argc, &argv, &options.group);
    seen_start(pg);
    int failures = cmocka_run_group_tests_name("gathers", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
