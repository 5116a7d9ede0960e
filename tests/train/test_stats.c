/* test_stats.c: percentiles of step times, and a summary that any JSON parser reads. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "expect.h"
#include "train/report/summary.h"

/* ---- stats ---- */

/* Steps of 1, 2, 3, ... seconds: `count` of them, the last first if `reversed`. Forward takes a tenth; nothing else
 * was measured. */
static Stats stats_of(long count, bool reversed)
{
    Stats stats = {0};
    for (long i = 0; i < count; i++) {
        StepTimes times;
        for (int part = 0; part < STEP_PARTS; part++)
            times.seconds[part] = NAN;
        times.seconds[PART_STEP] = (double)(reversed ? count - i : i + 1);
        times.seconds[PART_FORWARD] = times.seconds[PART_STEP] / 10;
        stats_add(&stats, &times);
    }
    return stats;
}

static void expect_number(const char *name, double actual, double expected)
{
    /* As a NaN compares false with everything, the test must be for "is close", not for "is far". */
    if (!(fabs(actual - expected) <= 1e-9 * fabs(expected)))
        fail_msg("%s: expected %.17g, got %.17g; is the warm-up in it, or a step too many?", name, expected, actual);
}

static void test_percentiles_are_numpys(void **unused)
{
    (void)unused;
    Stats stats = stats_of(24, false); /* 4 ... 24 are left after the warm-up of 1, 2, 3 */
    assert_int_equal(stats_warmup_steps(&stats), 3);
    expect_number("p0", stats_percentile(&stats, PART_STEP, 0), 4);
    expect_number("p50", stats_percentile(&stats, PART_STEP, 50), 14);
    expect_number("p95", stats_percentile(&stats, PART_STEP, 95), 23);
    expect_number("p99", stats_percentile(&stats, PART_STEP, 99), 23.8); /* between 23 and 24 */
    expect_number("p100", stats_percentile(&stats, PART_STEP, 100), 24);
    expect_number("mean", stats_mean(&stats, PART_STEP), 14);
    expect_number("first", stats_first(&stats, PART_STEP), 1);
    expect_number("forward p50", stats_percentile(&stats, PART_FORWARD, 50), 1.4);
    stats_free(&stats);
}

static void test_order_does_not_matter_after_warmup(void **unused)
{
    (void)unused;
    Stats stats = stats_of(3000, true); /* 2997 ... 1 are left; the array has to grow for them */
    expect_number("p50", stats_percentile(&stats, PART_STEP, 50), 1499);
    expect_number("p95", stats_percentile(&stats, PART_STEP, 95), 2847.2);
    expect_number("first", stats_first(&stats, PART_STEP), 3000);
    stats_free(&stats);
}

static void test_short_runs_keep_half_of_their_steps(void **unused)
{
    (void)unused;
    const long expected[] = {0, 0, 1, 1, 2, 2, 3, 3, 3};
    for (long count = 0; count <= 8; count++) {
        Stats stats = stats_of(count, false);
        assert_int_equal(stats_warmup_steps(&stats), expected[count]);
        assert_int_equal(isnan(stats_percentile(&stats, PART_STEP, 50)), count == 0);
        stats_free(&stats);
    }
}

static void test_what_was_not_measured_is_nan(void **unused)
{
    (void)unused;
    Stats stats = stats_of(10, false);
    stats.steps[5].seconds[PART_COMM] = 7; /* measured in one step only */
    assert_true(isnan(stats_percentile(&stats, PART_DATA, 50)));
    assert_true(isnan(stats_mean(&stats, PART_DATA)));
    expect_number("comm", stats_percentile(&stats, PART_COMM, 95), 7);
    stats_free(&stats);
    assert_true(isnan(stats_first(&stats, PART_STEP)));
}

