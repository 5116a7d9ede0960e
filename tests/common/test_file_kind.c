/* test_file_kind.c: a file that is not plain text is refused as one, and named; text in any language is not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/dataset.h"
#include "data/file_kind.h"
#include "data_files.h"
#include "expect.h"

enum { CONTEXT = 8 };

static void open_plain_text(void *name)
{
    Dataset dataset;
    dataset_open_text(&dataset, path_of(name), SPLIT_TRAIN, CONTEXT, 0, false);
    dataset_close(&dataset);
}

static void open_and_end(void *name)
{
    open_plain_text(name);
    exit(0);
}

/* A file of letters with `start` at its beginning. */
static void write_letters(const char *name, const void *start, size_t size)
{
    unsigned char bytes[600];
    memset(bytes, 'a', sizeof bytes);
    memcpy(bytes, start, size);
    write_file(name, bytes, sizeof bytes);
}

static void files_that_are_no_text_are_named(void **state)
{
    static const struct {
        size_t size;
        const char *start, *message;
    } cases[] = {
        {6, "\xfd" "7zXZ\0", "but compressed by xz: unpack it with xz -d; --binary-data trains on its bytes"},
        {10, "BZh91AY&SY", "compressed by bzip2: unpack it with bzip2 -d"},
        {4, "\x28\xb5\x2f\xfd", "compressed by zstd: unpack it with zstd -d"},
        {4, "PK\3\4", "a zip archive (as are .docx, .epub, .npz and .pt files): unpack it with unzip"},
        {8, "\x89PNG\r\n\x1a\n", "a PNG picture"},
        {4, "\xff\xd8\xff\xe0", "a JPEG picture"},
        {5, "%PDF-", "pdftotext"},
        {4, "\x7f" "ELF", "a compiled program (ELF)"},
        {4, "\xff\xfe" "a\0", "text in UTF-16: convert it with iconv -f UTF-16 -t UTF-8"},
        {4, "\xfe\xff\0a", "text in UTF-16"},
        {4, "\xff\xfe\0\0", "text in UTF-32"},
        {4, "\0\0\x08\x03", "a file of MNIST's images (for --model mlp)"},
        {15, "<!DOCTYPE html>", "an HTML page"},
        {13, "\xef\xbb\xbf\r\n  <Html>", "an HTML page"},
        {4, "a\0b\0", "byte 1 is 0, as in binary files, or in UTF-16 (iconv -f UTF-16LE -t UTF-8 converts it)"},
    };
    static const char zeros[300];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_letters("text.txt", cases[i].start, cases[i].size);
        expect_dies(open_plain_text, "text.txt", 2, cases[i].message);
        write_letters("text.txt.gz", cases[i].start, cases[i].size); /* named by what is inside */
        expect_dies(open_plain_text, "text.txt.gz", 2, cases[i].message);
        Dataset dataset;
        dataset_open_text(&dataset, path_of("text.txt"), SPLIT_TRAIN, CONTEXT, 0, true); /* any bytes */
        dataset_close(&dataset);
    }
    write_file("text.txt", zeros, sizeof zeros);
    expect_dies(open_plain_text, "text.txt", 2, "byte 0 is 0");
    write_file("text.txt", cases[0].start, 6); /* named, although it is also too short */
    expect_dies(open_plain_text, "text.txt", 2, "compressed by xz");
    unsigned char tar[600] = "name";
    memcpy(tar + 257, "ustar", 5);
    write_file("text.txt", tar, sizeof tar);
    expect_dies(open_plain_text, "text.txt", 2, "a tar archive");
}

static void a_gzip_file_in_a_gzip_file_is_named(void **state)
{
    unsigned char packed[600];
    write_letters("text.txt.gz", "", 0);
    FILE *file = fopen(path_of("text.txt.gz"), "rb");
    assert_non_null(file);
    size_t size = fread(packed, 1, sizeof packed, file);
    fclose(file);
    write_file("twice.gz", packed, size);
    expect_dies(open_plain_text, "twice.gz", 2, "compressed by gzip twice: unpack it once with gunzip");
}

/* Text in any language and encoding is text; so is what only looks like another format later on. */
static void text_is_not_refused(void **state)
{
    static const char *const starts[] = {"", "PK is no archive", "<p>html", "<?xml version=\"1.0\"?>", "\xe4\xb8\xad",
                                         "\xef\xbb\xbf byte order mark", "\xcf\x80\xf0\x9f\x99\x82", "a <html> b"};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        write_letters("text.txt", starts[i], strlen(starts[i]));
        open_plain_text("text.txt");
    }
    write_letters("text.txt", "caf\xe9", 4);
    expect_dies(open_and_end, "text.txt", 0, "/text.txt' is not UTF-8 (see byte 3); it is trained on as it is");
}

static void utf8_characters_have_a_length(void **state)
{
    static const struct {
        const char *bytes;
        int64_t count;
        int length;
    } cases[] = {
        {"a", 1, 1}, {"\0", 1, 1}, {"\x7f", 1, 1}, {"\xc2\x80", 2, 2}, {"\xdf\xbf", 2, 2}, {"\xe0\xa0\x80", 3, 3},
        {"\xed\x9f\xbf", 3, 3}, {"\xef\xbf\xbf", 3, 3}, {"\xf0\x90\x80\x80", 4, 4}, {"\xf4\x8f\xbf\xbf", 4, 4},
        {"\xc3", 1, 0}, {"\xe4\xb8", 2, 0}, {"\xf0\x9f\x99", 3, 0}, {"\xf0", 1, 0}, /* more is needed */
        {"\x80", 1, -1}, {"\xbf\x80", 2, -1}, {"\xc1\xbf", 2, -1}, {"\xe0\x9f\xbf", 3, -1}, {"\xf0\x8f\xbf\xbf", 4, -1},
        {"\xed\xa0\x80", 3, -1}, {"\xf4\x90\x80\x80", 4, -1}, {"\xf5\x80\x80\x80", 4, -1}, {"\xff", 1, -1},
        {"\xe4\xb8z", 3, -1}, {"\xe4z", 2, -1}, {"\xc3z", 2, -1}, {"ab", 2, 1}, {"\xc3\xa9\xa9", 3, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int length = utf8_length((const unsigned char *)cases[i].bytes, cases[i].count);
        if (length != cases[i].length)
            fail_msg("case %zu, first byte %02x: expected %d, got %d", i, (unsigned char)cases[i].bytes[0],
                     cases[i].length, length);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(files_that_are_no_text_are_named, remove_files),
        cmocka_unit_test_teardown(a_gzip_file_in_a_gzip_file_is_named, remove_files),
        cmocka_unit_test_teardown(text_is_not_refused, remove_files),
        cmocka_unit_test(utf8_characters_have_a_length),
    };
    return cmocka_run_group_tests(tests, create_directory, remove_directory);
}
