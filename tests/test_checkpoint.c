/* test_checkpoint.c: what is saved comes back to the bit, and no file, however broken, does more than end the
 * program with one line and status 2.
 *
 * Files are written to a directory of their own under $TMPDIR or /tmp. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rng.h"
#include "device/device.h"
#include "expect.h"
#include "train/checkpoint.h"

enum { MATRIX = 6, VECTOR = 3, VALUES = MATRIX + VECTOR };

static char directory[200];

/* The name's path in the tests' directory; valid until the next call but one. */
static const char *path_of(const char *name)
{
    static char paths[2][256];
    static int turn;
    turn = !turn;
    snprintf(paths[turn], sizeof paths[turn], "%s/%.40s", directory, name);
    return paths[turn];
}

static void write_file(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(bytes, 1, count, file) != count || fclose(file) != 0)
        exit(99);
}

/* The whole file; free() it. */
static unsigned char *read_file(const char *path, size_t *count)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    unsigned char *bytes = malloc(1 << 20);
    assert_non_null(bytes);
    *count = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

/* ---- a small model with its optimizer ---- */

typedef struct Run {
    ParameterList parameters;
    Optimizer optimizer;
    CheckpointState state;
} Run;

static const OptimizerOptions adamw = {.kind = OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
static const OptimizerOptions sgd = {.kind = OPTIMIZER_SGD};
static const OptimizerOptions sgd_momentum = {.kind = OPTIMIZER_SGD, .momentum = 0.9f};

/* As a run starts: everything is zero. */
static void run_create(Run *run, const OptimizerOptions *options)
{
    static const int64_t matrix[] = {2, 3}, vector[] = {3};
    *run = (Run){.state = {.model = "mlp", .loss_scale = 1, .seed = UINT64_MAX, .batch_size = 64, .accumulate = 2,
                           .world_size = 3, .precision = "fp16"}};
    parameters_add(&run->parameters, "fc1.weight", 2, matrix);
    parameters_add(&run->parameters, "fc1.bias", 1, vector);
    optimizer_create(&run->optimizer, options, &run->parameters);
}

static void run_free(Run *run)
{
    optimizer_free(&run->optimizer);
    parameters_free(&run->parameters);
}

static void fill(float *device, int count, float first)
{
    float values[MATRIX];
    for (int i = 0; i < count; i++)
        values[i] = first + 0.1f * (float)i;
    device_from_host(device, values, (size_t)count * sizeof(float));
}

/* As after some steps: every number is another one, and the awkward ones are among them. */
static void run_train(Run *run)
{
    const uint32_t nan_with_payload = 0xffc12345;
    float values[VALUES] = {0.1f, -0.0f, 1e-45f, 3.4e38f, 0, 1.0f / 3, 7, 8, 9};
    memcpy(&values[4], &nan_with_payload, sizeof(float));
    parameters_from_host(&run->parameters, values);
    for (int i = 0; i < run->parameters.count; i++) {
        int count = i == 0 ? MATRIX : VECTOR;
        if (run->optimizer.state1[i] != NULL)
            fill(run->optimizer.state1[i], count, 10.0f * (float)(i + 1));
        if (run->optimizer.state2[i] != NULL)
            fill(run->optimizer.state2[i], count, 100.0f * (float)(i + 1));
        run->optimizer.steps[i] = 16 + i;
    }
    run->state.step = 17;
    run->state.loss_scale = 1.0f / 3;
    run->state.good_steps = 41;
}

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
    expect_bits_equal("loss scale", &actual->state.loss_scale, &expected->state.loss_scale, 1, "too few digits");
}

static void save(const char *path, const OptimizerOptions *options)
{
    Run run;
    run_create(&run, options);
    run_train(&run);
    checkpoint_save(path, &run.parameters, &run.optimizer, &run.state);
    run_free(&run);
}

/* Loads into a new run with AdamW; for expect_dies(). */
static void load(void *path)
{
    Run run;
    run_create(&run, &adamw);
    checkpoint_load(path, &run.parameters, &run.optimizer, &run.state);
    run_free(&run);
}

/* ---- round trips ---- */

static void test_round_trip_is_bit_for_bit(void **unused)
{
    (void)unused;
    const OptimizerOptions *all[] = {&adamw, &sgd, &sgd_momentum};
    for (int i = 0; i < 3; i++) {
        Run saved, loaded;
        run_create(&saved, all[i]);
        run_train(&saved);
        checkpoint_save(path_of("round"), &saved.parameters, &saved.optimizer, &saved.state);
        run_create(&loaded, all[i]);
        assert_true(checkpoint_load(path_of("round"), &loaded.parameters, &loaded.optimizer, &loaded.state));
        expect_same_run(&loaded, &saved);
        run_free(&saved);
        run_free(&loaded);
    }
}