/* A run so long that only one step in `every` is held: of 1, 2, 3, ... seconds, those of 1, 1 + every, ... */
static void expect_sample(long count, long every)
{
    Stats stats = stats_of(count, false);
    if (stats.held > STATS_MOST_HELD || stats.capacity > STATS_MOST_HELD)
        fail_msg("%ld steps: %ld are held, in room for %ld; at most %d may be, or a long run takes all memory", count,
                 stats.held, stats.capacity, STATS_MOST_HELD);
    if (stats.held != (count + every - 1) / every)
        fail_msg("%ld steps: expected one in %ld to be held, %ld in all; got %ld", count, every,
                 (count + every - 1) / every, stats.held);
    for (long i = 0; i < stats.held; i++)
        if (stats.steps[i].seconds[PART_STEP] != (double)(1 + i * every))
            fail_msg("%ld steps: number %ld of those held is step %g, not %ld: the sample is uneven", count, i,
                     stats.steps[i].seconds[PART_STEP], 1 + i * every);
    assert_int_equal(stats.count, count); /* what is exact in a run of any length */
    expect_number("last", stats.last.seconds[PART_STEP], (double)count);
    assert_int_equal(stats_warmup_steps(&stats), 3);
    expect_number("first", stats_first(&stats, PART_STEP), 1);
    double least = (double)(1 + (3 + every - 1) / every * every); /* the first one that is no warm-up: not 1, 2, 3 */
    double most = (double)(1 + (count - 1) / every * every);
    expect_number("p0", stats_percentile(&stats, PART_STEP, 0), least);
    expect_number("p50", stats_percentile(&stats, PART_STEP, 50), (least + most) / 2);
    expect_number("p100", stats_percentile(&stats, PART_STEP, 100), most);
    expect_number("mean", stats_mean(&stats, PART_STEP), (least + most) / 2);
    stats_free(&stats);
}

static void test_long_runs_keep_an_even_sample(void **unused)
{
    (void)unused;
    const long most = STATS_MOST_HELD;
    expect_sample(most, 1); /* still all of them */
    expect_sample(most + 1, 2);
    expect_sample(2 * most, 2);
    expect_sample(2 * most + 1, 4);
    expect_sample(3 * most + 7, 4);
    expect_sample(16 * most + 5, 32);
}

/* ---- summary ---- */

static Summary filled_summary(void)
{
    Summary summary;
    summary_init(&summary);
    summary.stage = 3;
    summary.stage_name = "overlap";
    summary.model = "gpt \"quoted\"\n";
    summary.backend = "mpi";
    summary.device = "cpu";
    summary.precision = "fp32";
    summary.allreduce = "ordered";
    summary.world_size = 2;
    summary.global_batch = 28;
    summary.bytes_per_step = 12.5e9; /* more than 32 bits hold */
    summary.parameters = 124439808;
    summary.wire_gbps = 1;
    summary.wire_latency_us = 50;
    summary.first_loss = 5.5;
    summary.final_loss = INFINITY;
    summary.weights_hash = 0x00ff123456789abc;
    summary.verify = (VerifyResult){"exact", 0, NULL, true};
    return summary;
}

static void summary_file(char *path, size_t size)
{
    const char *parent = getenv("TMPDIR");
    snprintf(path, size, "%.150s/test_summary_%ld.json", parent != NULL ? parent : "/tmp", (long)getpid());
}

/* Writes the summary and parses the file; cJSON_Delete() the result. */
static cJSON *written_and_parsed(const Summary *summary)
{
    char path[200], text[8192] = "";
    summary_file(path, sizeof path);
    summary_write_json(summary, path);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_in_range(fread(text, 1, sizeof text - 1, file), 1, sizeof text - 2);
    fclose(file);
    unlink(path);
    cJSON *object = cJSON_Parse(text);
    if (object == NULL)
        fail_msg("the summary is no JSON: a NaN or an unescaped string in it? The file holds:\n%s", text);
    return object;
}

/* The value under "key" or "key.inner". */
static const cJSON *value_of(const cJSON *object, const char *path)
{
    char key[64];
    const char *dot = strchr(path, '.');
    snprintf(key, sizeof key, "%.*s", dot != NULL ? (int)(dot - path) : 60, path);
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
    if (value == NULL)
        fail_msg("the summary has no key \"%s\" (looking for %s)", key, path);
    return dot != NULL ? value_of(value, dot + 1) : value;
}

