/* read_file.c: reads files with zlib, which returns files that are not gzipped as they are.
 *
 * The length of a gzip file's content is known only after unpacking: its trailer holds the length modulo 2^32, and may
 * be wrong. So the buffer grows while data arrives.
 */
#include "data/read_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#include "base/check.h"

#define FIRST_CAPACITY ((size_t)1 << 20) /* bytes; doubled whenever the buffer is full */
#define MOST_PER_READ ((size_t)1 << 30)  /* gzread() returns an int */

/* A gzip file of zeros unpacks to a thousand times its size, and would fill the memory of every rank. Text and images
 * unpack to two to four times their size. */
#define MOST_UNPACKED 25                /* times the size of the file */
#define ANY_UNPACKED ((size_t)64 << 20) /* bytes: this much is always allowed */

/* realloc() that faults. (alloc_or_fault() cannot grow a buffer, and a copy at each doubling would need half as much
 * memory again.) */
static unsigned char *resize_or_fault(unsigned char *bytes, size_t capacity)
{
    unsigned char *resized = realloc(bytes, capacity);
    CHECK(resized != NULL, "no memory for %zu bytes of data", capacity);
    return resized;
}

/* gzread() may return the beginning of a truncated file without an error; gzerror() reports it here. */
static void die_on_error(gzFile file, const char *path)
{
    int status = Z_OK;
    const char *reason = gzerror(file, &status); /* "PATH: what is wrong" */
    if (status == Z_ERRNO) {
        die("--data: cannot read '%s': %s", path, strerror(errno));
    }
    if (status == Z_BUF_ERROR) {
        die("--data: '%s' is cut short: its gzip data ends too early; fetch the file again", path);
    }
    if (status != Z_OK) {
        die("--data: cannot unpack the gzip file: %s; fetch the file again", reason);
    }
}

unsigned char *read_file_or_die(const char *path, int64_t *size)
{
    struct stat status;
    bool there = stat(path, &status) == 0;
    if (there && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) {
        die("--data: '%s' is no regular file: it is read more than once, so a pipe or a device will not do", path);
    }
    gzFile file = gzopen(path, "rb");
    if (file == NULL || !there) {
        die("--data: cannot read '%s': %s", path, strerror(errno));
    }
    size_t capacity = FIRST_CAPACITY, used = 0;
    unsigned char *bytes = resize_or_fault(NULL, capacity);
    int got = 0;
    do {
        if (used == capacity) {
            capacity *= 2;
            bytes = resize_or_fault(bytes, capacity);
        }
        size_t room = capacity - used;
        got = gzread(file, bytes + used, (unsigned)(room < MOST_PER_READ ? room : MOST_PER_READ));
        used += got > 0 ? (size_t)got : 0;
        if (used > ANY_UNPACKED && used / MOST_UNPACKED > (size_t)status.st_size) {
            die("--data: '%s' unpacks to more than %d times its size of %lld bytes; if that is meant, unpack it "
                "(gunzip) and give the unpacked file", path, MOST_UNPACKED, (long long)status.st_size);
        }
    } while (got > 0);
    die_on_error(file, path);
    gzclose(file);
    *size = (int64_t)used;
    return resize_or_fault(bytes, used > 0 ? used : 1);
}
