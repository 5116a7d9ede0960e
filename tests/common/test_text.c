/* test_text.c: a text's windows are its bytes in order, and files that cannot be read whole are rejected. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "data/dataset.h"
#include "data_files.h"
#include "expect.h"

#define DEFAULT_TEXT "/usr/share/doc/jargon-text/jargon.txt.gz"

enum { CONTEXT = 8, TEXT_BYTES = 248 }; /* 224 bytes for training, 24 for evaluation */

static unsigned char text[TEXT_BYTES]; /* byte i is i, so a token shows its place in the text */

static void open_text(void *name)
{
    Dataset dataset;
    dataset_open_text(&dataset, name != NULL ? path_of(name) : NULL, SPLIT_TRAIN, CONTEXT, 0, true);
}

static void open_with_context(void *context)
{
    Dataset dataset;
    dataset_open_text(&dataset, path_of("text.txt"), SPLIT_TRAIN, *(int64_t *)context, 0, true);
}

/* Checks that window i covers text[start + i * CONTEXT ...] and its targets are one byte ahead; returns start. */
static int check_windows(const Dataset *dataset, long epoch)
{
    int start = -1;
    for (int64_t i = 0; i < dataset->size; i++) {
        int32_t two_tokens[2][CONTEXT], two_targets[2][CONTEXT];
        const int32_t *tokens = two_tokens[1], *targets = two_targets[1];
        dataset_get(dataset, epoch, (int64_t[]){0, i}, 2, two_tokens, two_targets);
        start = i == 0 ? tokens[0] : start;
        for (int t = 0; t < CONTEXT; t++) {
            int expected = start + (int)i * CONTEXT + t;
            if (tokens[t] != expected || targets[t] != expected + 1) {
                fail_msg("epoch %ld, window %ld, position %d: token %d and target %d, expected %d and %d: windows must "
                         "follow each other without gap or overlap, and targets be one byte ahead",
                         epoch, (long)i, t, tokens[t], targets[t], expected, expected + 1);
            }
        }
    }
    return start;
}

static void text_is_cut_into_windows(void **state)
{
    static const char *const names[] = {"text.txt", "text.txt.gz"};
    for (int file = 0; file < 2; file++) {
        Dataset dataset;
        write_file(names[file], text, sizeof text);
        dataset_open_text(&dataset, path_of(names[file]), SPLIT_TRAIN, CONTEXT, 4, true);
        assert_string_equal(dataset.source, path_of(names[file]));
        assert_int_equal(dataset.size, 27); /* 27 * 8 tokens, 7 of largest shift, 1 last target: all 224 bytes */
        unsigned starts = 0;
        for (long epoch = 0; epoch < 100; epoch++) {
            int start = check_windows(&dataset, epoch);
            assert_in_range(start, 0, CONTEXT - 1);
            assert_int_equal(start, check_windows(&dataset, epoch));
            starts |= 1u << start;
        }
        assert_int_equal(starts, 0xff); /* every shift below the context occurs */
        dataset_close(&dataset);

        dataset_open_text(&dataset, path_of(names[file]), SPLIT_EVAL, CONTEXT, 4, true);
        assert_int_equal(dataset.size, 2); /* not 3: a third window's last target would be beyond the text */
        for (long epoch = 0; epoch < 20; epoch++) {
            assert_int_equal(check_windows(&dataset, epoch), 224);
        }
        dataset_close(&dataset);
    }
}

static void text_shift_depends_on_the_seed(void **state)
{
    write_file("text.txt", text, sizeof text);
    int differences = 0;
    for (long epoch = 0; epoch < 20; epoch++) {
        Dataset a, b;
        dataset_open_text(&a, path_of("text.txt"), SPLIT_TRAIN, CONTEXT, 1, true);
        dataset_open_text(&b, path_of("text.txt"), SPLIT_TRAIN, CONTEXT, 2, true);
        differences += check_windows(&a, epoch) != check_windows(&b, epoch);
        dataset_close(&a);
        dataset_close(&b);
    }
    assert_true(differences > 0);
}

/* A checkpoint may be resumed by a later version of the program, which must then cut the text at the same places. */
static void text_shifts_never_change(void **state)
{
    static const int starts[] = {7, 7, 4, 6, 3, 6, 7, 1};
    Dataset dataset;
    write_file("text.txt", text, sizeof text);
    dataset_open_text(&dataset, path_of("text.txt"), SPLIT_TRAIN, CONTEXT, 4, true);
    for (long epoch = 0; epoch < 8; epoch++) {
        assert_int_equal(check_windows(&dataset, epoch), starts[epoch]);
    }
    dataset_close(&dataset);
}

/* ---- masked targets ---- */

/* Checks that a masked target is MASKED_TARGET and any other what it is without a mask; returns the masked positions of
 * the sample that is in place `place` of a batch with sample 0 in all other places: bit t for position t. */
