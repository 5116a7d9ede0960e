/* read_file.h: a whole file in memory, unpacked on the way if it is gzipped. Used by idx.c and text.c. */
#ifndef LOCKSTEP_DATA_READ_FILE_H
#define LOCKSTEP_DATA_READ_FILE_H

#include <stdint.h>

/* Reads `path`, and stores the number of bytes in *size. The caller owns the memory; free() it. A file that cannot be
 * read, or a gzip file that is truncated, damaged, or far larger than plausible when unpacked, ends the program with
 * die(). */
unsigned char *read_file_or_die(const char *path, int64_t *size);

#endif
