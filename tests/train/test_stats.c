/* test_stats.c: percentiles of step times, and a summary that any JSON parser reads. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "expect.h"
#include "train/report/output.h"

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
    /* Test for "is close", not for "is far", because every comparison with NaN is false. */
    if (!(fabs(actual - expected) <= 1e-9 * fabs(expected)))
        fail_msg("%s: expected %.17g, got %.17g; is the warm-up in it, or a step too many?", name, expected, actual);
}

static void test_percentiles_are_numpys(void **unused)
{
    Stats stats = stats_of(24, false); /* 4 ... 24 are left after the warm-up of 1, 2, 3 */
    assert_int_equal(stats_warmup_steps(&stats), 3);
    expect_number("p0", stats_percentile(&stats, PART_STEP, 0), 4);
    expect_number("p50", stats_percentile(&stats, PART_STEP, 50), 14);
    expect_number("p95", stats_percentile(&stats, PART_STEP, 95), 23);
    expect_number("p99", stats_percentile(&stats, PART_STEP, 99), 23.8); /* between 23 and 24 */
    expect_number("p100", stats_percentile(&stats, PART_STEP, 100), 24);
    expect_number("mean", stats_mean(&stats, PART_STEP), 14);
    expect_number("first", stats.first.seconds[PART_STEP], 1);
    expect_number("forward p50", stats_percentile(&stats, PART_FORWARD, 50), 1.4);
    stats_free(&stats);
}

static void test_order_does_not_matter_after_warmup(void **unused)
{
    Stats stats = stats_of(3000, true); /* 2997 ... 1 are left */
    expect_number("p50", stats_percentile(&stats, PART_STEP, 50), 1499);
    expect_number("p95", stats_percentile(&stats, PART_STEP, 95), 2847.2);
    expect_number("first", stats.first.seconds[PART_STEP], 3000);
    stats_free(&stats);
}

static void test_short_runs_keep_half_of_their_steps(void **unused)
{
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
    Stats stats = stats_of(10, false);
    stats.steps[5].seconds[PART_COMM] = 7; /* measured in one step only */
    assert_true(isnan(stats_percentile(&stats, PART_DATA, 50)));
    assert_true(isnan(stats_mean(&stats, PART_DATA)));
    expect_number("comm", stats_percentile(&stats, PART_COMM, 95), 7);
    stats_free(&stats);
}

/* Of steps of 1, 2, 3, ... seconds, a long run keeps the last ones. */
static void expect_last_steps(long count)
{
    Stats stats = stats_of(count, false);
    double least = (double)(count - STATS_MAX_KEPT + 1);
    if (least < 4)
        least = 4; /* 1, 2, 3 are warm-up */
    assert_int_equal(stats.count, count); /* exact in a run of any length */
    assert_int_equal(stats_warmup_steps(&stats), 3);
    expect_number("first", stats.first.seconds[PART_STEP], 1);
    expect_number("last", stats.last.seconds[PART_STEP], (double)count);
    expect_number("p0", stats_percentile(&stats, PART_STEP, 0), least);
    expect_number("p50", stats_percentile(&stats, PART_STEP, 50), (least + (double)count) / 2);
    expect_number("p100", stats_percentile(&stats, PART_STEP, 100), (double)count);
    expect_number("mean", stats_mean(&stats, PART_STEP), (least + (double)count) / 2);
    stats_free(&stats);
}

static void test_long_runs_keep_their_last_steps(void **unused)
{
    const long most = STATS_MAX_KEPT;
    expect_last_steps(most);
    expect_last_steps(most + 1);
    expect_last_steps(most + 3);
    expect_last_steps(most + 4);
    expect_last_steps(3 * most + 7);
}

/* ---- summary ---- */

