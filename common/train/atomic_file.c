/* atomic_file.c: write to PATH.tmp, flush it to the disk, rename it. */
#include "train/atomic_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"

/* Renaming onto a named pipe or a symbolic link (as /dev/stdout is one) would replace it by a file. */
static bool is_special(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

static char *temporary_name(const char *path)
{
    size_t size = strlen(path) + sizeof ".tmp";
    char *name = alloc_or_fault(size);
    snprintf(name, size, "%s.tmp", path);
    return name;
}

void atomic_check_writable(const char *flag, const char *path)
{
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        die("%s %s: is a directory; give the name of a file", flag, path);
    }
    if (is_special(path)) {
        return;
    }
    char *temporary = temporary_name(path);
    const bool was_there = access(temporary, F_OK) == 0; /* left by a run that was killed, or somebody's: it stays */
    FILE *stream = fopen(temporary, "ab");               /* appends nothing */
    if (stream == NULL) {
        die("%s %s: cannot be written: %s; give a file in a directory that exists and is yours to write to", flag,
            path, strerror(errno));
    }
    fclose(stream);
    if (!was_there) {
        unlink(temporary);
    }
    free(temporary);
}

/* `error` is the errno of the call that failed. */
static _Noreturn void fail(AtomicFile *file, const char *call, int error)
{
    if (file->temporary != NULL) {
        unlink(file->temporary);
    }
    FAULT("%s: %s failed: %s", file->path, call, strerror(error));
}

void atomic_open(AtomicFile *file, const char *path)
{
    file->path = copy_string(path);
    file->temporary = is_special(path) ? NULL : temporary_name(path);
    file->stream = fopen(file->temporary != NULL ? file->temporary : path, "wb");
    if (file->stream == NULL) {
        fail(file, "open", errno);
    }
}

void atomic_write(AtomicFile *file, const void *bytes, size_t count)
{
    if (fwrite(bytes, 1, count, file->stream) != count) {
        fail(file, "write", errno);
    }
}

void atomic_commit(AtomicFile *file)
{
    if (fflush(file->stream) != 0) {
        fail(file, "write", errno);
    }
    /* Without fsync a power failure after the rename could leave an empty file under the good name. */
    if (file->temporary != NULL && fsync(fileno(file->stream)) != 0) {
        fail(file, "fsync", errno);
    }
    if (fclose(file->stream) != 0) {
        fail(file, "close", errno);
    }
    if (file->temporary != NULL && rename(file->temporary, file->path) != 0) {
        fail(file, "rename", errno);
    }
    free(file->path);
    free(file->temporary);
    *file = (AtomicFile){0};
}
