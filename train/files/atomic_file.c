/* atomic_file.c: write to a new file beside the old one, flush it to the disk, rename it. */
#include "train/files/atomic_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"

#define SUFFIX ".tmp"

/* place = the file's full name, without links. The file need not exist, but its directory must, and so must what a link
 * leads to. If not, returns false, and errno says why. */
static bool resolve(const char *path, char place[PATH_MAX])
{
    struct stat info;
    if (realpath(path, place) != NULL)
        return true;
    if (errno != ENOENT || lstat(path, &info) == 0)
        return false;
    char asked[PATH_MAX], directory[PATH_MAX];
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    snprintf(asked, sizeof asked, "%.*s.", (int)(name - path), path);
    if (realpath(asked, directory) == NULL)
        return false;
    errno = ENAMETOOLONG;
    return snprintf(place, PATH_MAX, "%s/%s", directory, name) < PATH_MAX;
}

bool atomic_same_file(const char *a, const char *b)
{
    char place_a[PATH_MAX], place_b[PATH_MAX];
    return resolve(a, place_a) && resolve(b, place_b) && strcmp(place_a, place_b) == 0;
}

/* True if stdout or stderr of this process goes to this file. (Its name may be /dev/stdout.) */
static bool is_own_output(const struct stat *info)
{
    struct stat out, err;
    return (fstat(STDOUT_FILENO, &out) == 0 && out.st_dev == info->st_dev && out.st_ino == info->st_ino) ||
           (fstat(STDERR_FILENO, &err) == 0 && err.st_dev == info->st_dev && err.st_ino == info->st_ino);
}

/* note: temporary-name
 * Creates a file beside the place, with a name that no other file has: PLACE.XXXXXX.tmp. With a fixed name, two runs
 * that save to one file would write into the same temporary file, and a file or link of the user with that name would
 * be overwritten. It gets the permissions of the file that it will replace, or those of any new file, because
 * mkstemps() gives fewer. Returns NULL, or a text that says why this failed. */
static const char *create_quickly(AtomicFile *file, const char *path)
{
    struct stat info;
    *file = (AtomicFile){.path = path};
    if (!resolve(path, file->place))
        return strerror(errno);
    bool exists = stat(file->place, &info) == 0;
    if (exists && !S_ISREG(info.st_mode))
        return "it is a directory, a pipe or a device, and only a file can be replaced";
    if (exists && is_own_output(&info))
        return "this program's own output goes there";
    mode_t mask = umask(0);
    umask(mask);
    snprintf(file->temporary, sizeof file->temporary, "%s.XXXXXX" SUFFIX, file->place);
    int descriptor = mkstemps(file->temporary, sizeof SUFFIX - 1);
    if (descriptor < 0)
        return strerror(errno);
    if (fchmod(descriptor, exists ? info.st_mode & 0777 : 0666 & ~mask) == 0)
        file->stream = fdopen(descriptor, "wb");
    if (file->stream != NULL)
        return NULL;
    unlink(file->temporary);
    return strerror(errno);
}

/* Here and below: the time of a slow disk is no hang. */
static const char *create_temporary(AtomicFile *file, const char *path)
{
    own_work_begin("writes", path);
    const char *problem = create_quickly(file, path);
    own_work_end();
    return problem;
}

void atomic_check_writable(const char *flag, const char *path)
{
    AtomicFile file;
    const char *problem = create_temporary(&file, path);
    if (problem != NULL)
        die("--%s %s: cannot be written: %s; give a file in a directory that exists and is yours to write to (a link "
            "must lead to a file that exists)", flag, path, problem);
    fclose(file.stream);
    unlink(file.temporary);
}

void atomic_open(AtomicFile *file, const char *path)
{
    const char *problem = create_temporary(file, path);
    CHECK(problem == NULL, "%s: open failed: %s", path, problem);
}

/* Removes the new file and faults with the text of errno. */
static _Noreturn void fail(const AtomicFile *file, const char *call)
{
    int error = errno;
    unlink(file->temporary);
    FAULT("%s: %s failed: %s", file->path, call, strerror(error));
}

void atomic_write(AtomicFile *file, const void *bytes, size_t count)
{
    own_work_begin("writes", file->path);
    if (fwrite(bytes, 1, count, file->stream) != count)
        fail(file, "write");
    own_work_end();
}

void atomic_commit(AtomicFile *file)
{
    own_work_begin("writes", file->path);
    if (fflush(file->stream) != 0)
        fail(file, "write");
    /* Without fsync a power failure after the rename could leave an empty file under the good name. */
    if (fsync(fileno(file->stream)) != 0)
        fail(file, "fsync");
    if (fclose(file->stream) != 0)
        fail(file, "close");
    if (rename(file->temporary, file->place) != 0)
        fail(file, "rename");
    own_work_end();
}
