/* test_checkpoint.c: loading gives the saved bits, and a file of another run is refused with a message that names it.
 * (Broken files: test_checkpoint_damage.c.) */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "base/hash.h"
#include "checkpoint_run.h"
#include "device/device.h"
#include "expect.h"

static void expect_same_states(const char *name, float **actual, float **expected)
{
    for (int i = 0; i < 2; i++) {
        float a[MATRIX], e[MATRIX];
        size_t count = i == 0 ? MATRIX : VECTOR;
        assert_int_equal(actual[i] == NULL, expected[i] == NULL);
        if (expected[i] != NULL) {
            device_to_host(a, actual[i], count * sizeof(float));
            device_to_host(e, expected[i], count * sizeof(float));
            expect_bits_equal(name, a, e, (int64_t)count, "the optimizer's state is saved under another's name");
        }
    }
}

static void expect_same_run(Run *actual, Run *expected)
{
    float a[VALUES], e[VALUES];
    parameters_to_host(&actual->parameters, a);
    parameters_to_host(&expected->parameters, e);
    expect_bits_equal("parameters", a, e, VALUES, "a number went through text, or two tensors were swapped");
    expect_same_states("state1", actual->optimizer.state1, expected->optimizer.state1);
    expect_same_states("state2", actual->optimizer.state2, expected->optimizer.state2);
    assert_int_equal(actual->optimizer.steps[0], expected->optimizer.steps[0]);
    assert_int_equal(actual->optimizer.steps[1], expected->optimizer.steps[1]);
    assert_int_equal(actual->state.step, expected->state.step);
    assert_int_equal(actual->state.good_steps, expected->state.good_steps);
    assert_int_equal(actual->state.place.epoch, expected->state.place.epoch);
    assert_int_equal(actual->state.place.samples, expected->state.place.samples);
    assert_true(actual->state.learning_rate == expected->state.learning_rate); /* both 0, or of run_train() */
    expect_bits_equal("loss scale", &actual->state.loss_scale, &expected->state.loss_scale, 1, "too few digits");
}

/* ---- round trips ---- */

static void test_round_trip_is_bit_for_bit(void **unused)
{
    const OptimizerOptions *all[] = {&adamw, &sgd, &sgd_momentum};
    for (int i = 0; i < 3; i++) {
        Run saved, loaded;
        run_create(&saved, all[i]);
        run_train(&saved);
        checkpoint_save(test_path("round"), &saved.optimizer, &saved.state, RESCUE);
        run_create(&loaded, all[i]);
        errno = ERANGE; /* an earlier error, which must not be reported as the file's */
        checkpoint_load(test_path("round"), &loaded.optimizer, &loaded.state);
        expect_same_run(&loaded, &saved);
        run_free(&saved);
        run_free(&loaded);
    }
}

/* The first number of a tensor, found with the test's own parser of the header. */
static float first_number(const unsigned char *bytes, const char *name)
{
    uint64_t length;
    memcpy(&length, bytes, 8);
    cJSON *header = cJSON_ParseWithLength((const char *)bytes + 8, length);
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(header, name);
    if (entry == NULL)
        fail_msg("the file has no tensor \"%s\"", name);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(entry, "dtype")), "F32");
    size_t begin = (size_t)cJSON_GetArrayItem(cJSON_GetObjectItem(entry, "data_offsets"), 0)->valuedouble;
    float number;
    memcpy(&number, bytes + 8 + length + begin, sizeof number);
    cJSON_Delete(header);
    return number;
}

/* Saving and loading could agree on wrong names, and then other programs could not read the file. */
static void test_names_lead_to_the_right_numbers(void **unused)
{
    static const char *const names[] = {"fc1.weight", "fc1.bias", "optimizer.m.fc1.weight", "optimizer.m.fc1.bias",
                                        "optimizer.v.fc1.weight", "optimizer.v.fc1.bias"};
    const float expected[] = {0.1f, 7, 10, 20, 100, 200}; /* set by run_train() */
    size_t count = 0;
    save(test_path("names"), &adamw);
    unsigned char *bytes = read_file(test_path("names"), &count);
    for (int i = 0; i < 6; i++) {
        float number = first_number(bytes, names[i]);
        expect_bits_equal(names[i], &number, &expected[i], 1, "m and v are swapped, or offsets are wrong");
    }
    free(bytes);
}

/* ---- files of other programs ---- */

static void test_parameters_alone_start_a_fresh_optimizer(void **unused)
{
    /* The header may have any order, spaces may follow it, and other programs add metadata of their own. */
    const char *headers[] = {"{" WEIGHT "," BIAS "}", "{" BIAS "," WEIGHT "}     ",
                             "{\"__metadata__\":{\"format\":\"pt\"}," BIAS "," WEIGHT "}"};
    for (int i = 0; i < 3; i++) {
        Run run;
        run_create(&run, &adamw);
        write_hand_made(test_path("alone"), headers[i], VALUES * 4);
        checkpoint_load(test_path("alone"), &run.optimizer, &run.state);
        const float expected[VALUES] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
        float values[VALUES];
        parameters_to_host(&run.parameters, values);
        expect_bits_equal("parameters", values, expected, VALUES, "offsets count from the end of the header");
        assert_int_equal(run.state.step, 0);
        assert_int_equal(run.optimizer.steps[0], 0);
        run_free(&run);
    }
}

