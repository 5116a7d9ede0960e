/* file_kind.h: recognizes a file's format by its first bytes, for messages about files that a data set cannot read. */
#ifndef LOCKSTEP_DATA_FILE_KIND_H
#define LOCKSTEP_DATA_FILE_KIND_H

#include <stdint.h>

/* The file's format, and how to convert it to text: "compressed by xz: unpack it with xz -d". NULL: no known format, so
 * it may be text. */
const char *file_kind(const unsigned char *bytes, int64_t size);

/* The length, 1 to 4, of the UTF-8 character with which these bytes begin. 0: too few bytes to tell. -1: it is not
 * UTF-8. count > 0. */
int utf8_length(const unsigned char *bytes, int64_t count);

#endif