static void test_saving_leaves_no_temporary_file(void **unused)
{
    (void)unused;
    save(path_of("once"), &adamw);
    save(path_of("once"), &adamw); /* replaces it */
    assert_int_equal(access(path_of("once"), R_OK), 0);
    assert_int_not_equal(access(path_of("once.tmp"), F_OK), 0);
}

static void save_into_missing_directory(void *unused)
{
    (void)unused;
    save(path_of("missing/file"), &adamw);
}

static void test_a_file_that_cannot_be_written_is_a_fault(void **unused)
{
    (void)unused;
    expect_dies(save_into_missing_directory, NULL, 1, "missing/file");
}

/* ---- files of another hand ---- */

typedef struct HandMade {
    const char *header;
    size_t data_bytes; /* floats 0, 1, 2, ... */
    const char *message; /* what load() must say; NULL: it loads */
} HandMade;

#define WEIGHT "\"fc1.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define BIAS "\"fc1.bias\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[24,36]}"
#define BIAS_WITH(fields) "{" WEIGHT ",\"fc1.bias\":{" fields "}}"

static void write_hand_made(const char *path, const char *header, size_t data_bytes)
{
    char bytes[2048];
    uint64_t length = strlen(header);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data_bytes / 4; i++)
        memcpy(bytes + 8 + length + 4 * i, &(float){(float)i}, 4);
    write_file(path, bytes, 8 + length + data_bytes);
}

static void test_parameters_alone_start_a_fresh_optimizer(void **unused)
{
    (void)unused;
    /* The order in the header is free, spaces may follow it, and other programs put in metadata of their own. */
    const char *headers[] = {"{" WEIGHT "," BIAS "}", "{" BIAS "," WEIGHT "}     ",
                             "{\"__metadata__\":{\"format\":\"pt\"}," BIAS "," WEIGHT "}"};
    for (int i = 0; i < 3; i++) {
        Run run;
        run_create(&run, &adamw);
        write_hand_made(path_of("alone"), headers[i], VALUES * 4);
        assert_false(checkpoint_load(path_of("alone"), &run.parameters, &run.optimizer, &run.state));
        const float expected[VALUES] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
        float values[VALUES];
        parameters_to_host(&run.parameters, values);
        expect_bits_equal("parameters", values, expected, VALUES, "offsets count from the end of the header");
        assert_int_equal(run.state.step, 0);
        assert_int_equal(run.optimizer.steps[0], 0);
        run_free(&run);
    }
}

static const HandMade lies[] = {
    {"", 0, "not a JSON object"},
    {"{", 0, "not a JSON object"},
    {"{}", 0, "holds no tensors"},
    {"[]", 0, "not a JSON object"},
    {" {" WEIGHT "," BIAS "}", 36, "not a JSON object"},
    {"{" WEIGHT "," BIAS "}x", 36, "not a JSON object"},
    {"{\"__metadata__\":{\"step\":1}," WEIGHT "," BIAS "}", 36, "strings"},
    {"{\"__metadata__\":{},\"__metadata__\":{}," WEIGHT "," BIAS "}", 36, "__metadata__"},
    {"{" WEIGHT "}", 24, "has no tensor \"fc1.bias\""},
    {"{" WEIGHT "}", 36, "holds 36 bytes of data, but its tensors have 24"},
    {"{" WEIGHT "," BIAS "}", 32, "says that it is at bytes 24 to 36 of the data, but the file holds 32"},
    {"{" WEIGHT "," BIAS "}", 40, "holds 40 bytes of data, but its tensors have 36"},
    {"{" WEIGHT "," WEIGHT "," BIAS "}", 36, "overlap"},
    {"{" WEIGHT "," BIAS ",\"fc1.bias\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[36,48]}}", 48, "twice"},
    {"{" WEIGHT "," BIAS ",\"fc2.\\nbias\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[36,40]}}", 40,
     "holds tensor \"fc2.?bias\", which this run does not have"},
    {"{" WEIGHT ",\"fc1.bias\":3}", 36, "dtype"},
    {BIAS_WITH("\"shape\":[3],\"data_offsets\":[24,36]"), 36, "dtype"},
    {BIAS_WITH("\"dtype\":\"F8\",\"shape\":[3],\"data_offsets\":[24,36]"), 36, "dtype"},
    {BIAS_WITH("\"dtype\":\"I32\",\"shape\":[3],\"data_offsets\":[24,36]"), 36, "is I32 [3], this run needs F32 [3]"},
    {BIAS_WITH("\"dtype\":\"F16\",\"shape\":[6],\"data_offsets\":[24,36]"), 36, "is F16 [6], this run needs F32 [3]"},
    {BIAS_WITH("\"dtype\":\"F32\",\"data_offsets\":[24,36]"), 36, "shape"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3,1],\"data_offsets\":[24,36]"), 36, "is F32 [3, 1], this run needs"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[24,36]"), 36, "has 12 bytes, which does not fit"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[-3],\"data_offsets\":[24,36]"), 36, "shape"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[2.5],\"data_offsets\":[24,36]"), 36, "shape"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[1e400],\"data_offsets\":[24,36]"), 36, "shape"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[1,1,1,1,3],\"data_offsets\":[24,36]"), 36, "shape"},
    /* 2^32 * 2^32 elements are 0 in 64 bits, 2^62 elements are 0 bytes in 64 bits */
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[24,24]"), 24, "shape"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[2147483648,2147483648],\"data_offsets\":[24,24]"), 24, "does not fit"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[24]"), 36, "data_offsets"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[36,24]"), 36, "says that it is at bytes"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[-12,0]"), 36, "data_offsets"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[20,32]"), 36, "overlap"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[28,40]"), 40, "leave a gap"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[9007199254740980,9007199254740992]"), 36,
     "but the file holds 36"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[18446744073709551616,18446744073709551628]"), 36,
     "data_offsets"},
};

