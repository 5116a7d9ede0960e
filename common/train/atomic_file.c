/* atomic_file.c: write to PATH.tmp, flush it to the disk, rename it. */
#include "train/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"

/* ---- where a path leads ---- */

static bool is_link(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

static bool same_inode(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* The stream that a link such as /dev/stdout leads to, as a descriptor; -1: it leads elsewhere, or is no link. */
static int own_stream(const char *path)
{
    struct stat info, stream;
    if (!is_link(path) || stat(path, &info) != 0)
        return -1;
    for (int descriptor = STDOUT_FILENO; descriptor <= STDERR_FILENO; descriptor++)
        if (fstat(descriptor, &stream) == 0 && same_inode(&info, &stream))
            return descriptor;
    return -1;
}

/* A pipe, a device, or our own output: bytes go there as they come, for a file renamed onto it would replace it. */
static bool is_direct(const char *path)
{
    struct stat info;
    return own_stream(path) >= 0 || (stat(path, &info) == 0 && !S_ISREG(info.st_mode));
}

/* `name` as it is meant in the directory of `path`; owned by the caller. */
static char *beside(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    size_t directory = slash != NULL && name[0] != '/' ? (size_t)(slash - path) + 1 : 0;
    size_t size = directory + strlen(name) + 1;
    char *text = alloc_or_fault(size);
    snprintf(text, size, "%.*s%s", (int)directory, path, name);
    return text;
}

/* The place of a file that does not exist yet, and is no link: its directory without links, and its name. */
static char *resolve_new(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    char *asked = beside(path, ".");
    char *directory = realpath(asked, NULL);
    free(asked);
    if (directory == NULL)
        return NULL;
    size_t size = strlen(directory) + 1 + strlen(name) + 1;
    char *place = alloc_or_fault(size);
    snprintf(place, size, "%s/%s", directory, name);
    free(directory);
    return place;
}

/* Where a file lies that is called `path`, with every link followed; owned by the caller. The file need not exist, but
 * its directory must: else NULL, and errno says why. */
static char *resolve(const char *path)
{
    char *place = realpath(path, NULL), text[PATH_MAX];
    if (place != NULL || errno != ENOENT) /* ELOOP: links that lead to each other; so the recursion below ends */
        return place;
    ssize_t length = readlink(path, text, sizeof text - 1);
    if (length < 0)
        return resolve_new(path);
    text[length] = '\0';
    char *next = beside(path, text);
    place = resolve(next);
    free(next);
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

/* ---- before the training ---- */

static char *temporary_name(const char *place)
{
    size_t size = strlen(place) + sizeof ".tmp";
    char *name = alloc_or_fault(size);
    snprintf(name, size, "%s.tmp", place);
    return name;
}

/* Like the two below: 0, or the errno that says why nothing can be written to `path`. */
static int try_direct(const char *path)
{
    struct stat info;
    if (own_stream(path) >= 0)
        return 0;
    if (stat(path, &info) == 0 && S_ISFIFO(info.st_mode)) /* to open it would wait for a reader, or wake one up */
        return access(path, W_OK) == 0 ? 0 : errno;
    int descriptor = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY);
    return descriptor >= 0 && close(descriptor) == 0 ? 0 : errno;
}

/* Every rank may do so at the same time, in the same directory: a file that is there already stays, be it another
 * rank's, left by a run that was killed, or somebody's. */
static int try_temporary(const char *temporary)
{
    int descriptor = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0) {
        close(descriptor);
        unlink(temporary);
        return 0;
    }
    if (errno != EEXIST)
        return errno;
    descriptor = open(temporary, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0)
        return errno == ENOENT ? 0 : errno; /* it was another rank's, and is gone */
    close(descriptor);
    return 0;
}

static int try_file(const char *path)
{
    char *place = resolve(path);
    if (place == NULL)
        return errno;
    char *temporary = temporary_name(place);
    int error = try_temporary(temporary);
    free(temporary);
    free(place);
    return error;
}

void atomic_check_writable(const char *flag, const char *path)
{
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        die("%s %s: is a directory; give the name of a file", flag, path);
    int error = is_direct(path) ? try_direct(path) : try_file(path);
    if (error != 0)
        die("%s %s: cannot be written: %s; %s in a directory that exists and is yours to write to", flag, path,
            strerror(error), is_link(path) ? "it is a link: let it lead to a file" : "give a file");
}

/* ---- writing ---- */

/* `error` is the errno of the call that failed. */
static _Noreturn void fail(AtomicFile *file, const char *call, int error)
{
    if (file->temporary != NULL) {
        unlink(file->temporary);
    }
    FAULT("%s: %s failed: %s", file->path, call, strerror(error));
}

/* Our own output has a place in its file, behind what was printed: to open the file again would start at its head. */
static FILE *open_direct(const char *path)
{
    int stream = own_stream(path);
    fflush(stdout);
    return stream >= 0 ? fdopen(dup(stream), "wb") : fopen(path, "wb");
}

void atomic_open(AtomicFile *file, const char *path)
{
    *file = (AtomicFile){.path = copy_string(path)};
    if (is_direct(path)) {
        file->stream = open_direct(path);
    } else if ((file->place = resolve(path)) != NULL) {
        file->temporary = temporary_name(file->place);
        file->stream = fopen(file->temporary, "wb");
    }
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
    if (file->temporary != NULL && rename(file->temporary, file->place) != 0) {
        fail(file, "rename", errno);
    }
    free(file->path);
    free(file->place);
    free(file->temporary);
    *file = (AtomicFile){0};
}
