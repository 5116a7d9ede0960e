/* atomic_file.h: files that appear whole or not at all.
 *
 * Interface: atomic_open(), atomic_write() as often as needed, atomic_commit(). Everything goes to a new
 * file, PATH.XXXXXX.tmp with letters that make the name unique, which takes PATH's place only when it is complete and
 * on the disk. A program that reads PATH meanwhile, or after a crash, finds the old file. Where two runs write one
 * PATH, the last one wins, whole. One rank alone writes a file. A full disk is a fault; the new file is removed then.
 * (A process that is killed while it writes leaves it.)
 * A link stays a link: the file that it leads to is replaced in the same way; a link that leads to nothing is refused,
 * and so is what cannot be replaced: a directory, a pipe, a device, the file that stdout goes to.
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
    char place[PATH_MAX];          /* where it leads to, without links */
    char temporary[PATH_MAX + 16]; /* the new file, beside it */
} AtomicFile;

/* Ends the program with die(), naming `flag` ("--save"), if path cannot be written. Call it before the training,
 * not after hours of it; on every rank or on one. */
void atomic_check_writable(const char *flag, const char *path);

/* True if these two paths lead to one place, whether there is a file or not. (Hard links are two places: to replace one
 * leaves the other's file as it is.) */
bool atomic_same_file(const char *a, const char *b);

void atomic_open(AtomicFile *file, const char *path);
void atomic_write(AtomicFile *file, const void *bytes, size_t count);
void atomic_commit(AtomicFile *file);

#endif
