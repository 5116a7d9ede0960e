/* data_files.h: small files for the tests of data sets, in a directory of their own under $TMPDIR or /tmp.
 *
 * Interface: the three functions for cmocka: create_directory() and remove_directory() for the group of tests,
 * remove_files() after each test. */
#ifndef LOCKSTEP_TESTS_DATA_FILES_H
#define LOCKSTEP_TESTS_DATA_FILES_H

#include <stddef.h>

extern char directory[256];

/* The path of `name` in the tests' directory; valid until the next call. */
const char *path_of(const char *name);
/* Writes a gzip file if the name ends in .gz, else a plain one. */
void write_file(const char *name, const void *bytes, size_t size);

int create_directory(void **state);
int remove_files(void **state);
int remove_directory(void **state);

/* Makes access() say that nothing is installed in /usr/share. Call it in a child that is expected to die. */
void hide_installed_data(void);

#endif
