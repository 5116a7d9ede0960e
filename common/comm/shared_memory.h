/* shared_memory.h: inside comm/ only: memory that all ranks of one host see, and how they meet there.
 *
 * Interface: shared_memory_open() once, collective; shared_memory_close() at the end. pg_alloc_shared() and
 * pg_free_shared() of process_group.h are implemented here as well.
 */
#ifndef LOCKSTEP_COMM_SHARED_MEMORY_H
#define LOCKSTEP_COMM_SHARED_MEMORY_H

#include <mpi.h>
#include <stdatomic.h>
#include <stdint.h>

#include "comm/group.h"

#define MAILBOX_SMALL ((size_t)8 << 10)     /* bytes that are all-reduced through `small` */
#define MAILBOX_STAGING ((size_t)512 << 10) /* bytes of a piece */

/* An MPI window: one part per rank, and every rank can read and write all of them. */
typedef struct SharedWindow SharedWindow;
struct SharedWindow {
    MPI_Win window;
    uint32_t number;       /* the same on all ranks; the mailboxes' is 0 */
    size_t bytes;          /* of each rank's part */
    unsigned char **parts; /* by rank: where its part begins, in this process's addresses; owned */
    SharedWindow *next;
};

/* What a rank has come for, an all-reduce or to give memory back: the ranks compare it before anyone writes into
 * another's memory. */
typedef struct Announcement {
    bool frees;      /* the window; count and offset are 0 then */
    size_t count;
    uint32_t dtype;
    uint32_t window; /* number of the window the buffer lies in; 0: in none */
    size_t offset;   /* of the buffer in this rank's part of it, in bytes */
} Announcement;

/* One rank's letter box, in a window. Only its owner writes to it, except to the chunks of `staging` that other ranks
 * own. What two all-reduces in succession use alternates, so that a rank that is ahead does not overwrite what others
 * still read; it cannot be two ahead, as each all-reduce has at least one meeting. */
typedef struct Mailbox {
    _Atomic long arrived;      /* meetings that the owner has come to; on one cache line with what comes next */
    Announcement announced[2]; /* of call number n: [n % 2] */
    _Alignas(64) unsigned char small[2][MAILBOX_SMALL];
    unsigned char staging[2][MAILBOX_STAGING];
} Mailbox;

typedef struct SharedMemory {
    SharedWindow *windows; /* one for the mailboxes, and those of pg_alloc_shared(); owned */
    Mailbox **mailboxes;   /* by rank */
    const void **parts;    /* by rank: what allreduce_shm.c is adding; kept here so that a small sum allocates nothing */
    void **totals;
    uint32_t windows_made;
    long meetings;         /* this rank's, so far */
    long calls;            /* announcements so far */
    long pieces;           /* staged so far */
} SharedMemory;

void shared_memory_open(ProcessGroup *pg);
void shared_memory_close(ProcessGroup *pg);

/* The window in which these bytes lie in this rank's part; NULL if in none. Not the mailboxes. */
const SharedWindow *shared_window_of(const SharedMemory *shared, int rank, const void *memory, size_t bytes);

/* The first meeting of every all-reduce. A fault if another rank has come for something else: the ranks would write all
 * over each other. */
void shared_announce_and_meet(ProcessGroup *pg, const Collective *collective, Announcement mine);

/* Returns when every rank has come to this meeting. What others wrote before they came is visible then. */
void shared_meet(ProcessGroup *pg, const Collective *collective);

#endif
