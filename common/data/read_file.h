/* read_file.h: a whole file in memory, unpacked on the way if it is gzipped. Used by idx.c and text.c. */
#ifndef LOCKSTEP_DATA_READ_FILE_H
#define LOCKSTEP_DATA_READ_FILE_H

#include <stdint.h>

/* Reads `path`, whatever its size, and stores how many bytes there are in *size. The caller owns the memory.
 * A file that cannot be read, or a gzip file that is cut short or damaged or that unpacks to implausibly much, ends the
 * program with die(). */
unsigned char *read_file_or_die(const char *path, int64_t *size);

#endif