/* Writes the summary and parses the file; cJSON_Delete() the result. */
static cJSON *written_and_parsed(const cJSON *summary)
{
    const char *parent = getenv("TMPDIR");
    char path[200], text[8192] = "";
    snprintf(path, sizeof path, "%.150s/test_summary_%ld.json", parent != NULL ? parent : "/tmp", (long)getpid());
    summary_write(summary, path);
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

static void expect_key(const cJSON *object, const char *path, double expected)
{
    expect_number(path, value_of(object, path)->valuedouble, expected);
}

static void test_values_survive(void **unused)
{
    cJSON *summary = cJSON_CreateObject();
    summary_add_text(summary, "model", "gpt \"quoted\"\n");
    summary_add_text(summary, "join", NULL);
    summary_add_number(summary, "bytes_per_step", 12.5e9); /* more than 32 bits hold */
    summary_add_number(summary, "first_loss", NAN);
    summary_add_number(summary, "final_loss", INFINITY);
    assert_true(isinf(value_of(summary, "final_loss")->valuedouble)); /* people read inf; JSON has no word for it */
    cJSON *object = written_and_parsed(summary);
    assert_string_equal(cJSON_GetStringValue(value_of(object, "model")), "gpt \"quoted\"\n");
    expect_key(object, "bytes_per_step", 12.5e9);
    assert_true(cJSON_IsNull(value_of(object, "join")));
    assert_true(cJSON_IsNull(value_of(object, "first_loss")));
    assert_true(cJSON_IsNull(value_of(object, "final_loss")));
    cJSON_Delete(object);
    cJSON_Delete(summary);
}

static void test_times(void **unused)
{
    Stats stats = stats_of(24, false);
    for (long i = 0; i < stats.count; i++) {
        stats.steps[i].seconds[PART_BACKWARD] = 0.5;
        stats.steps[i].seconds[PART_OPTIMIZER] = 0.25;
        stats.steps[i].seconds[PART_DATA] = 0.125;
        stats.steps[i].seconds[PART_COMM] = 4;
        stats.steps[i].seconds[PART_EXPOSED] = 1;
    }
    cJSON *summary = cJSON_CreateObject();
    summary_add_times(summary, &stats, 28, 128);
    stats_free(&stats);
    expect_key(summary, "step_ms.p50", 14000);
    expect_key(summary, "step_ms.first", 1000);
    expect_key(summary, "step_ms.p95", 23000);
    expect_key(summary, "forward_ms", 1400);
    expect_key(summary, "backward_ms", 500);
    expect_key(summary, "optimizer_ms", 250);
    expect_key(summary, "data_ms", 125);
    expect_key(summary, "comm_ms", 4000);
    expect_key(summary, "exposed_comm_ms", 1000);
    expect_key(summary, "first_step_ms.step", 1000);
    expect_key(summary, "first_step_ms.forward", 100);
    expect_key(summary, "hidden_fraction", 0.75);
    expect_key(summary, "comm_share", 1.0 / 14);
    expect_key(summary, "samples_per_s", 2);
    expect_key(summary, "tokens_per_s", 256);
    expect_key(summary, "warmup_steps_excluded", 3);
    cJSON_Delete(summary);
}

static void test_what_there_is_not_is_null(void **unused)
{
    static const char *const nulls[] = {"backward_ms", "optimizer_ms", "data_ms", "comm_ms", "exposed_comm_ms",
                                        "hidden_fraction", "comm_share", "tokens_per_s", "first_step_ms.backward",
                                        "first_step_ms.exposed_comm"};
    Stats stats = stats_of(24, false);
    cJSON *summary = cJSON_CreateObject();
    summary_add_times(summary, &stats, 28, 0);
    stats_free(&stats);
    for (size_t i = 0; i < sizeof nulls / sizeof nulls[0]; i++)
        if (!cJSON_IsNull(value_of(summary, nulls[i])))
            fail_msg("%s is not null, though this run does not have it", nulls[i]);
    cJSON_Delete(summary);
}

int main(void)
{
    return run_cases("stats", cmocka_unit_test(test_percentiles_are_numpys),
                     cmocka_unit_test(test_order_does_not_matter_after_warmup),
                     cmocka_unit_test(test_short_runs_keep_half_of_their_steps),
                     cmocka_unit_test(test_what_was_not_measured_is_nan),
                     cmocka_unit_test(test_long_runs_keep_their_last_steps), cmocka_unit_test(test_values_survive),
                     cmocka_unit_test(test_times), cmocka_unit_test(test_what_there_is_not_is_null));
}