static void test_every_key_is_there(void **unused)
{
    (void)unused;
    static const char *const keys[] = {
        "stage", "model", "backend", "device", "world_size", "threads", "steps", "global_batch", "accumulate",
        "precision", "allreduce", "bucket_cap_mb", "wire", "wire.gbps", "wire.latency_us", "wire.emulated",
        "parameters", "buckets", "collectives_per_step", "bytes_per_step", "first_loss", "final_loss", "eval_loss",
        "eval_accuracy", "step_ms.first", "step_ms.p50", "step_ms.p95", "forward_ms", "backward_ms", "optimizer_ms",
        "data_ms", "comm_ms", "exposed_comm_ms", "hidden_fraction", "samples_per_s", "tokens_per_s", "peak_rss_mb",
        "weights_hash", "verify.mode", "verify.max_abs_diff", "verify.worst_parameter", "verify.passed",
        "stage_name", "steps_skipped", "loss_scale", "micro_batches", "warmup_steps_excluded", "first_step_ms.step",
        "first_step_ms.forward", "first_step_ms.exposed_comm", "memory.weights_mb", "memory.operands_mb",
        "memory.gradients_mb", "memory.optimizer_mb", "memory.activations_mb", "memory.base_mb", "join", "rank_samples",
        "eval_bits_per_byte", "comm_share", "grad_dtype", "first_bucket_mb"};
    Summary summary = filled_summary();
    cJSON *object = written_and_parsed(&summary);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        value_of(object, keys[i]);
    cJSON_Delete(object);
}

static void test_values_survive(void **unused)
{
    (void)unused;
    Summary summary = filled_summary();
    Stats stats = stats_of(24, false);
    for (long i = 0; i < stats.count; i++) {
        stats.steps[i].seconds[PART_BACKWARD] = 0.5;
        stats.steps[i].seconds[PART_OPTIMIZER] = 0.25;
        stats.steps[i].seconds[PART_DATA] = 0.125;
        stats.steps[i].seconds[PART_COMM] = 4;
        stats.steps[i].seconds[PART_EXPOSED] = 1;
    }
    summary_set_times(&summary, &stats, 128);
    stats_free(&stats);
    cJSON *object = written_and_parsed(&summary);
    assert_string_equal(cJSON_GetStringValue(value_of(object, "model")), summary.model);
    assert_string_equal(cJSON_GetStringValue(value_of(object, "weights_hash")), "00ff123456789abc");
    expect_number("bytes_per_step", value_of(object, "bytes_per_step")->valuedouble, 12.5e9);
    expect_number("parameters", value_of(object, "parameters")->valuedouble, 124439808);
    expect_number("step_ms.p50", value_of(object, "step_ms.p50")->valuedouble, 14000);
    expect_number("step_ms.first", value_of(object, "step_ms.first")->valuedouble, 1000);
    expect_number("step_ms.p95", value_of(object, "step_ms.p95")->valuedouble, 23000);
    expect_number("forward_ms", value_of(object, "forward_ms")->valuedouble, 1400);
    expect_number("backward_ms", value_of(object, "backward_ms")->valuedouble, 500);
    expect_number("optimizer_ms", value_of(object, "optimizer_ms")->valuedouble, 250);
    expect_number("data_ms", value_of(object, "data_ms")->valuedouble, 125);
    expect_number("comm_ms", value_of(object, "comm_ms")->valuedouble, 4000);
    expect_number("exposed_comm_ms", value_of(object, "exposed_comm_ms")->valuedouble, 1000);
    expect_number("first_step_ms.forward", value_of(object, "first_step_ms.forward")->valuedouble, 100);
    expect_number("hidden_fraction", value_of(object, "hidden_fraction")->valuedouble, 0.75);
    expect_number("comm_share", value_of(object, "comm_share")->valuedouble, 1.0 / 14);
    expect_number("samples_per_s", value_of(object, "samples_per_s")->valuedouble, 2);
    expect_number("tokens_per_s", value_of(object, "tokens_per_s")->valuedouble, 256);
    expect_number("warm-up", value_of(object, "warmup_steps_excluded")->valuedouble, 3);
    assert_true(cJSON_IsTrue(value_of(object, "verify.passed")));
    assert_true(cJSON_IsTrue(value_of(object, "wire.emulated")));
    cJSON_Delete(object);

    const int64_t own[] = {700, 0};
    summary.world_size = 2;
    summary.rank_samples = own;
    summary.join = "initial";
    object = written_and_parsed(&summary);
    assert_string_equal(cJSON_GetStringValue(value_of(object, "join")), "initial");
    assert_int_equal(cJSON_GetArraySize(value_of(object, "rank_samples")), 2);
    expect_number("rank_samples", cJSON_GetArrayItem(value_of(object, "rank_samples"), 0)->valuedouble, 700);
    cJSON_Delete(object);
}

