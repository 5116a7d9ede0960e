/* test_data.c: images and random numbers. Data sets have the contents of their files, and reject files that have fewer
 * bytes than they claim. For text see test_text.c, for the sampler and the loader test_sampler.c and test_loader.c. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "data/dataset.h"
#include "data_files.h"
#include "expect.h"

#define DEFAULT_IMAGES "/usr/share/datasets/fashion-mnist/"

/* ---- images ---- */

static const unsigned char pixels[18] = {0, 255, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18};
static const uint32_t three_images[3] = {3, 2, 3}; /* 2 x 3 pixels */
static const unsigned char labels[3] = {9, 0, 4};
static const uint32_t three_labels[1] = {3};

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
    assert_string_equal(dataset.source, directory);
    uint32_t of_pixels = (uint32_t)crc32(0, pixels, sizeof pixels);
    assert_int_equal(dataset_checksum(&dataset), crc32(of_pixels, labels, sizeof labels));
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
    write_idx("train-images-idx3-ubyte.gz", 3, three_images, pixels, sizeof pixels);
    write_idx("train-labels-idx1-ubyte", 1, three_labels, labels, sizeof labels);
    check_three_images(SPLIT_TRAIN);
    write_idx("t10k-images-idx3-ubyte", 3, three_images, pixels, sizeof pixels);
    write_idx("t10k-labels-idx1-ubyte.gz", 1, three_labels, labels, sizeof labels);
    check_three_images(SPLIT_EVAL);
}

/* The first dash is a dot on some sites. */
static void images_may_have_dots_in_their_names(void **state)
{
    write_idx("train-images.idx3-ubyte", 3, three_images, pixels, sizeof pixels);
    write_idx("train-labels.idx1-ubyte.gz", 1, three_labels, labels, sizeof labels);
    check_three_images(SPLIT_TRAIN);
    write_idx("t10k-images.idx3-ubyte.gz", 3, three_images, pixels, sizeof pixels);
    write_idx("t10k-labels.idx1-ubyte", 1, three_labels, labels, sizeof labels);
    check_three_images(SPLIT_EVAL);
}

static void other_arrangements_are_explained(void **state)
{
    write_idx("train-labels-idx1-ubyte", 1, three_labels, labels, sizeof labels);
    write_idx("train-images-idx3-ubyte.gz", 3, three_images, pixels, sizeof pixels);
    write_file("train-images-idx3-ubyte", "", 0); /* gunzip was interrupted */
    expect_images_die("train-images-idx3-ubyte.gz' exists; remove the empty file");
    write_idx("train-images-idx3-ubyte", 3, (uint32_t[]){2, 3, 5}, pixels, sizeof pixels);
    expect_images_die("images of 3 x 5 pixels, but the model takes 6 numbers; is it transposed? The number of");
    write_file("train-images-idx3-ubyte", "PK\3\4 an archive of it", 20);
    expect_images_die("is not an IDX file of bytes in 3 dimension(s), but a zip archive");
    write_file("train-images-idx3-ubyte", "<!DOCTYPE html> not found", 25);
    expect_images_die("but an HTML page");
}

/* torchvision has the files in DIR/MNIST/raw or DIR/FashionMNIST/raw. */
static void files_below_the_directory_are_named(void **state)
{
    static const char *const names[] = {"raw", "MNIST/raw", "FashionMNIST/raw"};
    for (int i = 0; i < 3; i++) {
        char found[64];
        *strchrnul(strcpy(found, names[i]), '/') = '\0';
        mkdir(path_of(found), 0700);
        mkdir(path_of(names[i]), 0700);
        snprintf(found, sizeof found, "/%s': is that the right one?", names[i]);
        expect_images_die(found);
        rmdir(path_of(names[i]));
        *strchrnul(strcpy(found, names[i]), '/') = '\0';
        rmdir(path_of(found));
    }
}

static void image_headers_are_not_believed(void **state)
{
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
        {{1, 0x10000, 0x10000}, 18, "images of 65536 x 65536 pixels"}, /* in 32 bits the product would be 0 */
        {{0, 2, 3}, 0, "holds no images"},
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
    write_file("train-images-idx3-ubyte", "\1\0\010\003 not zero first", 20);
    expect_images_die("begins with 01 00 08 03");
    write_file("train-images-idx3-ubyte", "\0\1\010\003 not zero second", 20);
    expect_images_die("begins with 00 01 08 03");
    write_idx("train-images-idx3-ubyte", 1, three_labels, pixels, sizeof pixels);
    expect_images_die("is not an IDX file of bytes in 3 dimension(s), but a file of MNIST's labels");
    write_file("train-images-idx3-ubyte", "\0\0\010\002 two dimensions", 20);
    expect_images_die("begins with 00 00 08 02, not with 00 00 08 03");
}

