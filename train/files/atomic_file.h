/* atomic_file.h: files that appear whole or not at all.
 *
 * Interface: atomic_open(), atomic_write() as often as needed, atomic_commit(), on one rank only. All bytes go to a new
 * file, PATH.lockstep-XXXXXX.tmp with letters that make the name unique. It takes PATH's place only when it is complete
 * and on the disk. Until then, and after a crash, readers of PATH find the old file. If two runs write one PATH, the
 * last one wins, and its file is whole. A failed write (full disk) is a fault, and the new file is removed. A process
 * that is killed while it writes leaves the new file; the next writer of PATH removes it, if the file system shows that
 * its process has ended: [note: unfinished-files].
 *
 * A link stays a link: the file that it leads to is replaced. Rejected are: a dangling link, a directory, a pipe, a
 * device, the file of stdout, a mount point, a file with the attributes of chattr +i or +a, a write-protected file, and
 * another user's file. The new file has the permissions of the old one.
 */
#ifndef LOCKSTEP_TRAIN_ATOMIC_FILE_H
#define LOCKSTEP_TRAIN_ATOMIC_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct AtomicFile {
    FILE *stream;
    const char *path;              /* as typed, for messages; not copied */
    char place[PATH_MAX];          /* the target of path, without links */
    char temporary[PATH_MAX + 32]; /* the new file, beside it */
    char problem[192];             /* the first failure, "write failed: No space left on device"; else "" */
    int unfinished;                /* new files beside it that killed processes may have left */
} AtomicFile;

/* The reaction of a caller to a file that cannot be written: save the contents elsewhere, print a note, or nothing. */
typedef enum OnFailure { RESCUE, ADVISE, BE_QUIET } OnFailure;

/* die()s and names `flag` ("save") if path cannot be written. Call it before the training, on every rank or on one.
 * Leaves no file. Prints a note about unfinished files that another host may be writing. */
void atomic_check_writable(const char *flag, const char *path);

/* True if both paths have the same target, which need not exist yet. (Two hard links are two targets.) */
bool atomic_same_file(const char *a, const char *b);

void atomic_open(AtomicFile *file, const char *path); /* faults if the system fails, and so does atomic_commit() */
void atomic_write(AtomicFile *file, const void *bytes, size_t count); /* a failure is remembered for the commit */
void atomic_commit(AtomicFile *file);

/* Instead of a fault, these return false and set file->problem. After a failed open, call no other function. */
bool atomic_try_open(AtomicFile *file, const char *path);
bool atomic_try_commit(AtomicFile *file);

#endif
