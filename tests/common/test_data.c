/* test_data.c: data sets have the contents of their files, and reject files that have fewer bytes than they claim.
 *
 * Small files are written to a directory of their own under $TMPDIR or /tmp, and removed after each test.
 * For the sampler and the loader see test_sampler.c and test_loader.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "data/dataset.h"
#include "expect.h"

#define DEFAULT_IMAGES "/usr/share/datasets/fashion-mnist/"
#define DEFAULT_TEXT "/usr/share/doc/jargon-text/jargon.txt.gz"

/* ---- writing small files ---- */

static char directory[256];

/* The path of `name` in the tests' directory; valid until the next call. */
static const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%.250s/%.200s", directory, name);
    return path;
}

/* Writes a gzip file if the name ends in .gz, else a plain one. */
static void write_file(const char *name, const void *bytes, size_t size)
{
    gzFile file = gzopen(path_of(name), strstr(name, ".gz") != NULL ? "wb" : "wbT"); /* T: as it is */
    assert_non_null(file);
    assert_int_equal(size == 0 ? 0 : gzwrite(file, bytes, (unsigned)size), size);
    assert_int_equal(gzclose(file), Z_OK);
}

/* An IDX file whose header claims sizes[0..dims), with `size` bytes after it, whatever the header says. */
static void write_idx(const char *name, int dims, const uint32_t *sizes, const void *elements, size_t size)
{
    unsigned char file[512] = {0, 0, 8, (unsigned char)dims};
    size_t header = 4 + 4 * (size_t)dims;
    for (int i = 0; i < dims; i++) {
        for (int byte = 0; byte < 4; byte++) {
            file[4 + 4 * i + byte] = (unsigned char)(sizes[i] >> (24 - 8 * byte));
        }
    }
    assert_true(header + size <= sizeof file);
    memcpy(file + header, elements, size);
    write_file(name, file, header + size);
}

static int create_directory(void **state)
{
    (void)state;
    const char *parent = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%.200s/lockstep-test-XXXXXX", parent != NULL ? parent : "/tmp");
    return mkdtemp(directory) == NULL ? -1 : 0;
}

static int remove_files(void **state)
{
    static const char *const names[] = {"train-images-idx3-ubyte",
                                        "train-images-idx3-ubyte.gz",
                                        "train-labels-idx1-ubyte",
                                        "text.txt",
                                        "t10k-images-idx3-ubyte",
                                        "t10k-labels-idx1-ubyte.gz",
                                        "text.txt.gz"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        unlink(path_of(names[i]));
    }
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    return rmdir(directory);
}

/* ---- images ---- */

static const unsigned char pixels[18] = {0, 255, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18};
static const uint32_t three_images[3] = {3, 2, 3}; /* 2 x 3 pixels */
static const unsigned char labels[3] = {9, 0, 4};
static const uint32_t three_labels[1] = {3};

static void open_images(void *path)
{
    Dataset dataset;
    dataset_open_images(&dataset, path, SPLIT_TRAIN, 6, 10);
}

static void expect_images_die(const char *text)
{
    expect_dies(open_images, directory, 2, text);
}

static void check_three_images(DatasetSplit split)
{
    Dataset dataset;
    float inputs[12];
    int32_t targets[2];
    dataset_open_images(&dataset, directory, split, 6, 10);
    assert_int_equal(dataset.size, 3);
    assert_int_equal(dataset.byte_count, sizeof pixels); /* the checksum covers so many */
    dataset_get(&dataset, 0, (int64_t[]){2, 0}, 2, inputs, targets);
    float expected[12];
    for (int i = 0; i < 12; i++) {
        expected[i] = (float)((pixels[i < 6 ? 12 + i : i - 6] / 255.0 - 0.2860) / 0.3530);
    }
    expect_close("pixels of images 2 and 0", inputs, expected, 12, 1e-6, 1e-6,
                 "is the header taken for pixels, or an image taken at the wrong place?");
    assert_int_equal(dataset.targets, 1);
    assert_int_equal(targets[0], 4);
    assert_int_equal(targets[1], 9);
    dataset_close(&dataset);
}

