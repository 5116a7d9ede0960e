/* data_files.c: the directory that the tests of data sets write to, and what the system has installed. */
#include "data_files.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "expect.h"

char directory[256];

const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%.250s/%.200s", directory, name);
    return path;
}

void write_file(const char *name, const void *bytes, size_t size)
{
    gzFile file = gzopen(path_of(name), strstr(name, ".gz") != NULL ? "wb" : "wbT"); /* T: as it is */
    assert_non_null(file);
    assert_int_equal(size == 0 ? 0 : gzwrite(file, bytes, (unsigned)size), size);
    assert_int_equal(gzclose(file), Z_OK);
}

int create_directory(void **state)
{
    const char *parent = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%.200s/lockstep-test-XXXXXX", parent != NULL ? parent : "/tmp");
    return mkdtemp(directory) == NULL ? -1 : 0;
}

int remove_files(void **state)
{
    DIR *files = opendir(directory);
    if (files == NULL)
        return -1;
    for (struct dirent *file; (file = readdir(files)) != NULL;)
        if (file->d_name[0] != '.')
            unlink(path_of(file->d_name));
    return closedir(files);
}

int remove_directory(void **state)
{
    return rmdir(directory);
}

/* ---- the linker puts this before the C library's function (-Wl,--wrap) ---- */

static bool hidden;

void hide_installed_data(void)
{
    hidden = true;
}

int __real_access(const char *path, int mode);
int __wrap_access(const char *path, int mode);
int __wrap_access(const char *path, int mode)
{
    return hidden && strncmp(path, "/usr/share/", 11) == 0 ? -1 : __real_access(path, mode);
}
