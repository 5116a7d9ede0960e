/* file_kind.h: what a file is, by its first bytes, for messages about files that are not what a data set needs. */
#ifndef LOCKSTEP_DATA_FILE_KIND_H
#define LOCKSTEP_DATA_FILE_KIND_H

#include <stdint.h>

/* What the file is, and how to make a text of it: "compressed by xz: unpack it with xz -d". NULL: no format that is
 * known here, and so perhaps a text. */
const char *file_kind(const unsigned char *bytes, int64_t size);

/* The length of the UTF-8 character that these bytes begin with, 1 to 4. 0: there are too few bytes to tell. -1: they
 * begin with no UTF-8 character. count > 0. */
int utf8_length(const unsigned char *bytes, int64_t count);

#endif
