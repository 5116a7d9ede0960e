/* file_kind.c: see file_kind.h; a table of the bytes that files begin with. */
#include "data/file_kind.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

/* `length` bytes, `offset` bytes from the start of the file. No text begins with any of these. */
typedef struct Magic {
    int offset, length;
    const char *bytes, *kind;
} Magic;

static const Magic magics[] = {
    {0, 6, "\xfd" "7zXZ\0", "compressed by xz: unpack it with xz -d"},
    {4, 6, "1AY&SY", "compressed by bzip2: unpack it with bzip2 -d"},
    {0, 4, "\x28\xb5\x2f\xfd", "compressed by zstd: unpack it with zstd -d"},
    {0, 4, "\x04\x22\x4d\x18", "compressed by lz4: unpack it with lz4 -d"},
    {0, 4, "LZIP", "compressed by lzip: unpack it with lzip -d"},
    {0, 2, "\x1f\x8b", "compressed by gzip twice: unpack it once with gunzip"},
    {0, 2, "\x1f\x9d", "compressed by compress: unpack it with gunzip"},
    {0, 4, "PK\3\4", "a zip archive (as are .docx, .epub, .npz and .pt files): unpack it with unzip"},
    {0, 6, "7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it with 7z x"},
    {0, 6, "Rar!\x1a\7", "a rar archive: unpack it with unrar x"},
    {257, 5, "ustar", "a tar archive: unpack it with tar -xf"},
    {0, 5, "%PDF-", "a PDF document: convert it to text with pdftotext"},
    {0, 4, "\x89PNG", "a PNG picture, which holds no text"},
    {0, 3, "\xff\xd8\xff", "a JPEG picture, which holds no text"},
    {0, 5, "GIF89", "a GIF picture, which holds no text"},
    {0, 4, "\x7f" "ELF", "a compiled program (ELF), which holds no text"},
    {0, 6, "\x93NUMPY", "a NumPy array, which holds no text"},
    {0, 4, "\x89HDF", "an HDF5 file: extract its text first"},
    {0, 6, "SQLite", "an SQLite database: extract its text first"},
    {0, 4, "PAR1", "a Parquet table: extract its text first"},
    {0, 4, "\0\0\x08\x01", "a file of MNIST's labels (for --model mlp)"},
    {0, 4, "\0\0\x08\x03", "a file of MNIST's images (for --model mlp)"},
    {0, 4, "\xff\xfe\0\0", "text in UTF-32: convert it with iconv -f UTF-32 -t UTF-8"},
    {0, 2, "\xff\xfe", "text in UTF-16: convert it with iconv -f UTF-16 -t UTF-8"},
    {0, 2, "\xfe\xff", "text in UTF-16: convert it with iconv -f UTF-16 -t UTF-8"},
};

/* True if the file, after spaces and a byte order mark, begins like an HTML page. */
static bool is_html(const unsigned char *bytes, int64_t size)
{
    static const char *const starts[] = {"<!doctype html", "<html"};
    int64_t at = size >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (at < size && bytes[at] != '\0' && strchr(" \t\r\n", bytes[at]) != NULL)
        at++;
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        size_t length = strlen(starts[i]);
        if (size - at >= (int64_t)length && strncasecmp((const char *)bytes + at, starts[i], length) == 0)
            return true;
    }
    return false;
}

const char *file_kind(const unsigned char *bytes, int64_t size)
{
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++) {
        const Magic *magic = &magics[i];
        if (size >= magic->offset + magic->length &&
            memcmp(bytes + magic->offset, magic->bytes, (size_t)magic->length) == 0)
            return magic->kind;
    }
    return is_html(bytes, size) ? "an HTML page: convert it to text, for example with html2text" : NULL;
}

int utf8_length(const unsigned char *bytes, int64_t count)
{
    const unsigned char first = bytes[0];
    if (first < 0x80)
        return 1;
    int length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    /* After some first bytes the second byte has a smaller range. This excludes second forms of a character, surrogates
     * of UTF-16, and characters beyond U+10FFFF. */
    unsigned char low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    unsigned char high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (first < 0xc2 || first > 0xf4)
        return -1;
    for (int i = 1; i < length; i++) {
        if (i == count)
            return 0;
        if (bytes[i] < low || bytes[i] > high)
            return -1;
        low = 0x80, high = 0xbf;
    }
    return length;
}
