/* atomic_file.c: write to a new file beside the old one, flush it to the disk, rename it. */
#include "train/files/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"

#define SUFFIX ".tmp"

/* ---- where a path leads ---- */

static bool same_inode(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* The descriptor of our own output that the path leads to (/dev/stdout); -1: it leads elsewhere. */
static int own_stream(const char *path)
{
    struct stat info, stream;
    for (int descriptor = STDOUT_FILENO; descriptor <= STDERR_FILENO; descriptor++)
        if (stat(path, &info) == 0 && fstat(descriptor, &stream) == 0 && same_inode(&info, &stream))
            return descriptor;
    return -1;
}

/* A pipe, a device, or our own output: bytes go there as they come, for a file renamed onto it would replace it. */
static bool is_direct(const char *path)
{
    struct stat info;
    return own_stream(path) >= 0 || (stat(path, &info) == 0 && !S_ISREG(info.st_mode));
}

/* The file's full name, without links; owned by the caller. The file need not exist, but its directory must, and a link
 * must lead to something: else NULL, and errno says why. */
static char *resolve(const char *path)
{
    struct stat info;
    char *place = realpath(path, NULL);
    if (place != NULL || errno != ENOENT || lstat(path, &info) == 0)
        return place;
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    size_t size = strlen(path) + sizeof ".";
    char *asked = alloc_or_fault(size);
    snprintf(asked, size, "%.*s.", (int)(name - path), path);
    char *directory = realpath(asked, NULL);
    free(asked);
    if (directory == NULL)
        return NULL;
    size = strlen(directory) + sizeof "/" + strlen(name);
    place = alloc_or_fault(size);
    snprintf(place, size, "%s/%s", directory, name);
    free(directory);
    return place;
}

bool atomic_same_file(const char *a, const char *b)
{
    struct stat info_a, info_b;
    bool there = stat(a, &info_a) == 0;
    if (there != (stat(b, &info_b) == 0))
        return false;
    if (there)
        return same_inode(&info_a, &info_b) && !S_ISCHR(info_a.st_mode);
    char *place_a = resolve(a), *place_b = resolve(b);
    bool same = place_a != NULL && place_b != NULL && strcmp(place_a, place_b) == 0;
    free(place_a);
    free(place_b);
    return same;
}

/* ---- opening ---- */

/* note: temporary-name
 * A new file beside `place`, of a name that no other file has: PLACE.XXXXXX.tmp. A fixed name would be everybody's: two
 * runs that save to one file would write into each other's, and a file or a link of the user's that is called so would
 * be overwritten. Returns its descriptor, or -1; *name is owned by the caller. */
static int create_temporary(const char *place, char **name)
{
    size_t size = strlen(place) + sizeof ".XXXXXX" SUFFIX;
    *name = alloc_or_fault(size);
    snprintf(*name, size, "%s.XXXXXX" SUFFIX, place);
    int descriptor = mkstemps(*name, sizeof SUFFIX - 1);
    if (descriptor < 0) { /* no file was made, so fail() must not delete one of that name */
        free(*name);
        *name = NULL;
    }
    return descriptor;
}

/* A pipe is opened without waiting for its reader: it may never come. */
static int open_direct(const char *path)
{
    int stream = own_stream(path);
    int descriptor = stream >= 0 ? dup(stream) : open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (descriptor >= 0 && stream < 0)
        fcntl(descriptor, F_SETFL, O_WRONLY); /* but is waited for while it reads */
    return descriptor;
}

/* 0, or the errno that says why nothing can be written to `path`. Every rank may ask at the same time. */
static int try_to_open(const char *path)
{
    struct stat info;
    char *temporary = NULL, *place = NULL;
    if (stat(path, &info) == 0 && S_ISFIFO(info.st_mode)) /* to open it would wake its reader up */
        return access(path, W_OK) == 0 ? 0 : errno;
    bool direct = is_direct(path);
    if (!direct && (place = resolve(path)) == NULL)
        return errno;
    int descriptor = direct ? open_direct(path) : create_temporary(place, &temporary);
    int error = descriptor >= 0 && close(descriptor) == 0 ? 0 : errno;
    if (error == 0 && temporary != NULL)
        unlink(temporary);
    free(temporary);
    free(place);
    return error;
}

void atomic_check_writable(const char *flag, const char *path)
{
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        die("%s %s: is a directory; give the name of a file", flag, path);
    int error = try_to_open(path);
    if (error != 0)
        die("%s %s: cannot be written: %s; give a file in a directory that exists and is yours to write to (a link must "
            "lead to a file that exists)", flag, path, strerror(error));
}

/* ---- writing ---- */

/* `error` is the errno of the call that failed. */
static _Noreturn void fail(AtomicFile *file, const char *call, int error)
{
    if (file->temporary != NULL)
        unlink(file->temporary);
    FAULT("%s: %s failed: %s%s", file->path, call, strerror(error),
          error == ENXIO ? " (a pipe that no process reads from)" : "");
}

/* The permissions of the file that is to be replaced, or those of any new file: mkstemps() gives fewer. */
static mode_t mode_of(const char *place)
{
    struct stat info;
    mode_t mask = umask(0);
    umask(mask);
    return stat(place, &info) == 0 ? info.st_mode & 0777 : 0666 & ~mask;
}

void atomic_open(AtomicFile *file, const char *path)
{
    int descriptor = -1;
    *file = (AtomicFile){.path = copy_string(path)};
    fflush(stdout); /* our own output may be the file: what was printed stands before */
    if (is_direct(path))
        descriptor = open_direct(path);
    else if ((file->place = resolve(path)) != NULL)
        descriptor = create_temporary(file->place, &file->temporary);
    if (descriptor < 0)
        fail(file, "open", errno);
    if (file->temporary != NULL && fchmod(descriptor, mode_of(file->place)) != 0)
        fail(file, "fchmod", errno);
    file->stream = fdopen(descriptor, "wb");
    if (file->stream == NULL)
        fail(file, "open", errno);
}

void atomic_write(AtomicFile *file, const void *bytes, size_t count)
{
    if (fwrite(bytes, 1, count, file->stream) != count)
        fail(file, "write", errno);
}

void atomic_commit(AtomicFile *file)
{
    if (fflush(file->stream) != 0)
        fail(file, "write", errno);
    /* Without fsync a power failure after the rename could leave an empty file under the good name. */
    if (file->temporary != NULL && fsync(fileno(file->stream)) != 0)
        fail(file, "fsync", errno);
    if (fclose(file->stream) != 0)
        fail(file, "close", errno);
    if (file->temporary != NULL && rename(file->temporary, file->place) != 0)
        fail(file, "rename", errno);
    free(file->path);
    free(file->place);
    free(file->temporary);
    *file = (AtomicFile){0};
}