static void test_lies_in_the_header_are_named(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        write_hand_made(path_of("lie"), lies[i].header, lies[i].data_bytes);
        expect_dies(load, (void *)path_of("lie"), 2, lies[i].message);
    }
}

static void test_lies_about_the_header_length(void **unused)
{
    (void)unused;
    size_t count = 0;
    save(path_of("length"), &adamw);
    unsigned char *bytes = read_file(path_of("length"), &count);
    const uint64_t lengths[] = {0, 1, count - 7, count, 1u << 31, UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memcpy(bytes, &lengths[i], 8);
        write_file(path_of("length"), bytes, count);
        expect_dies(load, (void *)path_of("length"), 2, "header");
    }
    free(bytes);
}

static void test_no_file_and_a_directory(void **unused)
{
    (void)unused;
    expect_dies(load, (void *)path_of("nowhere"), 2, "nowhere");
    expect_dies(load, directory, 2, "not a regular file");
    expect_dies(load, "/dev/zero", 2, "not a regular file");
}

/* ---- another run's file ---- */

static void load_as_gpt(void *path)
{
    Run run;
    run_create(&run, &adamw);
    strcpy(run.state.model, "gpt");
    checkpoint_load(path, &run.parameters, &run.optimizer, &run.state);
}

static void load_without_momentum(void *path)
{
    Run run;
    run_create(&run, &sgd);
    checkpoint_load(path, &run.parameters, &run.optimizer, &run.state);
}

/* A note is no error: the child ends with 0 by itself, and the note is there to be seen. */
static void load_with_other_seed(void *path)
{
    Run run;
    run_create(&run, &adamw);
    run.state.seed = 5;
    checkpoint_load(path, &run.parameters, &run.optimizer, &run.state);
    exit(run.state.seed == 5 && run.state.step == 17 ? 0 : 98);
}

static void test_another_run_is_named(void **unused)
{
    (void)unused;
    save(path_of("adamw"), &adamw);
    save(path_of("momentum"), &sgd_momentum);
    expect_dies(load_as_gpt, (void *)path_of("adamw"), 2, "--model mlp, this run has --model gpt");
    expect_dies(load, (void *)path_of("momentum"), 2, "--optimizer sgd, this run has --optimizer adamw");
    expect_dies(load_without_momentum, (void *)path_of("momentum"), 2, "optimizer.momentum.fc1.bias");
    expect_dies(load_with_other_seed, (void *)path_of("adamw"), 0, "--seed 18446744073709551615, this one has 5");
}

/* Replaces text in a valid file by text of the same length. */
static void spoil(const char *path, const char *text, const char *other)
{
    size_t count = 0;
    save(path, &adamw);
    unsigned char *bytes = read_file(path, &count);
    unsigned char *place = memmem(bytes, count, text, strlen(text));
    assert_non_null(place);
    assert_int_equal(strlen(text), strlen(other));
    memcpy(place, other, strlen(other));
    write_file(path, bytes, count);
    free(bytes);
}

