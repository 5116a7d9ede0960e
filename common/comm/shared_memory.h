/* shared_memory.h: inside comm/ only: memory that all ranks of one host share, and barriers in it.
 *
 * Interface: shared_memory_open() once, collective; shared_memory_close() at the end.
 */
#ifndef LOCKSTEP_COMM_SHARED_MEMORY_H
#define LOCKSTEP_COMM_SHARED_MEMORY_H

#include "comm/group.h"

#define MAILBOX_SMALL ((size_t)8 << 10)     /* a rank that sends at most this many bytes uses `small` */
#define MAILBOX_STAGING ((size_t)512 << 10) /* bytes of a piece */

/* An MPI window: one part per rank. Every rank can read and write all parts. */
typedef struct SharedWindow SharedWindow;
struct SharedWindow {
    MPI_Win window;
    uint32_t number;       /* the same on all ranks; 0 for the mailboxes' window */
    size_t bytes;          /* of each rank's part */
    unsigned char **parts; /* by rank: where its part begins, in this process's addresses; owned */
    SharedWindow *next;
};

/* What a rank is about to do after a barrier: a collective in shared memory, or freeing a window. The ranks compare it
 * before any rank writes into another's memory. */
typedef struct Announcement {
    bool frees;        /* it frees the window; count and offset are 0 then */
    uint8_t operation; /* enum Operation */
    uint8_t dtype;
    uint32_t window;   /* number of the window where `send` lies; 0: in no window */
    size_t count;
    size_t offset;     /* of `send` in this rank's part of the window, in bytes */
} Announcement;

/* One rank's mailbox, in a window. Only its owner writes to it, except to the chunks of `staging` that other ranks own.
 * Two calls in succession use different halves, and so do two pieces, so that a faster rank does not overwrite what
 * others still read. It cannot be two calls or pieces ahead, because each of them has at least one barrier. */
typedef struct Mailbox {
    _Atomic long arrived;      /* barriers that the owner has reached; on one cache line with the next field */
    Announcement announced[2]; /* of call number n: [n % 2] */
    _Alignas(64) unsigned char small[2][MAILBOX_SMALL];
    unsigned char staging[2][MAILBOX_STAGING];
} Mailbox;

typedef struct SharedMemory {
    SharedWindow *windows; /* one for the mailboxes, and those of pg_alloc_shared(); owned */
    Mailbox **mailboxes;   /* by rank */
    const void **parts;    /* by rank: what allreduce_shm.c reads; kept here so that a small sum allocates nothing */
    void **totals;
    uint32_t windows_made;
    long barriers;         /* that this rank has reached so far */
    long calls;            /* announcements of this rank so far */
    long pieces;           /* pieces that this rank has staged so far */
} SharedMemory;

/* Makes the mailboxes (pg->shared); frees all windows. Both are collective. False: the host has no room for them, and
 * pg->windows_if_room is set. */
bool shared_memory_open(ProcessGroup *pg);
void shared_memory_close(ProcessGroup *pg);

/* Makes a window with `bytes` bytes for each rank, zeroed; returns this rank's part. NULL: there is no room, and
 * pg->windows_if_room is set. Collective. */
void *window_create(ProcessGroup *pg, size_t bytes);
/* Frees the window whose part this is; false: there is none. Collective. */
bool window_free(ProcessGroup *pg, const void *memory);

/* The window that holds these bytes in this rank's part; NULL if there is none. The mailboxes' window does not
 * count. */
const SharedWindow *shared_window_of(const SharedMemory *shared, int rank, const void *memory, size_t bytes);

/* The first barrier of every call. `mine`: window, offset and frees; the rest is the collective's. Faults if another
 * rank has announced something else, because the ranks would overwrite each other's memory. */
void shared_announce_at_barrier(ProcessGroup *pg, const Collective *collective, Announcement mine);

/* Where the `send` that a rank has just announced lies in this process's addresses; NULL if it is in no window. Valid
 * until the rank's next call but one. */
const unsigned char *shared_announced_send(const SharedMemory *shared, int rank);

/* Returns when every rank has reached this barrier. Everything that they wrote before is then visible. */
void shared_barrier(ProcessGroup *pg, const Collective *collective);

#endif