static unsigned mask_of(Dataset *dataset, float mask, long epoch, int64_t sample, int place)
{
    int64_t samples[3] = {0, 0, 0};
    int32_t inputs[3][CONTEXT], targets[3][CONTEXT];
    unsigned masked = 0;
    samples[place] = sample;
    dataset->mask = mask;
    dataset_get(dataset, epoch, samples, 3, inputs, targets);
    for (int t = 0; t < CONTEXT; t++) {
        masked |= targets[place][t] == MASKED_TARGET ? 1u << t : 0;
        if (targets[place][t] != MASKED_TARGET && targets[place][t] != inputs[place][t] + 1)
            fail_msg("epoch %ld, sample %ld, position %d: target %d after token %d", epoch, (long)sample, t,
                     targets[place][t], inputs[place][t]);
    }
    int64_t terms = CONTEXT - __builtin_popcount(masked);
    if (dataset_terms(dataset, targets[place], 1) != terms)
        fail_msg("dataset_terms() says %ld terms, but %ld targets are not masked",
                 (long)dataset_terms(dataset, targets[place], 1), (long)terms);
    return masked;
}

/* The same for every rank that may have the sample, in any micro-batch: its place in a batch does not matter. */
static void mask_belongs_to_the_sample(void **state)
{
    Dataset dataset;
    int masked = 0, other_epoch = 0, other_sample = 0, other_seed = 0;
    write_file("text.txt", text, sizeof text);
    dataset_open_text(&dataset, path_of("text.txt"), SPLIT_TRAIN, CONTEXT, 4, true);
    for (long epoch = 0; epoch < 40; epoch++) {
        for (int64_t sample = 1; sample < dataset.size; sample++) {
            unsigned mask = mask_of(&dataset, 0.7f, epoch, sample, 0);
            assert_int_equal(mask, mask_of(&dataset, 0.7f, epoch, sample, 2));
            assert_int_equal(mask_of(&dataset, 0, epoch, sample, 1), 0);
            masked += __builtin_popcount(mask);
            other_epoch += mask != mask_of(&dataset, 0.7f, epoch + 1, sample, 0);
            other_sample += mask != mask_of(&dataset, 0.7f, epoch, sample - 1, 0);
            dataset.seed = 5;
            other_seed += mask != mask_of(&dataset, 0.7f, epoch, sample, 0);
            dataset.seed = 4;
        }
    }
    assert_in_range(masked, 5600, 6000); /* 70 % of 40 * 26 * 8 are 5824; the deviation is 42 */
    assert_in_range(other_epoch, 900, 1040);
    assert_in_range(other_sample, 900, 1040);
    assert_in_range(other_seed, 900, 1040);
    dataset_close(&dataset);
}

/* Like the shifts: a later version must go on with the same masks. */
static void masks_never_change(void **state)
{
    static const unsigned masks[] = {0xf1, 0xd7, 0x4c, 0xae};
    Dataset dataset;
    write_file("text.txt", text, sizeof text);
    dataset_open_text(&dataset, path_of("text.txt"), SPLIT_TRAIN, CONTEXT, 4, true);
    for (int i = 0; i < 4; i++)
        assert_int_equal(mask_of(&dataset, 0.5f, i / 2, 5 + i % 2, 0), masks[i]);
    dataset_close(&dataset);
}

static void text_must_fill_some_windows(void **state)
{
    Dataset dataset;
    write_file("text.txt", text, 170);
    dataset_open_text(&dataset, path_of("text.txt"), SPLIT_EVAL, CONTEXT, 0, true);
    assert_int_equal(dataset.size, 2);
    dataset_close(&dataset);
    write_file("text.txt", text, 169);
    expect_dies(open_text, "text.txt", 2, "holds 169 bytes; for windows of 8 bytes it needs 170");
    write_file("text.txt", "", 0);
    expect_dies(open_text, "text.txt", 2, "holds 0 bytes");
    write_file("text.txt", text, TEXT_BYTES - 1);
    dataset_open_text(&dataset, path_of("text.txt"), SPLIT_TRAIN, CONTEXT, 0, true);
    assert_int_equal(dataset.size, 26); /* one byte less than 27 windows need */
    dataset_close(&dataset);
}

static void contexts_have_bounds(void **state)
{
    Dataset dataset;
    write_file("text.txt", text, sizeof text);
    dataset_open_text(&dataset, path_of("text.txt"), SPLIT_TRAIN, 1, 0, true);
    assert_int_equal(dataset.size, 223);
    dataset_close(&dataset);
    expect_dies(open_with_context, &(int64_t){0}, 1, "a context of 0 tokens");
    expect_dies(open_with_context, &(int64_t){INT32_MAX}, 2, "holds 248 bytes; for windows of 2147483647 bytes");
    expect_dies(open_with_context, &(int64_t){INT32_MAX + INT64_C(1)}, 1, "a context of 2147483648 tokens");
}

static void open_without_descriptors(void *name)
{
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, 0});
    open_text(name);
}