static void images_are_read_plain_or_gzipped(void **state)
{
    (void)state;
    write_idx("train-images-idx3-ubyte.gz", 3, three_images, pixels, sizeof pixels);
    write_idx("train-labels-idx1-ubyte", 1, three_labels, labels, sizeof labels);
    check_three_images(SPLIT_TRAIN);
    write_idx("t10k-images-idx3-ubyte", 3, three_images, pixels, sizeof pixels);
    write_idx("t10k-labels-idx1-ubyte.gz", 1, three_labels, labels, sizeof labels);
    check_three_images(SPLIT_EVAL);
}

static void image_headers_are_not_believed(void **state)
{
    (void)state;
    static const struct {
        uint32_t sizes[3];
        size_t size; /* bytes that follow */
        const char *text;
    } cases[] = {
        {{3, 2, 3}, 17, "damaged: its header claims 3 items of 6 byte(s), but 17 bytes follow"},
        {{2, 2, 3}, 13, "damaged: its header claims 2 items of 6 byte(s), but 13 bytes follow"},
        {{2, 2, 3}, 18, "damaged: its header claims 2 items of 6 byte(s), but 18 bytes follow"},
        {{0xffffffff, 2, 3}, 18, "damaged: its header claims 4294967295 items"},
        {{3, 2, 4}, 18, "images of 2 x 4 pixels, but the model takes 6 numbers"},
        {{3, 0, 3}, 18, "images of 0 x 3 pixels"},
        {{3, 0x80000000, 0x80000000}, 18, "images of 2147483648 x 2147483648 pixels"},
        {{0, 2, 3}, 0, "holds no image"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_idx("train-images-idx3-ubyte", 3, cases[i].sizes, pixels, cases[i].size);
        expect_images_die(cases[i].text);
    }
    write_file("train-images-idx3-ubyte", "\0\0\010\003\0\0\0\003\0\0\0\002\0\0\0", 15);
    expect_images_die("too short for an IDX file: 15 bytes");
    write_file("train-images-idx3-ubyte", "", 0);
    expect_images_die("too short for an IDX file: 0 bytes");
    write_file("train-images-idx3-ubyte", "\0\0\015\003 floats, not bytes", 20);
    expect_images_die("begins with 00 00 0d 03, not with 00 00 08 03");
    write_idx("train-images-idx3-ubyte", 1, three_labels, pixels, sizeof pixels);
    expect_images_die("begins with 00 00 08 01, not with 00 00 08 03");
}

static void labels_fit_images_and_model(void **state)
{
    (void)state;
    write_idx("train-images-idx3-ubyte", 3, three_images, pixels, sizeof pixels);
    expect_images_die("neither train-labels-idx1-ubyte nor train-labels-idx1-ubyte.gz in");
    write_idx("train-labels-idx1-ubyte", 1, three_labels, labels, 2);
    expect_images_die("its header claims 3 items of 1 byte(s), but 2 bytes follow");
    write_idx("train-labels-idx1-ubyte", 1, (uint32_t[]){2}, labels, 2);
    expect_images_die("holds 2 labels, but there are 3 images");
    write_idx("train-labels-idx1-ubyte", 1, three_labels, "\001\012\002", 3);
    expect_images_die("label 1 is 10, but the model has 10 classes, 0 to 9");
}

/* A gzip file without its second half, or with a wrong bit, must not be read as a shorter file. */
static void damaged_gzip_files_are_noticed(void **state)
{
    (void)state;
    unsigned char file[512];
    write_idx("train-images-idx3-ubyte.gz", 3, three_images, pixels, sizeof pixels);
    FILE *stream = fopen(path_of("train-images-idx3-ubyte.gz"), "rb");
    assert_non_null(stream);
    size_t size = fread(file, 1, sizeof file, stream);
    fclose(stream);
    write_file("train-labels-idx1-ubyte", "", 0);

    assert_int_equal(truncate(path_of("train-images-idx3-ubyte.gz"), (off_t)size - 1), 0); /* all pixels are there */
    expect_images_die("is cut short");
    assert_int_equal(truncate(path_of("train-images-idx3-ubyte.gz"), (off_t)size - 12), 0);
    expect_images_die("is cut short");
    file[size - 6] ^= 1; /* the checksum */
    stream = fopen(path_of("train-images-idx3-ubyte.gz"), "wb");
    assert_non_null(stream);
    fwrite(file, 1, size, stream);
    fclose(stream);
    expect_images_die("cannot unpack the gzip file");
}

static void missing_images_are_explained(void **state)
{
    (void)state;
    expect_images_die("error: --data: neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz in");
    if (access(DEFAULT_IMAGES "train-images-idx3-ubyte.gz", F_OK) != 0) {
        expect_dies(open_images, NULL, 2, "install the Debian/Ubuntu package dataset-fashion-mnist, or name a");
    }
}

static void installed_images_are_whole(void **state)
{
    (void)state;
    if (access(DEFAULT_IMAGES "t10k-images-idx3-ubyte.gz", F_OK) != 0) {
        skip();
    }
    Dataset dataset;
    dataset_open_images(&dataset, NULL, SPLIT_EVAL, 784, 10);
    assert_int_equal(dataset.size, 10000);
    int64_t of_class[10] = {0};
    for (int64_t i = 0; i < dataset.size; i++) {
        of_class[dataset.labels[i]]++;
    }
    for (int c = 0; c < 10; c++) {
        assert_int_equal(of_class[c], 1000); /* Fashion-MNIST is balanced */
    }
    dataset_close(&dataset);
}

/* ---- text ---- */

enum { CONTEXT = 8, TEXT_BYTES = 248 }; /* 224 bytes for training, 24 for evaluation */

static unsigned char text[TEXT_BYTES]; /* byte i is i, so a token shows its place in the text */

static void open_text(void *name)
{
    Dataset dataset;
    dataset_open_text(&dataset, name != NULL ? path_of(name) : NULL, SPLIT_TRAIN, CONTEXT, 0);
}

/* Checks that window i covers text[start + i * CONTEXT ...] and its targets are one byte ahead; returns start. */
static int check_windows(const Dataset *dataset, long epoch)
{
    int start = -1;
    for (int64_t i = 0; i < dataset->size; i++) {
        int32_t tokens[CONTEXT], targets[CONTEXT];
        dataset_get(dataset, epoch, &i, 1, tokens, targets);
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
    (void)state;
    static const char *const names[] = {"text.txt", "text.txt.gz"};
    for (int file = 0; file < 2; file++) {
        Dataset dataset;
        write_file(names[file], text, sizeof text);
        dataset_open_text(&dataset, path_of(names[file]), SPLIT_TRAIN, CONTEXT, 4);
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

        dataset_open_text(&dataset, path_of(names[file]), SPLIT_EVAL, CONTEXT, 4);
        assert_int_equal(dataset.size, 2); /* not 3: a third window's last target would be beyond the text */
        for (long epoch = 0; epoch < 20; epoch++) {
            assert_int_equal(check_windows(&dataset, epoch), 224);
        }
        dataset_close(&dataset);
    }
}

static void text_shift_depends_on_the_seed(void **state)
{
    (void)state;
    write_file("text.txt", text, sizeof text);
    int differences = 0;
    for (long epoch = 0; epoch < 20; epoch++) {
        Dataset a, b;
        dataset_open_text(&a, path_of("text.txt"), SPLIT_TRAIN, CONTEXT, 1);
        dataset_open_text(&b, path_of("text.txt"), SPLIT_TRAIN, CONTEXT, 2);
        differences += check_windows(&a, epoch) != check_windows(&b, epoch);
        dataset_close(&a);
        dataset_close(&b);
    }
    assert_true(differences > 0);
}

static void text_must_fill_some_windows(void **state)
{
    (void)state;
    Dataset dataset;
    write_file("text.txt", text, 170);
    dataset_open_text(&dataset, path_of("text.txt"), SPLIT_EVAL, CONTEXT, 0);
    assert_int_equal(dataset.size, 2);
    dataset_close(&dataset);
    write_file("text.txt", text, 169);
    expect_dies(open_text, "text.txt", 2, "holds 169 bytes; for windows of 8 bytes it needs 170");
    write_file("text.txt", "", 0);
    expect_dies(open_text, "text.txt", 2, "holds 0 bytes");
    expect_dies(open_text, ".", 2, "Is a directory");
    expect_dies(open_text, "absent.txt", 2, "error: --data: there is no file '");
    write_file("text.txt.gz", text, sizeof text);
    assert_int_equal(truncate(path_of("text.txt.gz"), 40), 0);
    expect_dies(open_text, "text.txt.gz", 2, "is cut short");
}

static void installed_text_is_read(void **state)
{
    (void)state;
    if (access(DEFAULT_TEXT, F_OK) != 0) {
        expect_dies(open_text, NULL, 2, "install the Debian/Ubuntu package jargon-text");
        return;
    }
    Dataset dataset;
    dataset_open_text(&dataset, NULL, SPLIT_TRAIN, 128, 0);
    assert_true(dataset.size > 1000);
    dataset_close(&dataset);
}

/* ---- random numbers ---- */

static void random_data_depend_on_the_seed_alone(void **state)
{
    (void)state;
    Dataset a, b, c;
    dataset_open_random(&a, 1000, 10, 5, 7);
    dataset_open_random(&b, 1000, 10, 5, 7);
    dataset_open_random(&c, 1000, 10, 5, 8);
    expect_bits_equal("random data of the same seed", a.values, b.values, 15000, NULL);
    assert_memory_not_equal(a.values, c.values, 15000 * sizeof(float));
    double sum = 0.0, squares = 0.0;
    for (int i = 0; i < 15000; i++) {
        sum += (double)a.values[i];
        squares += (double)a.values[i] * (double)a.values[i];
    }
    assert_true(sum / 15000 > -0.05 && sum / 15000 < 0.05); /* six standard errors */
    assert_true(squares / 15000 > 0.93 && squares / 15000 < 1.07);

    float inputs[10], targets[5];
    dataset_get(&a, 3, &(int64_t){999}, 1, inputs, targets);
    expect_bits_equal("inputs of the last sample", inputs, a.values + 999 * 15, 10, NULL);
    expect_bits_equal("targets of the last sample", targets, a.values + 999 * 15 + 10, 5, NULL);
    dataset_close(&a);
    dataset_close(&b);
    dataset_close(&c);
}

static void get_out_of_range(void *dataset)
{
    float inputs[1], targets[1];
    dataset_get(dataset, 0, &(int64_t){4}, 1, inputs, targets);
}

static void samples_out_of_range_are_faults(void **state)
{
    (void)state;
    Dataset dataset;
    dataset_open_random(&dataset, 4, 1, 1, 0);
    expect_dies(get_out_of_range, &dataset, 1, "sample 4 asked of a data set of 4");
    dataset_close(&dataset);
}

int main(void)
{
    for (int i = 0; i < TEXT_BYTES; i++) {
        text[i] = (unsigned char)i;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(images_are_read_plain_or_gzipped, remove_files),
        cmocka_unit_test_teardown(image_headers_are_not_believed, remove_files),
        cmocka_unit_test_teardown(labels_fit_images_and_model, remove_files),
        cmocka_unit_test_teardown(damaged_gzip_files_are_noticed, remove_files),
        cmocka_unit_test_teardown(missing_images_are_explained, remove_files),
        cmocka_unit_test_teardown(installed_images_are_whole, remove_files),
        cmocka_unit_test_teardown(text_is_cut_into_windows, remove_files),
        cmocka_unit_test_teardown(text_shift_depends_on_the_seed, remove_files),
        cmocka_unit_test_teardown(text_must_fill_some_windows, remove_files),
        cmocka_unit_test_teardown(installed_text_is_read, remove_files),
        cmocka_unit_test_teardown(random_data_depend_on_the_seed_alone, remove_files),
        cmocka_unit_test_teardown(samples_out_of_range_are_faults, remove_files),
    };
    return cmocka_run_group_tests(tests, create_directory, remove_directory);
}
