/* atomic_file.h: files that appear whole or not at all.
 *
 * Interface: atomic_open(), atomic_write() as often as needed, atomic_commit(). Everything goes to PATH.tmp,
 * which takes PATH's place only when it is complete and on the disk. Whoever reads PATH meanwhile, or after a
 * crash, finds the old file. One rank alone writes a file. A full disk is a fault; PATH.tmp is removed then.
 */
#ifndef LOCKSTEP_TRAIN_ATOMIC_FILE_H
#define LOCKSTEP_TRAIN_ATOMIC_FILE_H

#include <stddef.h>
#include <stdio.h>

typedef struct AtomicFile {
    FILE *stream;
    char *path;
    char *temporary; /* NULL where path is no regular file (/dev/stdout, a pipe): it is written to directly */
} AtomicFile;

/* Ends the program with die(), naming `flag` ("--save"), if path cannot be written. Call it before the training,
 * not after hours of it; on every rank or on one. */
void atomic_check_writable(const char *flag, const char *path);

void atomic_open(AtomicFile *file, const char *path);
void atomic_write(AtomicFile *file, const void *bytes, size_t count);
void atomic_commit(AtomicFile *file);

#endif
