/* test_checkpoint_damage.c: any broken file ends the program with one line and status 2, and no file is loaded with
 * numbers other than the saved ones.
 * usage: test_checkpoint_damage [FILES [SEED]]: how many files with random damage (default: 100) */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rng.h"
#include "checkpoint_run.h"
#include "expect.h"

/* ---- wrong headers ---- */

typedef struct HandMade {
    const char *header;
    size_t data_bytes; /* floats 0, 1, 2, ... */
    const char *message; /* expected from load() */
} HandMade;

#define BIAS_WITH(fields) "{" WEIGHT ",\"fc1.bias\":{" fields "}}"
#define NOT_BIAS ", this run needs {\"dtype\":\"F32\",\"shape\":[3]}"
#define TEN "1234567890"
#define HUNDRED TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN
#define THOUSAND HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED

static const HandMade lies[] = {
    {"", 0, "not a JSON object"},
    {"{", 0, "not a JSON object"},
    {"{}", 0, "has no tensor"},
    {"[]", 0, "not a JSON object"},
    {"{" WEIGHT "," BIAS "}x", 36, "not a JSON object"},
    {"{\"__metadata__\":{},\"__metadata__\":{}," WEIGHT "," BIAS "}", 36, "twice"},
    {"{\"__metadata__\": {\"checksum\": \"0123456789abcdef\"}, " WEIGHT ", " BIAS "}", 36, "its checksum is"},
    {"{" WEIGHT "}", 24, "has no tensor \"fc1.bias\""},
    {"{\"__metadata__\": {\"checksum\": \"0123456789abcdef\"}, " WEIGHT "}", 24, "has no tensor \"fc1.bias\""},
    {"{" WEIGHT "," BIAS "}", 32, "24 to 36, which are not 12 of the file's 32 bytes"},
    {"{" WEIGHT "," BIAS "}", 40, "holds 40 bytes of data, but its tensors have 36"},
    {"{" WEIGHT "," WEIGHT "," BIAS "}", 36, "twice"},
    {"{" WEIGHT "," BIAS ",\"fc1.bias\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[36,48]}}", 48, "twice"},
    {"{" WEIGHT "," BIAS ",\"fc1.weight\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[36,48]}}", 48, "twice"},
    {"{" WEIGHT "," BIAS ",\"fc2.\\nbias\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[36,40]}}", 40,
     "holds tensor \"fc2.?bias\", which this run does not have"},
    {"{" WEIGHT "," BIAS ",\"" THOUSAND "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[36,40]}}", 40,
     "1234567890\", which this run does not have: was it saved"}, /* cut, or the line would end before this */
    {"{" WEIGHT ",\"fc1.bias\":3}", 36, "\"fc1.bias\" is {}, this run needs"},
    {"{" WEIGHT ",\"fc1.bias\":{\"dtype\":\"" HUNDRED HUNDRED HUNDRED "\"}}", 36, "is something longer" NOT_BIAS},
    {BIAS_WITH("\"shape\":[3],\"data_offsets\":[24,36]"), 36, NOT_BIAS},
    {BIAS_WITH("\"dtype\":\"F8\",\"shape\":[3],\"data_offsets\":[24,36]"), 36, NOT_BIAS},
    {BIAS_WITH("\"dtype\":\"I32\",\"shape\":[3],\"data_offsets\":[24,36]"), 36, NOT_BIAS},
    {BIAS_WITH("\"dtype\":\"F16\",\"shape\":[6],\"data_offsets\":[24,36]"), 36,
     "is {\"dtype\":\"F16\",\"shape\":[6]}" NOT_BIAS},
    {BIAS_WITH("\"dtype\":\"F32\",\"data_offsets\":[24,36]"), 36, NOT_BIAS},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3,1],\"data_offsets\":[24,36]"), 36, NOT_BIAS},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[24,36]"), 36, NOT_BIAS},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[-3],\"data_offsets\":[24,36]"), 36, NOT_BIAS},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[2.5],\"data_offsets\":[24,36]"), 36, NOT_BIAS},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[1e400],\"data_offsets\":[24,36]"), 36, NOT_BIAS},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[1,1,1,1,3],\"data_offsets\":[24,36]"), 36, NOT_BIAS},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[24,24]"), 24, NOT_BIAS},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3]"), 36, "data_offsets"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[24]"), 36, "data_offsets"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[\"24\",36]"), 36, "data_offsets"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[36,24]"), 36, "are 36 to 24, which are not 12"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[-12,0]"), 36, "data_offsets"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[24,28]"), 36, "data_offsets"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[20,32]"), 36,
     "tensors \"fc1.weight\" and \"fc1.bias\" overlap"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]"), 36, "overlap"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[1e400,1e400]"), 36, "data_offsets"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[9007199254740980,9007199254740992]"), 36,
     "data_offsets"},
    {BIAS_WITH("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[18446744073709551616,18446744073709551628]"), 36,
     "data_offsets"},
};

static void test_lies_in_the_header_are_named(void **unused)
{
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        write_hand_made(test_path("lie"), lies[i].header, lies[i].data_bytes);
        expect_dies(load, test_path("lie"), 2, lies[i].message);
    }
}

static void test_lies_about_the_header_length(void **unused)
{
    size_t count = 0;
    save(test_path("length"), &adamw);
    unsigned char *bytes = read_file(test_path("length"), &count);
    const uint64_t lengths[] = {0, 1, count - 7, count, 1u << 31, UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memcpy(bytes, &lengths[i], 8);
        write_file(test_path("length"), bytes, count);
        expect_dies(load, test_path("length"), 2, lengths[i] > count - 8 ? "bytes, but only" : "not a JSON object");
    }
    free(bytes);
}