static void test_metadata_is_not_trusted(void **unused)
{
    (void)unused;
    static const char *const changes[][3] = {
        {"\"step\":\"17\"", "\"step\":\"-7\"", "\"step\" is \"-7\""},
        {"\"step\":\"17\"", "\"step\":\"1x\"", "\"step\" is \"1x\""},
        {"\"step\":\"17\"", "\"step\":\"\", ", "not a JSON object"},
        {"\"step\":\"17\"", "\"stop\":\"17\"", "no \"step\""},
        {"\"good_steps\":\"41\"", "\"good_steps\":\"-1\"", "\"good_steps\" is"},
        {"0.333333343", "        nan", "\"loss_scale\" is"},
        {"0.333333343", "        inf", "\"loss_scale\" is"},
        {"0.333333343", "-0.33333334", "\"loss_scale\" is"},
        {"18446744073709551615", "18446744073709551616", "\"seed\" is"},
        {"18446744073709551615", "                  -1", "\"seed\" is"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        spoil(path_of("spoilt"), changes[i][0], changes[i][1]);
        expect_dies(load, (void *)path_of("spoilt"), 2, changes[i][2]);
    }
}

static void test_negative_step_count(void **unused)
{
    (void)unused;
    Run run;
    run_create(&run, &adamw);
    run.optimizer.steps[1] = -1;
    checkpoint_save(path_of("negative"), &run.parameters, &run.optimizer, &run.state);
    run_free(&run);
    expect_dies(load, (void *)path_of("negative"), 2, "\"optimizer.step.fc1.bias\" is -1");
}

/* ---- damage at random ---- */

/* Nothing more happens at exit: a check for leaks in each of thousands of children would take minutes. */
static void leave_at_once(int status, void *unused)
{
    (void)unused;
    _exit(status);
}

/* load() in a child without a voice; returns its exit status, or 1000 + the signal that killed it. */
static int load_quietly(const char *path)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int nowhere = open("/dev/null", O_WRONLY);
        dup2(nowhere, STDERR_FILENO);
        on_exit(leave_at_once, NULL);
        load((void *)path);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void test_truncated_at_every_length(void **unused)
{
    (void)unused;
    size_t count = 0;
    save(path_of("whole"), &adamw);
    unsigned char *bytes = read_file(path_of("whole"), &count);
    assert_int_equal(load_quietly(path_of("whole")), 0);
    for (size_t length = 0; length < count; length++) {
        write_file(path_of("cut"), bytes, length);
        int status = load_quietly(path_of("cut"));
        if (status != 2)
            fail_msg("a file cut off after %zu of %zu bytes: expected exit status 2, got %d (0: it was loaded; above "
                     "1000: a signal, most likely a read past the end of the file)", length, count, status);
    }
    free(bytes);
}

static void test_random_damage_never_crashes(void **unused)
{
    (void)unused;
    enum { FILES = 2000 };
    size_t count = 0;
    int refused = 0;
    Rng rng;
    rng_seed(&rng, 1);
    save(path_of("whole"), &adamw);
    unsigned char *bytes = read_file(path_of("whole"), &count);
    unsigned char *damaged = malloc(count);
    assert_non_null(damaged);
    for (int i = 0; i < FILES; i++) {
        memcpy(damaged, bytes, count);
        for (uint64_t flips = 1 + rng_below(&rng, 3); flips > 0; flips--)
            damaged[rng_below(&rng, count)] = (unsigned char)rng_below(&rng, 256);
        write_file(path_of("damaged"), damaged, count);
        int status = load_quietly(path_of("damaged"));
        if (status != 0 && status != 2)
            fail_msg("damaged file %d: expected exit status 0 (loaded) or 2 (refused), got %d (above 1000: a signal)",
                     i, status);
        refused += status == 2;
    }
    assert_in_range(refused, FILES / 4, FILES - 1); /* the header's bytes are most of the file, but not all of it */
    free(bytes);
    free(damaged);
}

static int remove_directory(void **unused)
{
    (void)unused;
    static const char *const names[] = {"round", "once", "alone", "lie",      "length",   "adamw",
                                        "momentum", "spoilt", "negative", "whole", "cut", "damaged"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unlink(path_of(names[i]));
    return rmdir(directory);
}

int main(void)
{
    const char *parent = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%.150s/test_checkpoint_XXXXXX", parent != NULL ? parent : "/tmp");
    if (mkdtemp(directory) == NULL) {
        perror(directory);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip_is_bit_for_bit),
        cmocka_unit_test(test_saving_leaves_no_temporary_file),
        cmocka_unit_test(test_a_file_that_cannot_be_written_is_a_fault),
        cmocka_unit_test(test_parameters_alone_start_a_fresh_optimizer),
        cmocka_unit_test(test_lies_in_the_header_are_named),
        cmocka_unit_test(test_lies_about_the_header_length),
        cmocka_unit_test(test_no_file_and_a_directory),
        cmocka_unit_test(test_another_run_is_named),
        cmocka_unit_test(test_metadata_is_not_trusted),
        cmocka_unit_test(test_negative_step_count),
        cmocka_unit_test(test_truncated_at_every_length),
        cmocka_unit_test(test_random_damage_never_crashes),
    };
    return cmocka_run_group_tests(tests, NULL, remove_directory);
}
