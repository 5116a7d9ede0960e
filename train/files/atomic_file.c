/* atomic_file.c: writes to a new file beside the old one, flushes it to the disk, and renames it. */
#include "train/files/atomic_file.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"

/* The name of a new file: PLACE.lockstep-XXXXXX.tmp */
#define MARK ".lockstep-"
#define LETTERS "XXXXXX"
#define SUFFIX ".tmp"

/* place = the file's full name, without links. Its directory, and a link's target, must exist: else false, and
 * errno. */
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

/* True if this process prints to this file. (Its name may be /dev/stdout.) */
static bool is_own_output(const struct stat *info)
{
    struct stat out, err;
    return (fstat(STDOUT_FILENO, &out) == 0 && out.st_dev == info->st_dev && out.st_ino == info->st_ino) ||
           (fstat(STDERR_FILENO, &err) == 0 && err.st_dev == info->st_dev && err.st_ino == info->st_ino);
}

/* ---- unfinished files ---- */

/* note: unfinished-files
 * The process that writes a new file holds a lock on it (flock), which the system releases when the process ends, in
 * any way. So a file that can be locked belongs to no living process. (Process numbers are reused, and each container
 * counts its own.) But between hosts, a network file system may not show locks. To remove a file, a process needs its
 * lock, and keeps the lock until the file is gone. A writer that cannot lock the file that it has just created takes
 * another name. It keeps the lock until its file is renamed. */
static bool locks_decide(int descriptor)
{
    static const unsigned of_one_host[] = {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC,
                                           TMPFS_MAGIC, OVERLAYFS_SUPER_MAGIC, 0x2fc12fc1 /* ZFS */};
    struct statfs info;
    if (fstatfs(descriptor, &info) != 0)
        return false;
    for (size_t i = 0; i < sizeof of_one_host / sizeof *of_one_host; i++)
        if ((unsigned)info.f_type == of_one_host[i])
            return true;
    return false;
}

/* True if `entry` is a name that create_temporary() gives to a new file for `name`. */
static bool is_temporary_name(const char *entry, const char *name)
{
    const size_t length = strlen(name), mark = sizeof MARK - 1, letters = sizeof LETTERS - 1;
    if (strncmp(entry, name, length) != 0 || strncmp(entry + length, MARK, mark) != 0)
        return false;
    entry += length + mark;
    for (size_t i = 0; i < letters; i++)
        if (!isalnum((unsigned char)entry[i]))
            return false;
    return strcmp(entry + letters, SUFFIX) == 0;
}

/* Removes a new file of this user if its process has ended. Returns false if that is unknown. (Ignores an empty file:
 * another rank may just be checking whether it can write.) */