static void test_no_file_and_a_directory(void **unused)
{
    expect_dies(load, test_path("nowhere"), 2, "nowhere");
    expect_dies(load, test_path(""), 2, "not a regular file");
    expect_dies(load, "/dev/zero", 2, "not a regular file");
}

/* ---- random damage ---- */

/* Skips all other exit functions: a check for leaks in each of thousands of children would take minutes. */
static void leave_at_once(int status, void *unused)
{
    _exit(status);
}

enum { OTHER_NUMBERS = 50 };

static bool same_run(Run *a, Run *b)
{
    bool same = a->state.step == b->state.step && a->state.loss_scale == b->state.loss_scale &&
                a->state.good_steps == b->state.good_steps;
    for (int p = 0; p < a->parameters.count; p++) {
        const size_t bytes = (p == 0 ? MATRIX : VECTOR) * sizeof(float);
        same = same && a->optimizer.steps[p] == b->optimizer.steps[p] &&
               memcmp(a->parameters.items[p]->tensor.data, b->parameters.items[p]->tensor.data, bytes) == 0 &&
               memcmp(a->optimizer.state1[p], b->optimizer.state1[p], bytes) == 0 &&
               memcmp(a->optimizer.state2[p], b->optimizer.state2[p], bytes) == 0;
    }
    return same;
}

/* Loads in a child that prints nothing. Returns its exit status (OTHER_NUMBERS: the loaded numbers are not the saved
 * ones), or 1000 + the signal that killed it. */
static int load_quietly(const char *path)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int nowhere = open("/dev/null", O_WRONLY);
        dup2(nowhere, STDERR_FILENO);
        on_exit(leave_at_once, NULL);
        Run saved, loaded;
        run_create(&saved, &adamw);
        run_train(&saved);
        run_create(&loaded, &adamw);
        checkpoint_load(path, &loaded.optimizer, &loaded.state);
        _exit(same_run(&loaded, &saved) ? 0 : OTHER_NUMBERS);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Each try starts a child, so every fifth byte is tried: one checksum is over all of them. (5 has no factor in common
 * with the sizes of numbers, 4 and 8.) */
enum { STRIDE = 5 };

static void test_truncated_at_every_length(void **unused)
{
    size_t count = 0;
    save(test_path("whole"), &adamw);
    unsigned char *bytes = read_file(test_path("whole"), &count);
    assert_int_equal(load_quietly(test_path("whole")), 0);
    for (size_t length = 0; length < count; length += STRIDE) {
        write_file(test_path("cut"), bytes, length);
        int status = load_quietly(test_path("cut"));
        if (status != 2)
            fail_msg("a file cut off after %zu of %zu bytes: expected exit status 2, got %d (0: it was loaded; above "
                     "1000: a signal, most likely a read past the end of the file)", length, count, status);
    }
    free(bytes);
}

static void test_every_byte_counts(void **unused)
{
    size_t count = 0;
    save(test_path("whole"), &adamw);
    unsigned char *bytes = read_file(test_path("whole"), &count);
    for (size_t place = 0; place < count; place += STRIDE) {
        unsigned char bit = (unsigned char)(1 << place % 8);
        bytes[place] ^= bit;
        write_file(test_path("flipped"), bytes, count);
        bytes[place] ^= bit;
        int status = load_quietly(test_path("flipped"));
        if (status != 2)
            fail_msg("bit %zu of byte %zu of %zu flipped: expected exit status 2, got %d (0: loaded, %d: with other "
                     "numbers)", place % 8, place, count, status, OTHER_NUMBERS);
    }
    free(bytes);
}

static int files = 100, seed = 1;

static void test_random_damage_is_harmless(void **unused)
{
    size_t count = 0;
    int refused = 0;
    Rng rng;
    rng_seed(&rng, (uint64_t)seed);
    save(test_path("whole"), &adamw);
    unsigned char *bytes = read_file(test_path("whole"), &count);
    unsigned char *damaged = malloc(count);
    assert_non_null(damaged);
    for (int i = 0; i < files; i++) {
        memcpy(damaged, bytes, count);
        for (uint64_t flips = 1 + rng_below(&rng, 3); flips > 0; flips--)
            damaged[rng_below(&rng, count)] = (unsigned char)rng_below(&rng, 256);
        write_file(test_path("damaged"), damaged, count);
        int status = load_quietly(test_path("damaged"));
        if (status != 0 && status != 2)
            fail_msg("damaged file %d: expected exit status 0 (loaded) or 2 (refused), got %d (%d: loaded with other "
                     "numbers; above 1000: a signal)", i, status, OTHER_NUMBERS);
        refused += status == 2;
    }
    printf("%d damaged files: %d refused, %d loaded with the numbers that were saved\n", files, refused, files - refused);
    assert_in_range(refused, files / 4, files);
    free(bytes);
    free(damaged);
}

int main(int argc, char **argv)
{
    files = argc > 1 ? atoi(argv[1]) : files;
    seed = argc > 2 ? atoi(argv[2]) : seed;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies_in_the_header_are_named),
        cmocka_unit_test(test_lies_about_the_header_length),
        cmocka_unit_test(test_no_file_and_a_directory),
        cmocka_unit_test(test_truncated_at_every_length),
        cmocka_unit_test(test_every_byte_counts),
        cmocka_unit_test(test_random_damage_is_harmless),
    };
    return cmocka_run_group_tests(tests, checkpoint_tests_start, checkpoint_tests_end);
}