/* ---- training that has diverged ---- */

static void save_with(float weight, float momentum)
{
    Run run;
    run_create(&run, &sgd_momentum);
    run_train(&run);
    device_from_host(run.parameters.items[1]->tensor.data, &weight, sizeof weight);
    device_from_host(run.optimizer.state1[0], &momentum, sizeof momentum);
    checkpoint_save(test_path("good"), &run.optimizer, &run.state, RESCUE);
    run_free(&run);
}

static void save_infinite_weight(void *unused)
{
    save_with(-INFINITY, 1);
}

static void save_nan_as_momentum(void *unused)
{
    save_with(1, NAN);
}

/* A good file, from which training can go on, stays. */
static void test_what_is_not_finite_replaces_no_file(void **unused)
{
    size_t count, count_after;
    save_with(1, 1);
    unsigned char *before = read_file(test_path("good"), &count);
    expect_dies(save_infinite_weight, NULL, 1, "good is not written, because \"fc1.bias\" holds -inf");
    expect_dies(save_nan_as_momentum, NULL, 1, "good is not written, because \"optimizer.momentum.fc1.weight\" holds");
    unsigned char *after = read_file(test_path("good"), &count_after);
    assert_int_equal(count_after, count);
    assert_memory_equal(after, before, count);
    free(before);
    free(after);
}

/* ---- another run's file ---- */

static void load_as_gpt(void *path)
{
    Run run;
    run_create(&run, &adamw);
    strcpy(run.state.model, "--model gpt --heads 4 --optimizer adamw");
    checkpoint_load(path, &run.optimizer, &run.state);
}

static void load_without_momentum(void *path)
{
    Run run;
    run_create(&run, &sgd);
    checkpoint_load(path, &run.optimizer, &run.state);
}

/* A note is not an error: the child ends with status 0, and the note is printed. `key` gets `words` in this run. */
static void load_and_compare(const char *path, const char *key, const char *words)
{
    Run saved, ours;
    run_create(&saved, &adamw);
    run_create(&ours, &adamw);
    snprintf(checkpoint_setting(&ours.state, key)->words, sizeof ours.state.settings[0].words, "%s", words);
    saved.state.settings[0].words[0] = saved.state.settings[1].words[0] = 'X'; /* the file's words take their place */
    checkpoint_load(path, &saved.optimizer, &saved.state);
    checkpoint_compare(path, &saved.state, &ours.state);
    exit(saved.state.step == 17 && saved.state.good_steps == 41 ? 0 : 98);
}

static void load_otherwise(void *path)
{
    load_and_compare(path, "seed", "--seed 5");
}

static void load_on_other_data(void *path)
{
    load_and_compare(path, CHECKPOINT_DATA, "data of 61 samples, checksum 0");
}

static void load_with_relu(void *path)
{
    Run run;
    run_create(&run, &adamw);
    strcpy(run.state.model, "--model mlp --activation relu --optimizer adamw");
    checkpoint_load(path, &run.optimizer, &run.state);
}

static void test_another_run_is_named(void **unused)
{
    save(test_path("adamw"), &adamw);
    save(test_path("momentum"), &sgd_momentum);
    expect_dies(load_as_gpt, test_path("adamw"), 2, "--model mlp --activation gelu --optimizer adamw, this one has "
                "--model gpt --heads 4");
    expect_dies(load_with_relu, test_path("adamw"), 2, "this one has --model mlp --activation relu");
    expect_dies(load, test_path("momentum"), 2, "--optimizer sgd, this one has --model mlp --activation gelu "
                "--optimizer adamw");
    expect_dies(load_without_momentum, test_path("momentum"), 2, "optimizer.momentum.fc1.weight");
    expect_dies(load_otherwise, test_path("adamw"), 0, "--seed 77; this one has --seed 5");
    expect_dies(load_on_other_data, test_path("adamw"), 0, "a run with data of 60 samples, checksum 0123abcd; this one "
                "has data of 61 samples, checksum 0: the weights");
}

/* Writes the right checksum into a file that was changed; computes it as the notes describe. */
static void put_checksum(unsigned char *bytes, size_t count)
{
    uint64_t length;
    char sum[17];
    unsigned char *place = memmem(bytes, count, "\"checksum\":\"", 12);
    assert_non_null(place);
    memcpy(&length, bytes, 8);
    memset(place + 12, '0', 16);
    uint64_t hash = fnv1a(FNV1A_START, bytes + 8 + length, count - 8 - length);
    snprintf(sum, sizeof sum, "%016llx", (unsigned long long)fnv1a(hash, bytes + 8, length));
    memcpy(place + 12, sum, 16);
}

