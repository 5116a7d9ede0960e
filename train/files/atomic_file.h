/* atomic_file.h: files that appear whole or not at all.
 *
 * Interface: atomic_open(), atomic_write() as often as needed, atomic_commit(), on one rank only. All bytes go to a new
 * file, PATH.lockstep-XXXXXX.tmp with letters that make the name unique. It takes PATH's place only when it is complete
 * and on the disk. A program that reads PATH before, or after a crash, finds the old file. If two runs write one PATH,
 * the last one wins, and its file is whole. A write that fails (full disk) is a fault, and the new file is removed. A
 * process that is killed while it writes leaves the new file. The next one that opens PATH removes it, where the file
 * system tells that its process has ended: [note: unfinished-files].
 * A link stays a link: the file that it leads to is replaced in the same way. A link that leads to nothing is rejected,
 * and so is what cannot be replaced (a directory, a pipe, a device, the file that stdout goes to, a mount point, a file
 * with the attributes of chattr +i or +a), and what should not be (a write-protected file, another user's file).
 * The new file has the permissions of the old one.
 */
#ifndef LOCKSTEP_TRAIN_ATOMIC_FILE_H
#define LOCKSTEP_TRAIN_ATOMIC_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct AtomicFile {
    FILE *stream;
    const char *path;              /* as the user gave it, for messages; not copied */
    char place[PATH_MAX];          /* the file that path leads to, without links */
    char temporary[PATH_MAX + 32]; /* the new file, beside it */
    char problem[192];             /* the first thing that failed: "write failed: No space left on device"; else "" */
    int unfinished;                /* new files beside it that may be those of killed processes */
} AtomicFile;

/* If path cannot be written, die()s and names `flag` ("save"). Call it before the training, not after hours of it; on
 * every rank or on one. Leaves no file. If unfinished files are there that may be another host's, a note says so. */
void atomic_check_writable(const char *flag, const char *path);

/* True if these two paths lead to one place, even if no file is there yet. (Two hard links are two places: replacing
 * one does not change the other.) */
bool atomic_same_file(const char *a, const char *b);

void atomic_open(AtomicFile *file, const char *path); /* faults if the system fails, and so does atomic_commit() */
void atomic_write(AtomicFile *file, const void *bytes, size_t count); /* a failure is remembered for the commit */
void atomic_commit(AtomicFile *file);

/* The same without a fault: false, and file->problem says what failed. After a failed atomic_try_open(), call neither
 * atomic_write() nor a commit. */
bool atomic_try_open(AtomicFile *file, const char *path);
bool atomic_try_commit(AtomicFile *file);

#endif