static void unreadable_files_are_explained(void **state)
{
    expect_dies(open_text, ".", 2, "/.': Is a directory");
    expect_dies(open_text, "absent.txt", 2, "error: --data: there is no file '");
    expect_dies(open_text, "absent.txt", 2, "/absent.txt'; it must be");
    assert_int_equal(symlink("/dev/null", path_of("device")), 0);
    expect_dies(open_text, "device", 2, "/device' is not a regular file");
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    expect_dies(open_text, "pipe", 2, "/pipe' is not a regular file"); /* and does not wait for a writer */
    write_file("text.txt", text, sizeof text);
    expect_dies(open_without_descriptors, "text.txt", 2, "/text.txt': Too many open files");
    write_file("text.txt.gz", text, sizeof text);
    assert_int_equal(truncate(path_of("text.txt.gz"), 40), 0);
    expect_dies(open_text, "text.txt.gz", 2, "is cut short");
    write_file("packed.txt.gz", text, sizeof text);
    expect_dies(open_text, "packed.txt", 2, "/packed.txt.gz' exists");
    write_file("packed.txt", "", 0);
    expect_dies(open_text, "packed.txt", 2, "/packed.txt.gz' exists; remove the empty file");
}

/* ---- long files ---- */

enum { MIB = 1 << 20 };

/* A file is read in pieces: here, the last one has a single byte. */
static void long_text_is_read_whole(void **state)
{
    unsigned char *bytes = malloc(2 * MIB + 1);
    assert_non_null(bytes);
    for (int i = 0; i < 2 * MIB + 1; i++)
        bytes[i] = (unsigned char)((unsigned)i * 2654435761u >> 24);
    write_file("text.txt", bytes, 2 * MIB + 1);
    int64_t size;
    unsigned char *got = read_file_or_die(path_of("text.txt"), &size);
    assert_int_equal(size, 2 * MIB + 1);
    assert_memory_equal(got, bytes, 2 * MIB + 1);
    free(got);

    Dataset dataset;
    dataset_open_text(&dataset, path_of("text.txt"), SPLIT_EVAL, CONTEXT, 0, true);
    assert_int_equal(dataset_checksum(&dataset), crc32(0, bytes + 2 * MIB + 1 - 2 * MIB / 10, 2 * MIB / 10));
    dataset_close(&dataset);
    free(bytes);
}

/* Appends the file "zeros.gz" to a gzip file. Gzip files in a row unpack to their contents in a row. */
static void append_zeros(const char *name, int times)
{
    char packed[4096];
    FILE *zeros = fopen(path_of("zeros.gz"), "rb"), *file = fopen(path_of(name), "ab");
    assert_non_null(zeros);
    assert_non_null(file);
    size_t size = fread(packed, 1, sizeof packed, zeros);
    while (times-- > 0)
        assert_int_equal(fwrite(packed, 1, size, file), size);
    fclose(zeros);
    fclose(file);
}

/* 64 MiB are allowed whatever the file's size is, and a file that is no gzip file may be longer. */
static void gzip_files_may_not_fill_the_memory(void **state)
{
    static const char zeros[MIB];
    int64_t size;
    write_file("zeros.gz", zeros, sizeof zeros);
    append_zeros("text.txt.gz", 64);
    free(read_file_or_die(path_of("text.txt.gz"), &size));
    assert_int_equal(size, 64 * MIB);
    write_file("zeros.gz", zeros, 1);
    append_zeros("text.txt.gz", 1);
    expect_dies(open_text, "text.txt.gz", 2, "unpacks to more than 25 times its size of ");

    write_file("text.txt", "", 0);
    assert_int_equal(truncate(path_of("text.txt"), 64 * MIB + 1), 0);
    free(read_file_or_die(path_of("text.txt"), &size));
    assert_int_equal(size, 64 * MIB + 1);
}

/* ---- the text that a package installs ---- */

static void open_text_not_installed(void *argument)
{
    hide_installed_data();
    open_text(NULL);
}

static void installed_text_is_read(void **state)
{
    expect_dies(open_text_not_installed, NULL, 2, "install the Debian/Ubuntu package jargon-text");
    if (access(DEFAULT_TEXT, F_OK) != 0)
        skip();
    Dataset dataset;
    dataset_open_text(&dataset, NULL, SPLIT_TRAIN, 128, 0, false);
    assert_true(dataset.size > 1000);
    dataset_close(&dataset);
}

int main(void)
{
    for (int i = 0; i < TEXT_BYTES; i++) {
        text[i] = (unsigned char)i;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(text_is_cut_into_windows, remove_files),
        cmocka_unit_test_teardown(text_shift_depends_on_the_seed, remove_files),
        cmocka_unit_test_teardown(text_shifts_never_change, remove_files),
        cmocka_unit_test_teardown(mask_belongs_to_the_sample, remove_files),
        cmocka_unit_test_teardown(masks_never_change, remove_files),
        cmocka_unit_test_teardown(text_must_fill_some_windows, remove_files),
        cmocka_unit_test_teardown(contexts_have_bounds, remove_files),
        cmocka_unit_test_teardown(unreadable_files_are_explained, remove_files),
        cmocka_unit_test_teardown(long_text_is_read_whole, remove_files),
        cmocka_unit_test_teardown(gzip_files_may_not_fill_the_memory, remove_files),
        cmocka_unit_test(installed_text_is_read),
    };
    return cmocka_run_group_tests(tests, create_directory, remove_directory);
}