static void test_what_there_is_not_is_null(void **unused)
{
    (void)unused;
    static const char *const nulls[] = {"eval_accuracy", "final_loss", "bucket_cap_mb", "step_ms.p50", "data_ms",
                                        "hidden_fraction", "tokens_per_s", "memory.base_mb", "wire", "verify",
                                        "join", "rank_samples", "eval_bits_per_byte", "comm_share", "grad_dtype",
                                        "first_bucket_mb", "eval_loss", "step_ms.first", "step_ms.p95", "forward_ms",
                                        "backward_ms", "optimizer_ms", "comm_ms", "exposed_comm_ms",
                                        "first_step_ms.step", "first_step_ms.exposed_comm", "samples_per_s",
                                        "peak_rss_mb", "memory.weights_mb", "memory.operands_mb",
                                        "memory.gradients_mb", "memory.optimizer_mb", "memory.activations_mb"};
    Summary summary = filled_summary();
    summary.wire_gbps = 0;
    summary.verify.mode = NULL;
    cJSON *object = written_and_parsed(&summary);
    for (size_t i = 0; i < sizeof nulls / sizeof nulls[0]; i++)
        if (!cJSON_IsNull(value_of(object, nulls[i])))
            fail_msg("%s is not null, though this run does not have it", nulls[i]);
    cJSON_Delete(object);
}

/* A fair coin costs ln 2 nats, which is one bit. */
static void test_bits_per_byte(void **unused)
{
    (void)unused;
    Summary summary = filled_summary();
    summary_set_evaluation(&summary, log(2), NAN, true);
    cJSON *object = written_and_parsed(&summary);
    expect_number("eval_loss", value_of(object, "eval_loss")->valuedouble, log(2));
    double bits = value_of(object, "eval_bits_per_byte")->valuedouble;
    if (!(fabs(bits - 1) <= 1e-9))
        fail_msg("%g nats per byte are 1 bit, not %.17g: is the loss divided by ln 2?", log(2), bits);
    assert_true(cJSON_IsNull(value_of(object, "eval_accuracy")));
    cJSON_Delete(object);

    summary_set_evaluation(&summary, log(2), 0.5, false); /* of pictures */
    object = written_and_parsed(&summary);
    expect_number("eval_loss", value_of(object, "eval_loss")->valuedouble, log(2));
    expect_number("eval_accuracy", value_of(object, "eval_accuracy")->valuedouble, 0.5);
    if (!cJSON_IsNull(value_of(object, "eval_bits_per_byte")))
        fail_msg("bits per byte of something that is not made of bytes");
    cJSON_Delete(object);
}

static void test_no_path_no_file(void **unused)
{
    (void)unused;
    Summary summary = filled_summary();
    summary_write_json(&summary, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_percentiles_are_numpys),
        cmocka_unit_test(test_order_does_not_matter_after_warmup),
        cmocka_unit_test(test_short_runs_keep_half_of_their_steps),
        cmocka_unit_test(test_what_was_not_measured_is_nan),
        cmocka_unit_test(test_long_runs_keep_an_even_sample),
        cmocka_unit_test(test_every_key_is_there),
        cmocka_unit_test(test_values_survive),
        cmocka_unit_test(test_what_there_is_not_is_null),
        cmocka_unit_test(test_bits_per_byte),
        cmocka_unit_test(test_no_path_no_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