static bool remove_if_dead(int directory, const char *name, bool locks_known)
{
    struct stat info;
    int file = openat(directory, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return true;
    bool is_dead = fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink == 1 &&
                   info.st_uid == geteuid() && flock(file, LOCK_EX | LOCK_NB) == 0;
    if (is_dead && locks_known)
        unlinkat(directory, name, 0);
    close(file);
    return !is_dead || locks_known || info.st_size == 0;
}

/* Removes unfinished files beside the place. Returns the number of files that are perhaps unfinished. */
static int remove_unfinished(const char *place)
{
    char directory[PATH_MAX];
    const char *name = strrchr(place, '/') + 1;
    int unknown = 0;
    snprintf(directory, sizeof directory, "%.*s", (int)(name - place), place);
    DIR *entries = opendir(directory);
    if (entries == NULL)
        return 0;
    const bool locks_known = locks_decide(dirfd(entries));
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
        if (is_temporary_name(entry->d_name, name) && !remove_if_dead(dirfd(entries), entry->d_name, locks_known))
            unknown++;
    closedir(entries);
    return unknown;
}

/* ---- files that must not be replaced ---- */

/* Returns why no file can be renamed to this place; NULL: no reason is known. */
static const char *find_obstacle(const char *place, bool exists)
{
    char directory[PATH_MAX];
    struct statx info;
    snprintf(directory, sizeof directory, "%.*s", (int)(strrchr(place, '/') - place + 1), place);
    if (statx(AT_FDCWD, directory, 0, 0, &info) == 0 && (info.stx_attributes & STATX_ATTR_APPEND) != 0)
        return "its directory is append-only; chattr -a on it if files in it may be replaced";
    if (!exists || statx(AT_FDCWD, place, 0, 0, &info) != 0)
        return NULL;
    if ((info.stx_attributes & (STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND)) != 0)
        return "it is immutable or append-only; chattr -ia first if it may be replaced";
    if ((info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0)
        return "it is a mount point, which no other file can replace; mount its directory instead";
    return NULL;
}

/* Returns why the user probably wants to keep this file; NULL: no reason. Compares its owner with that of a new file,
 * not with this process's user, because a file system may give files to another user (NFS, for root). Root may write to
 * any file, so the mode counts, too. */
static const char *find_protection(const char *place, const struct stat *old, const struct stat *new)
{
    if (old->st_uid != new->st_uid)
        return "it is another user's file; remove it first if it may be replaced";
    if ((old->st_mode & 0222) == 0 || faccessat(AT_FDCWD, place, W_OK, AT_EACCESS) != 0)
        return "it is write-protected; chmod u+w first if it may be replaced";
    return NULL;
}

/* ---- creating ---- */

/* Creates the new file, and locks it. Returns a descriptor; -1: failed, see errno. */
static int create_locked(AtomicFile *file)
{
    struct stat info;
    for (int tries = 0; tries < 100; tries++) {
        snprintf(file->temporary, sizeof file->temporary, "%s" MARK LETTERS SUFFIX, file->place);
        int descriptor = mkostemps(file->temporary, sizeof SUFFIX - 1, O_CLOEXEC);
        if (descriptor < 0)
            return -1;
        bool locked = flock(descriptor, LOCK_EX | LOCK_NB) == 0 || (errno != EWOULDBLOCK && !locks_decide(descriptor));
        int error = errno;
        if (locked && fstat(descriptor, &info) == 0 && info.st_nlink > 0)
            return descriptor;
        unlink(file->temporary); /* another process is removing it: see unfinished-files */
        close(descriptor);
        errno = error;
    }
    return -1;
}

/* note: temporary-name
 * Creates a file beside the place, with a unique name. With a fixed name, two runs that save to one file would write
 * into the same temporary file, and a file or link of the user with that name would be overwritten. The new file gets
 * the permissions of the file that it will replace, or the usual ones, because mkostemps() gives fewer. Returns NULL,
 * or an error. */
static const char *try_create(AtomicFile *file, const char *path)
{
    struct stat old, new;
    *file = (AtomicFile){.path = path};
    if (!resolve(path, file->place))
        return strerror(errno);
    bool exists = stat(file->place, &old) == 0;
    if (exists && !S_ISREG(old.st_mode))
        return "it is a directory, a pipe or a device, and only a file can be replaced";
    if (exists && is_own_output(&old))
        return "this program's own output goes there";
    const char *problem = find_obstacle(file->place, exists);
    if (problem != NULL)
        return problem;
    file->unfinished = remove_unfinished(file->place);
    int descriptor = create_locked(file);
    if (descriptor < 0 || fstat(descriptor, &new) != 0)
        return strerror(errno);
    problem = exists ? find_protection(file->place, &old, &new) : NULL;
    mode_t mask = umask(0);
    umask(mask);
    if (problem == NULL && fchmod(descriptor, exists ? old.st_mode & 0777 : 0666 & ~mask) == 0)
        file->stream = fdopen(descriptor, "wb");
    if (file->stream != NULL)
        return NULL;
    problem = problem != NULL ? problem : strerror(errno);
    unlink(file->temporary);
    close(descriptor);
    return problem;
}

static const char *create_temporary(AtomicFile *file, const char *path)
{
    local_work_begin("writes", path);
    const char *problem = try_create(file, path);
    local_work_end();
    return problem;
}

void atomic_check_writable(const char *flag, const char *path)
{
    AtomicFile file;
    const char *problem = create_temporary(&file, path);
    if (problem != NULL)
        die("--%s %s: cannot be written: %s; or name another file, in a directory that exists and is yours to write to "
            "(a link must lead to a file that exists)", flag, path, problem);
    unlink(file.temporary);
    fclose(file.stream);
    if (file.unfinished > 0)
        advise("--%s %s: %d unfinished file(s) are beside it (%s" MARK "*" SUFFIX "), left by runs that were killed, "
               "or being written on another host: this file system does not tell; remove them if no run is active",
               flag, path, file.unfinished, path);
}

/* Records the first failure, with its errno. */
static void note_failure(AtomicFile *file, const char *call)
{
    if (file->problem[0] == '\0')
        snprintf(file->problem, sizeof file->problem, "%s failed: %s", call, strerror(errno));
}

bool atomic_try_open(AtomicFile *file, const char *path)
{
    const char *problem = create_temporary(file, path);
    if (problem != NULL)
        snprintf(file->problem, sizeof file->problem, "open failed: %s", problem);
    return problem == NULL;
}

void atomic_open(AtomicFile *file, const char *path)
{
    if (!atomic_try_open(file, path))
        FAULT("%s: %s", path, file->problem);
}

void atomic_write(AtomicFile *file, const void *bytes, size_t count)
{
    local_work_begin("writes", file->path);
    if (file->problem[0] == '\0' && fwrite(bytes, 1, count, file->stream) != count)
        note_failure(file, "write");
    local_work_end();
}

bool atomic_try_commit(AtomicFile *file)
{
    local_work_begin("writes", file->path);
    errno = EIO; /* if an earlier fprintf() to the stream has failed */
    if (fflush(file->stream) != 0 || ferror(file->stream))
        note_failure(file, "write");
    /* Without fsync, a power failure after the rename could leave an empty file at path. */
    if (file->problem[0] == '\0' && fsync(fileno(file->stream)) != 0)
        note_failure(file, "fsync");
    if (file->problem[0] == '\0' && rename(file->temporary, file->place) != 0)
        note_failure(file, "rename");
    if (file->problem[0] != '\0')
        unlink(file->temporary);
    fclose(file->stream); /* after the rename, because it releases the lock */
    local_work_end();
    return file->problem[0] == '\0';
}

void atomic_commit(AtomicFile *file)
{
    if (!atomic_try_commit(file))
        FAULT("%s: %s", file->path, file->problem);
}