/* Replaces text in a valid file by text of the same length, and corrects the checksum. */
static void spoil(const char *path, const char *text, const char *other)
{
    size_t count = 0;
    save(path, &adamw);
    unsigned char *bytes = read_file(path, &count);
    unsigned char *place = memmem(bytes, count, text, strlen(text));
    assert_non_null(place);
    assert_int_equal(strlen(text), strlen(other));
    memcpy(place, other, strlen(other));
    put_checksum(bytes, count);
    write_file(path, bytes, count);
    free(bytes);
}

static void test_metadata_is_not_trusted(void **unused)
{
    static const char *const changes[][3] = {
        {"\"step\":\"17\"", "\"step\":\"-7\"", "\"step\" is \"-7\""},
        {"\"step\":\"17\"", "\"step\":\"1x\"", "\"step\" is \"1x\""},
        {"\"step\":\"17\"", "\"step\":\"\", ", "not a JSON object"},
        {"\"step\":\"17\"", "\"stop\":\"17\"", "no \"step\""},
        {"\"good_steps\":\"41\"", "\"good_steps\":\"-1\"", "\"good_steps\" is"},
        {"0.333333343", "        nan", "\"loss_scale\" is"},
        {"0.333333343", "        inf", "\"loss_scale\" is"},
        {"0.333333343", "-0.33333334", "\"loss_scale\" is"},
        {"\"epoch\":\"2\"", "\"epoch\":\"x\"", "\"epoch\" is"},
        {"\"epoch_samples\":\"1", "\"epoch_samples\":\"-", "\"epoch_samples\" is"},
        {"\"learning_rate\":\"0.0", "\"learning_rate\":\"nan", "\"learning_rate\" is"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        spoil(test_path("spoilt"), changes[i][0], changes[i][1]);
        expect_dies(load, test_path("spoilt"), 2, changes[i][2]);
    }
}

/* As it was before files had a place in the data or a setting: keys that no version knows. */
static void test_a_file_of_an_older_version_loads(void **unused)
{
    Run run;
    run_create(&run, &adamw);
    spoil(test_path("older"), "\"epoch\"", "\"apoch\"");
    checkpoint_load(test_path("older"), &run.optimizer, &run.state);
    assert_int_equal(run.state.step, 17);
    assert_int_equal(run.state.place.epoch, -1);
    assert_string_equal(run.state.settings[0].words, "--seed 77");
    run_free(&run);
    expect_dies(load_otherwise, test_path("older"), 0, "an older version of this program has written it");
    expect_dies(load_otherwise, test_path("older"), 0, "--seed 77; this one has --seed 5");
    spoil(test_path("older"), "\"data\"", "\"deta\"");
    expect_dies(load_on_other_data, test_path("older"), 0, "an older version of this program has written it");
}

static void test_step_counts_are_bounded(void **unused)
{
    static const struct {
        long step, updates;
        const char *message;
    } wrong[] = {{17, -1, "\"optimizer.step.fc1.bias\" is -1"},
                 {17, 18, "\"optimizer.step.fc1.bias\" is 18; it must be a number from 0 to 17"},
                 {1000000000000000, 17, "\"step\" is \"1000000000000000\""}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        Run run;
        run_create(&run, &adamw);
        run.state.step = wrong[i].step;
        run.optimizer.steps[1] = wrong[i].updates;
        checkpoint_save(test_path("steps"), &run.optimizer, &run.state, RESCUE);
        run_free(&run);
        expect_dies(load, test_path("steps"), 2, wrong[i].message);
    }
}

/* Another program's file need not have a checksum; a file with an optimizer's state must. */
static void test_the_checksum_cannot_be_left_out(void **unused)
{
    size_t count = 0;
    save(test_path("without"), &adamw);
    unsigned char *bytes = read_file(test_path("without"), &count);
    unsigned char *place = memmem(bytes, count, "\"checksum\"", 10);
    assert_non_null(place);
    memcpy(place, "\"chicksum\"", 10);
    write_file(test_path("without"), bytes, count);
    expect_dies(load, test_path("without"), 2, "has no checksum: an older version of this program has written it");
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip_is_bit_for_bit),
        cmocka_unit_test(test_names_lead_to_the_right_numbers),
        cmocka_unit_test(test_parameters_alone_start_a_fresh_optimizer),
        cmocka_unit_test(test_what_is_not_finite_replaces_no_file),
        cmocka_unit_test(test_another_run_is_named),
        cmocka_unit_test(test_metadata_is_not_trusted),
        cmocka_unit_test(test_a_file_of_an_older_version_loads),
        cmocka_unit_test(test_step_counts_are_bounded),
        cmocka_unit_test(test_the_checksum_cannot_be_left_out),
    };
    return cmocka_run_group_tests(tests, checkpoint_tests_start, checkpoint_tests_end);
}