static void labels_fit_images_and_model(void **state)
{
    write_idx("train-images-idx3-ubyte", 3, three_images, pixels, sizeof pixels);
    expect_images_die("neither train-labels-idx1-ubyte nor train-labels-idx1-ubyte.gz in");
    write_idx("train-labels-idx1-ubyte", 1, three_labels, labels, 2);
    expect_images_die("its header claims 3 items of 1 byte(s), but 2 bytes follow");
    write_idx("train-labels-idx1-ubyte", 1, (uint32_t[]){2}, labels, 2);
    expect_images_die("holds 2 labels, but there are 3 images");
    write_idx("train-labels-idx1-ubyte", 1, three_labels, "\012\001\002", 3);
    expect_images_die("label 0 is 10, but the model has 10 classes, 0 to 9");
    write_idx("train-labels-idx1-ubyte", 1, three_labels, "\001\002\012", 3);
    expect_images_die("label 2 is 10, but the model has 10 classes, 0 to 9");
}

/* A gzip file without its second half, or with a wrong bit, must not be read as a shorter file. */
static void damaged_gzip_files_are_noticed(void **state)
{
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

static void open_images_not_installed(void *argument)
{
    hide_installed_data();
    open_images(NULL);
}

static void missing_images_are_explained(void **state)
{
    expect_images_die("error: --data: neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz in");
    assert_int_equal(mkdir(path_of("train-images-idx3-ubyte"), 0700), 0);
    expect_images_die("/train-images-idx3-ubyte': Is a directory");
    rmdir(path_of("train-images-idx3-ubyte"));
    expect_dies(open_images_not_installed, NULL, 2, "install the Debian/Ubuntu package dataset-fashion-mnist, or name");
    char long_name[PATH_MAX - sizeof "/train-images-idx3-ubyte.gz" + 2]; /* the whole path is one character too long */
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    expect_dies(open_images, long_name, 2, "error: --data: the directory's name is too long");
}

static void installed_images_are_whole(void **state)
{
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

/* ---- random numbers ---- */

static void random_data_depend_on_the_seed_alone(void **state)
{
    Dataset a, b, c;
    dataset_open_random(&a, 1000, 10, 5, 7);
    dataset_open_random(&b, 1000, 10, 5, 7);
    dataset_open_random(&c, 1000, 10, 5, 8);
    expect_bits_equal("random data of the same seed", a.values, b.values, 15000, NULL);
    assert_memory_not_equal(a.values, c.values, 15000 * sizeof(float));
    double sum = 0.0, squares = 0.0;
    for (int i = 0; i < 15000; i++) {
        assert_true(a.values[i] != 0.0f); /* zeros are what was not drawn */
        sum += (double)a.values[i];
        squares += (double)a.values[i] * (double)a.values[i];
    }
    assert_true(sum / 15000 > -0.05 && sum / 15000 < 0.05); /* six standard errors */
    assert_true(squares / 15000 > 0.93 && squares / 15000 < 1.07);

    float inputs[10], targets[5];
    dataset_get(&a, 3, &(int64_t){999}, 1, inputs, targets);
    expect_bits_equal("inputs of the last sample", inputs, a.values + 999 * 15, 10, NULL);
    expect_bits_equal("targets of the last sample", targets, a.values + 999 * 15 + 10, 5, NULL);
    assert_int_equal(dataset_checksum(&a), 0);
    dataset_close(&a);
    dataset_close(&b);
    dataset_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(images_are_read_plain_or_gzipped, remove_files),
        cmocka_unit_test_teardown(images_may_have_dots_in_their_names, remove_files),
        cmocka_unit_test_teardown(other_arrangements_are_explained, remove_files),
        cmocka_unit_test(files_below_the_directory_are_named),
        cmocka_unit_test_teardown(image_headers_are_not_believed, remove_files),
        cmocka_unit_test_teardown(labels_fit_images_and_model, remove_files),
        cmocka_unit_test_teardown(damaged_gzip_files_are_noticed, remove_files),
        cmocka_unit_test(missing_images_are_explained),
        cmocka_unit_test(installed_images_are_whole),
        cmocka_unit_test(random_data_depend_on_the_seed_alone),
    };
    return cmocka_run_group_tests(tests, create_directory, remove_directory);
}
